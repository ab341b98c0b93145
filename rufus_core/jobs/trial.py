"""Tries what a record of a file brings along to grade with: its judge or checker must know its own references.

What can be told without running anything is `problem_schema`'s.
"""

from __future__ import annotations

from collections.abc import Callable

from rufus_core.data.code_records import ProgramTests, read_tests
from rufus_core.errors import DataError
from rufus_core.ports.programs import CodeSandbox
from rufus_core.rewards.generated import (
    GENERATED,
    GeneratedChecker,
    check_generated,
    puzzle_checker,
    refused,
    rubric_checker,
)
from rufus_core.rewards.instructions import verify_benchmark
from rufus_core.rewards.puzzles import verify_puzzle
from rufus_core.rewards.special_judge import judge_fault
from rufus_core.types import Problem

OpenSandbox = Callable[[], CodeSandbox]


def trial_fault(problem: Problem, open_sandbox: OpenSandbox) -> str | None:
    """Why a problem that `problem_fault` lets pass can't be graded all the same; None when it can.

    Args:
        open_sandbox: called only where a record's own code is to be run.

    Raises:
        ConfigError: a benchmark of instructions isn't installed.
        InfrastructureError: no sandbox, or no worker, can be had.
        SandboxUnavailable: this machine can't isolate a record's code.
    """
    trial = TRIALS.get(problem.family)
    try:
        return (trial(problem, open_sandbox) or None) if trial else None
    except DataError as fault:
        return fault.what


def _program(problem: Problem, open_sandbox: OpenSandbox) -> str:
    tests = read_tests(problem.ground_truth)
    return judge_fault(tests, open_sandbox()) if isinstance(tests, ProgramTests) and tests.special_judge else ""


def _puzzle(problem: Problem, open_sandbox: OpenSandbox) -> str:
    truth = problem.ground_truth
    if "checker" in truth:
        return _checker(puzzle_checker(truth), open_sandbox)
    verdict = verify_puzzle(truth, truth["entry"]["answer"])
    return "" if verdict.passed else f"its own answer doesn't pass: {verdict.reason}"


def _rubrics(problem: Problem, open_sandbox: OpenSandbox) -> str:
    """A generated checker without examples can't be tried."""
    rubrics = [each for each in problem.ground_truth["rubrics"] if each["kind"] == GENERATED]
    faults = (_checker(each, open_sandbox) for each in map(rubric_checker, rubrics) if each.positive and each.negative)
    return next(filter(None, faults), "")


def _checker(checker: GeneratedChecker, open_sandbox: OpenSandbox) -> str:
    verdict = check_generated(checker, open_sandbox())
    return "" if verdict.fault is None else refused(checker, verdict)


def _instructions(problem: Problem, _open_sandbox: OpenSandbox) -> str:
    """Unknown instructions, and arguments that their checkers can't use, show with any response."""
    verify_benchmark(problem, "Any response.")
    return ""


TRIALS: dict[str, Callable[[Problem, OpenSandbox], str]] = {
    "python_program": _program,
    "puzzle": _puzzle,
    "instructions": _rubrics,
    **dict.fromkeys(("ifeval", "ifbench"), _instructions),
}
