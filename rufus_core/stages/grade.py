"""Grading responses that were made elsewhere, by the verifiers that the stages train with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from rufus_core.data.answers import Answer
from rufus_core.errors import DataError, InfrastructureError
from rufus_core.ports.gym import Gym
from rufus_core.settings import ExecutionSettings, RLStage, StageSettings
from rufus_core.stages import STAGE_OF_FAMILY, open_mixed_gym
from rufus_core.types import Episode, Message, Termination, Verdict


def grade(
    answers: Sequence[Answer],
    settings: Mapping[str, StageSettings],
    *,
    execution: ExecutionSettings,
    on_graded: Callable[[int], None] = lambda _: None,
) -> list[Verdict]:
    """A verdict for each answer, in order. `on_graded` hears how many there are.

    Args:
        settings: of the stages that the answers' families belong to, by name.
        execution: where code runs, and how many answers are graded at once.

    Raises:
        DataError: a family that no stage has, or one whose episodes can't be judged by a text alone.
        SandboxUnavailable: code is to be graded, and this machine can't isolate it.
    """
    stages = {_stage_of(answer) for answer in answers}
    used = {name: stage for name, stage in settings.items() if name in stages and isinstance(stage, RLStage)}
    threads = ThreadPoolExecutor(execution.rollout_workers)
    with open_mixed_gym(used, execution, "grade") as gym, threads:
        verdicts = []
        for verdict in threads.map(lambda answer: _verdict(gym, answer), answers):
            verdicts.append(verdict)
            on_graded(len(verdicts))
        return verdicts


def _stage_of(answer: Answer) -> str:
    family = answer.problem.family
    if family not in STAGE_OF_FAMILY:
        known = ", ".join(sorted(STAGE_OF_FAMILY))
        raise DataError(f"no verifier for the family {family!r}", where=answer.where, hint=f"one of {known}")
    return STAGE_OF_FAMILY[family]


def _verdict(gym: Gym, answer: Answer) -> Verdict:
    message = Message(role="assistant", content=answer.response)
    episode = Episode(answer.problem, [*answer.problem.prompt, message], Termination.TASK_COMPLETE)
    try:
        environment = gym.open(answer.problem)
    except InfrastructureError as error:
        return Verdict.aborted(str(error))
    except DataError as error:
        error.where = answer.where
        raise
    try:
        if environment.tools:
            what = f"a response to the family {answer.problem.family!r} is what its tools leave, not a text"
            raise DataError(what, where=answer.where, hint="play it with `rufus eval`")
        return environment.score(episode)
    except InfrastructureError as error:
        return Verdict.aborted(str(error))
    finally:
        environment.cleanup()
