"""Generated checkers (IF-D2, RRL-R1): a teacher wrote a Python function that decides; a sandbox runs it, never we.

Two records hold one. A puzzle's ground truth has `checker`, the source of `check(answer: str) -> bool`; a rubric is
`{"kind": "generated", "source": ..., "function": ...}`. `positive` and `negative` list texts that it must accept or
refuse; a rubric may lack them. Source and text are untrusted: the text is nothing but the function's argument, and
what the function returns is compared outside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rufus_core.errors import DataError, InfrastructureError, SandboxUnavailable
from rufus_core.ports.programs import CodeSandbox
from rufus_core.rewards.checker_source import CheckerFault, CheckerVerdict, check_source
from rufus_core.types import Json, Verdict

GENERATED = "generated"
TIMEOUT_SECONDS = 5.0  # for each text
MAX_CHARACTERS = 20_000  # of a puzzle's answer
_RUNS = 3  # of each example, in processes of their own


@dataclass(frozen=True, slots=True)
class GeneratedChecker:
    """A function of one text, and the texts that it is tried on."""

    source: str
    function: str
    positive: tuple[str, ...] = ()
    negative: tuple[str, ...] = ()

    @property
    def rubric(self) -> dict[str, Json]:
        examples = {"positive": list(self.positive), "negative": list(self.negative)}
        return {"kind": GENERATED, "source": self.source, "function": self.function, **examples}


def puzzle_checker(truth: Mapping[str, Json]) -> GeneratedChecker:
    """The checker that a puzzle brings. Raises DataError where source or examples are missing or no texts."""
    positive, negative = _texts(truth, "positive"), _texts(truth, "negative")
    if not positive or not negative:
        raise DataError("a puzzle's checker needs `positive` and `negative` examples")
    return GeneratedChecker(_text(truth, "checker"), "check", positive, negative)


def rubric_checker(rubric: Mapping[str, Json]) -> GeneratedChecker:
    """The checker that a rubric is. Raises DataError where source or function are missing, or a field is no text."""
    source, function = _text(rubric, "source"), _text(rubric, "function")
    return GeneratedChecker(source, function, _texts(rubric, "positive"), _texts(rubric, "negative"))


def require_source(checker: GeneratedChecker) -> None:
    """Raises DataError for a source that may not be run."""
    verdict = check_source(checker.source, checker.function)
    if verdict.fault is not None:
        raise DataError(refused(checker, verdict))


def refused(checker: GeneratedChecker, verdict: CheckerVerdict) -> str:
    """Why a checker is refused, in words."""
    return f"the generated checker {checker.function!a} is refused: {verdict}"


def check_generated(
    checker: GeneratedChecker, pool: CodeSandbox, timeout_seconds: float = TIMEOUT_SECONDS
) -> CheckerVerdict:
    """Whether a checker may decide anything. Raises InfrastructureError if no sandbox can be had."""
    verdict = check_source(checker.source, checker.function)
    if verdict.fault is not None:
        return verdict
    if not checker.positive or not checker.negative:
        return CheckerVerdict(CheckerFault.NO_EXAMPLES)
    if _is_right(checker, pool, timeout_seconds):
        return CheckerVerdict(None)
    said: dict[str, set[str]] = {}
    for text in (*checker.positive, *checker.negative):
        for _ in range(_RUNS):
            returned = _returned(checker, text, pool, timeout_seconds)
            if returned not in ("True", "False"):  # not run again: it may have taken all of its time
                return CheckerVerdict(CheckerFault.RAISES, returned)
            said.setdefault(text, set()).add(returned)
    if wrong := [text for text in checker.positive if said[text] == {"False"}]:
        return CheckerVerdict(CheckerFault.POSITIVE, _quoted(wrong[0]))
    if wrong := [text for text in checker.negative if said[text] == {"True"}]:
        return CheckerVerdict(CheckerFault.NEGATIVE, _quoted(wrong[0]))
    return CheckerVerdict(CheckerFault.NOT_DETERMINISTIC, "right at times")


def refusal(checker: GeneratedChecker, text: str, pool: CodeSandbox, timeout_seconds: float = TIMEOUT_SECONDS) -> str:
    """Why a checker doesn't say True of a text; empty where it does. One that raises or takes too long doesn't.

    Raises:
        DataError: the source is one that `check_generated` refuses, or fails on the first of its own examples.
        InfrastructureError: no sandbox can be had.
    """
    require_source(checker)
    own = checker.positive[:1]
    result = pool.run_checks(checker.source, [_says(checker, each, True) for each in (*own, text)], timeout_seconds)
    if result.num_passed < len(own):
        raise DataError(f"the generated checker fails on its own example: {_why(result.reason)}")
    return _why(result.reason)


def holds_generated(rubric: Mapping[str, Json], text: str, pool: CodeSandbox) -> bool:
    """Whether a rubric's function returns True. Raises as `rubric_checker` and `refusal` do."""
    return not refusal(rubric_checker(rubric), text, pool)


def verify_checked(truth: Mapping[str, Json], answer: str, open_sandbox: Callable[[], CodeSandbox]) -> Verdict:
    """A puzzle by its own checker: passed iff that returns True. One that can't decide is unscorable.

    Where no sandbox can be had, the verdict is aborted.
    """
    if len(answer) > MAX_CHARACTERS:
        return Verdict.binary(False, f"more than {MAX_CHARACTERS} characters", answer)
    try:
        reason = refusal(puzzle_checker(truth), answer, open_sandbox())
    except DataError as error:
        return Verdict.unscorable(str(error))
    except (InfrastructureError, SandboxUnavailable) as error:
        return Verdict.aborted(str(error))
    return Verdict.binary(not reason, reason, answer)


def _is_right(checker: GeneratedChecker, pool: CodeSandbox, timeout_seconds: float) -> bool:
    """Right of all examples in every run, and in either order: a function may keep something between its calls."""
    yes = [_says(checker, text, True) for text in checker.positive]
    no = [_says(checker, text, False) for text in checker.negative]
    orders = ([*yes, *no, *yes, *no], [*no, *yes]) * _RUNS
    return all(pool.run_checks(checker.source, order, timeout_seconds).passed for order in orders)


def _returned(checker: GeneratedChecker, text: str, pool: CodeSandbox, timeout_seconds: float) -> str:
    """`True`, `False`, or why it is neither."""
    reason = ""
    for value in (True, False):
        reason = pool.run_checks(checker.source, [_says(checker, text, value)], timeout_seconds).reason
        if not reason:
            return str(value)
    return _why(reason)


def _says(checker: GeneratedChecker, text: str, value: bool) -> str:
    """The test that a call returns the very boolean; the value is compared outside."""
    return f"assert {checker.function}({text!a}) is {value}"


def _why(reason: str) -> str:
    """A sandbox's reason without the number of the check."""
    return reason.partition(": ")[2] or reason


def _quoted(text: str) -> str:
    return ascii(text if len(text) <= 40 else f"{text[:40]}...")


def _text(record: Mapping[str, Json], name: str) -> str:
    text = record.get(name)
    if not isinstance(text, str):
        raise DataError(f"a generated checker needs the text `{name}`")
    return text


def _texts(record: Mapping[str, Json], name: str) -> tuple[str, ...]:
    texts = record.get(name, [])
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise DataError(f"the examples `{name}` of a generated checker are no texts")
    return tuple(texts)
