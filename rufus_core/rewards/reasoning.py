"""The reward of Reasoning RL (RRL-R1): 0 or 1, by the problem's family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from rufus_core.data.boxed import last_boxed
from rufus_core.errors import DataError
from rufus_core.ports.programs import CodeSandbox
from rufus_core.rewards.extract import Extraction, extract
from rufus_core.rewards.fuzzy import THRESHOLD, fuzzy_match
from rufus_core.rewards.generated import verify_checked
from rufus_core.rewards.math import MathVerifier
from rufus_core.rewards.puzzles import verify_puzzle
from rufus_core.rewards.timed import timed
from rufus_core.types import Problem, Verdict

_NO_ANSWER = "no answer"
_NO_REFERENCE = "the record has no text `answer`"


@timed
def verify_reasoning(
    problem: Problem,
    final_text: str | None,
    math: MathVerifier,
    similarity_threshold: float = THRESHOLD,
    sandbox: Callable[[], CodeSandbox] | None = None,
) -> Verdict:
    """Score a response's final text; None, an open think block or an open box is no answer.

    Science answers match from `similarity_threshold` on. A puzzle's own checker runs in what `sandbox` gives, and is
    aborted without. A record without a reference of the family's form is unscorable.

    Raises:
        DataError: there is no verifier for the problem's family.
    """
    verifier = VERIFIERS.get(problem.family)
    if verifier is None:
        raise DataError(f"no reasoning verifier for the family {problem.family!r}", hint=f"one of {sorted(VERIFIERS)}")
    if final_text is None:
        return Verdict.binary(False, _NO_ANSWER)
    return verifier(problem, final_text, _Tools(math, similarity_threshold, sandbox))


@dataclass(frozen=True, slots=True)
class _Tools:
    math: MathVerifier
    threshold: float
    sandbox: Callable[[], CodeSandbox] | None


# One signature for all: each takes what it needs.
# ruff: noqa: ARG001


def _verify_math(problem: Problem, text: str, tools: _Tools) -> Verdict:
    r"""Math-Verify on the last box. Both sides go in boxed, so that "x+5" is read as a whole and not as a 5."""
    answer = extract(text, Extraction.BOX)
    if answer is None:
        return Verdict.binary(False, _NO_ANSWER)
    gold = _reference(problem)
    if gold is None:
        return Verdict.unscorable(_NO_REFERENCE)
    boxed_gold = last_boxed(gold)
    verdict = tools.math.verify(_box(gold if boxed_gold is None else boxed_gold), _box(answer))
    return replace(verdict, extracted=answer)


def _verify_calculation(problem: Problem, text: str, tools: _Tools) -> Verdict:
    """The result exactly; a calculation that stands before it is not judged, and is no answer without it."""
    answer = extract(text, Extraction.BOX_OR_TEXT)
    if answer is None:
        return Verdict.binary(False, _NO_ANSWER)
    reference = _reference(problem)
    if reference is None:
        return Verdict.unscorable(_NO_REFERENCE)
    result = answer.rpartition("=")[2].strip()
    return Verdict.binary(result == reference, extracted=result)


def _verify_puzzle(problem: Problem, text: str, tools: _Tools) -> Verdict:
    answer = extract(text, Extraction.BOX_OR_TEXT)
    if answer is None:
        return Verdict.binary(False, _NO_ANSWER)
    if "checker" not in problem.ground_truth:
        return verify_puzzle(problem.ground_truth, answer)
    if tools.sandbox is None:
        return Verdict.aborted("there is no sandbox for the puzzle's own checker")
    return verify_checked(problem.ground_truth, answer, tools.sandbox)


def _verify_science(problem: Problem, text: str, tools: _Tools) -> Verdict:
    reference = _reference(problem)
    if reference is None:
        return Verdict.unscorable(_NO_REFERENCE)
    answer = extract(text, Extraction.BOX_OR_TEXT)
    if answer is None:
        return Verdict.binary(False, _NO_ANSWER)
    return Verdict.binary(fuzzy_match(reference, answer, tools.threshold), extracted=answer)


def _reference(problem: Problem) -> str | None:
    answer = problem.ground_truth.get("answer")
    return answer if isinstance(answer, str) and answer.strip() else None


def _box(text: str) -> str:
    end = " " if text.endswith("\\") else ""  # a space that was stripped from "\\ ": the brace would be no brace
    return rf"\boxed{{{text}{end}}}"


VERIFIERS: dict[str, Callable[[Problem, str, _Tools], Verdict]] = {
    "arithmetic": _verify_math,
    "math": _verify_math,
    "puzzle": _verify_puzzle,
    "science": _verify_science,
    "calculation": _verify_calculation,
}
