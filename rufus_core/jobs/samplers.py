"""Who answers the problems of a screen: the policy in the engine of the run, or a model behind an endpoint."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace

from rufus_core.errors import InfrastructureError
from rufus_core.evaluation.screening import Attempts
from rufus_core.gym.limits import limits_of
from rufus_core.gym.loop import EpisodeSpec, run_episodes
from rufus_core.jobs.job import Job
from rufus_core.jobs.scores import played_stage
from rufus_core.lineage.names import step_folder
from rufus_core.ports.gym import Gym
from rufus_core.rollout.chat_sampler import ChatSampler
from rufus_core.rollout.opening import open_policy
from rufus_core.settings import ENDPOINT, FilterSettings, RLStage
from rufus_core.stages import open_mixed_gym
from rufus_core.types import Episode, Problem, Termination, Verdict, content_id

_EPISODES_AT_ONCE = 128  # of the policy; each may hold a sandbox of its own
_REQUESTS_AT_ONCE = 32  # to an endpoint

Play = Callable[[Sequence[Problem]], Iterator[tuple[Problem, Attempts]]]


@contextmanager
def sampler(job: Job, name: str) -> Iterator[Play]:
    """Plays problems `num_attempts` times each and yields each problem as soon as its attempts are over.

    Raises, while it plays:
        ConfigError: an endpoint isn't named or refuses us.
        LineageError: the policy can't be loaded.
    """
    job.use_threads()
    (stage_name, config), *_ = job.document.config["play"].items()
    stage = played_stage(config)
    with open_mixed_gym({stage_name: stage}, job.execution, job.document.name) as gym:
        if name.startswith(ENDPOINT):
            with ChatSampler(name.removeprefix(ENDPOINT), max_concurrency=_REQUESTS_AT_ONCE) as client:
                yield lambda problems: _by_chat(job, client, gym, stage, problems)
        else:
            yield lambda problems: _by_policy(job, gym, stage, problems)


def _settings(job: Job) -> tuple[int, float]:
    settings = FilterSettings.model_validate(job.document.config["filter"])
    assert settings.num_attempts is not None
    return settings.num_attempts, float(job.document.config["temperature"])


def _by_policy(job: Job, gym: Gym, stage: RLStage, problems: Sequence[Problem]) -> Iterator[tuple[Problem, Attempts]]:
    """A sample depends on the seed, its problem and its index alone, and never on what is played beside it."""
    num_attempts, temperature = _settings(job)
    candidate = job.document.config.get("candidate_step")
    folder = job.input("policy") / (step_folder(candidate) if candidate is not None else "")
    workers, seed = job.execution.rollout_workers, job.document.seed
    at_once = max(1, _EPISODES_AT_ONCE // num_attempts)
    with open_policy(job.execution, folder) as policy:
        limits = limits_of(stage, policy.context_length, training=False)
        limits = replace(limits, temperature=temperature, top_p=1.0)
        for start in range(0, len(problems), at_once):
            some = problems[start : start + at_once]
            specs = [EpisodeSpec(problem, index, seed) for problem in some for index in range(num_attempts)]
            verdicts: dict[str, list[Verdict]] = defaultdict(list)
            for trajectory in run_episodes(policy.engine, policy.chat, gym, specs, limits, workers=workers):
                verdicts[trajectory.problem_id].append(trajectory.verdict)
            for problem in some:
                yield problem, Attempts.of(verdicts[problem.id])


def _by_chat(
    job: Job, client: ChatSampler, gym: Gym, stage: RLStage, problems: Sequence[Problem]
) -> Iterator[tuple[Problem, Attempts]]:
    """Each problem as soon as it is over; several are asked at once."""
    num_attempts, temperature = _settings(job)

    def attempt(problem: Problem, index: int) -> Verdict:
        seed = int(content_id(job.document.seed, problem.id, index)[:7], 16)  # 28 bits: servers want a C int
        return _answered(client, gym, problem, stage.rollout.response_budget_tokens, temperature, seed)

    def attempts(problem: Problem) -> tuple[Problem, Attempts]:
        return problem, Attempts.of(attempt(problem, index) for index in range(num_attempts))

    with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as pool:
        futures = [pool.submit(attempts, problem) for problem in problems]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _answered(
    client: ChatSampler, gym: Gym, problem: Problem, max_tokens: int, temperature: float, seed: int
) -> Verdict:
    """The verdict of the stage's own environment on one reply."""
    try:
        reply = client.reply(problem.prompt, max_tokens=max_tokens, temperature=temperature, seed=seed)
        environment = gym.open(problem)
    except InfrastructureError as error:
        return Verdict.aborted(str(error))
    ended = Termination.TASK_COMPLETE if reply.finished else Termination.MAX_GENERATION_LENGTH
    messages = [*problem.prompt, *([reply.message] if reply.finished else [])]
    try:
        return environment.score(Episode(problem, messages, ended, num_response_tokens=reply.num_tokens))
    except InfrastructureError as error:
        return Verdict.aborted(str(error))
    finally:
        environment.cleanup()
