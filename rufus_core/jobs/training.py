"""Training steps: one stage from its parent's weights.

The artifact holds the candidates under `checkpoints/step-N`, the curves as numbers and as a picture, and every rollout.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from itertools import islice

from pydantic import TypeAdapter

from rufus_core.evaluation.curves import draw_curves
from rufus_core.jobs.backends import engines_beside_ranks, neighbours, open_rollouts, open_trainer, require_backends
from rufus_core.jobs.job import Job, Outcome
from rufus_core.jobs.problem_files import load_examples, load_problems
from rufus_core.jobs.problem_rows import read_problem_file
from rufus_core.jobs.ranks import load_launcher
from rufus_core.jobs.resume import training_state
from rufus_core.lineage.external import unchanged_file
from rufus_core.lineage.names import step_folder
from rufus_core.lineage.record import ExternalFile
from rufus_core.ports.gym import Gym
from rufus_core.ports.progress import MetricSink
from rufus_core.ports.ranks import GymActors, RankPlace
from rufus_core.rewards.usage import Prices, UsageMeter
from rufus_core.rollout.stored import StoredRollout, step_file, write_rollouts
from rufus_core.settings import DIAGNOSTIC, RLStage, SFTStage, StageSettings
from rufus_core.stages import STAGES
from rufus_core.stages.stage import GymContext
from rufus_core.training.collect import Issued
from rufus_core.training.diagnostic import Diagnostic
from rufus_core.training.monitor import Monitor, stage_totals
from rufus_core.training.ranks import ALONE, Ranks, TorchRanks, lost_ranks_recognised
from rufus_core.training.reporter import CURVES, Reporter, reported
from rufus_core.training.rl import train_rl
from rufus_core.training.sft import train_sft
from rufus_core.training.state import Unkept
from rufus_core.training.trainer import Trainer
from rufus_core.types import Json

CURVES_FIGURE = "curves.png"  # in a training's artifact


def train_stage(job: Job) -> Outcome:
    """Train from the parent's weights, or go on from the state that a dead job left; in several ranks where told so.

    Raises:
        Preempted: SIGTERM arrived; the step in progress was ended and the state saved.
        InfrastructureError: a checkpoint couldn't be written, or a rank died (RankLost); the state is the one before.
        ConfigError: ranks can't be started here.
    """
    execution = job.execution
    require_backends(execution)
    if execution.num_ranks == 1:
        with job.stoppable() as stop:
            return train_rank(job, ALONE, stop)
    launcher = load_launcher()
    with job.stoppable() as stop:
        return launcher.run(
            partial(_train_as_rank, job),
            size=execution.num_ranks,
            cpus=execution.threads,
            address=execution.ray_address,
            resources=execution.ray_resources,
            stop=stop,
            together=neighbours(execution),
            engines=engines_beside_ranks(job, stage_settings(job)),
            gym=_gym_actors(job),
        )


def _train_as_rank(job: Job, place: RankPlace, stop: threading.Event) -> Outcome:
    with lost_ranks_recognised():
        return train_rank(job, TorchRanks(place), stop, place.engines, place.gym)


def train_rank(
    job: Job, ranks: Ranks, stop: threading.Event, engines: Sequence[str] = (), gym: Gym | None = None
) -> Outcome:
    """What every rank does. Rank 0 alone writes and reports, and its outcome counts.

    `engines` are the addresses of rollout engines that were started beside the ranks, and `gym` plays their
    environments; without it each rank plays its own.
    """
    job.use_threads()
    stage = stage_settings(job)
    assert stage.run.steps is not None

    def save(step: int) -> None:
        trainer.save_policy(job.output / step_folder(step))

    with ExitStack() as stack:
        state = training_state(job, stage.run.steps, stop, ranks)
        trainer, meter = open_trainer(job.execution, job.input("parent"), stage, ranks), UsageMeter()
        sink = _sink(job, stage.run.steps, meter, stack) if ranks.rank == 0 else _Nowhere()
        if isinstance(stage, SFTStage):
            examples = load_examples(job.input("problems") / "examples.jsonl")
            ids = trainer.chat.example_ids([(e.messages, e.supervise, e.tools) for e in examples])
            train_sft(trainer, ids, stage, job.document.seed, sink, save, state)
        else:
            _train_rl(job, stage, trainer, sink, meter, save, state, engines, gym)
    if ranks.rank:
        return Outcome({}, step=stage.run.steps)
    forks = _forks(stage)
    draw_curves(job.output / CURVES, job.output / CURVES_FIGURE, forks)
    last = {k: v for k, v in sink.last.items() if not k.endswith("seconds")}
    begun = {f"phases/{n}/from_step": float(step) for n, step in enumerate(forks, start=1)}
    totals = stage_totals(reported(job.output / CURVES))
    return Outcome(last | begun | totals, step=stage.run.steps, external=_external(job))


def _forks(stage: SFTStage | RLStage) -> list[int]:
    """The step at which each phase began, of those that came to be (CRL-T4); `settings.phases` says what changed."""
    phases = stage.phases if isinstance(stage, RLStage) else ()
    return [phase.from_step for phase in phases if phase.from_step <= (stage.run.steps or 0)]


def stage_settings(job: Job) -> SFTStage | RLStage:
    """The stage's settings as far as training depends on them; what it doesn't is filled in neutrally."""
    config = job.document.config
    rest = {"kind": config["kind"], "title": "", "parent": "parent", "evaluation": {"targets": []}}
    settings = dict(config["settings"])
    settings["run"] = {**settings["run"], "select": {"rule": "last"}}
    data: dict[str, Json] = {"data" if config["kind"] == "sft" else "problems": {"sources": {}}}
    adapter: TypeAdapter[SFTStage | RLStage] = TypeAdapter(StageSettings)
    return adapter.validate_python({**rest, **settings, **data})


def _sink(job: Job, steps: int, meter: UsageMeter, stack: ExitStack) -> _Both:
    """Where metrics go; what was kept of them is told again to whoever watches."""
    shown = _Watched(stack.enter_context(job.report(steps)), meter)
    for step, metrics in reported(job.output / CURVES):
        shown.log(step, metrics)
    return _Both(stack.enter_context(Reporter(job.output / CURVES, steps)), shown)


def _train_rl(
    job: Job,
    stage: RLStage,
    trainer: Trainer,
    sink: _Both | _Nowhere,
    meter: UsageMeter,
    save: Callable[[int], None],
    state: Unkept,
    engines: Sequence[str],
    gym: Gym | None,
) -> None:
    diagnostic = _read_diagnostic(job)
    problems = load_problems(job.input("problems"), "train")

    def keep(step: int, issued: Sequence[Issued]) -> None:  # whole before the state notes the file's size
        if trainer.ranks.rank == 0:
            write_rollouts(step_file(job.output, step), [_stored(step, one) for one in issued])

    with _gym(job, gym, meter) as opened, open_rollouts(job, stage, trainer, engines) as engine:
        workers, seed = job.execution.rollout_workers, job.document.seed
        train_rl(trainer, engine, problems, opened, stage, seed, sink, save, keep, workers, state, diagnostic)


def _gym(job: Job, placed: Gym | None, meter: UsageMeter) -> AbstractContextManager[Gym]:
    """The stage's gym: the one beside the ranks, that of actors of its own, or here."""
    if placed is not None:
        return nullcontext(placed)
    if actors := _gym_actors(job):
        return load_launcher().gym(actors, job.execution.ray_address)
    return _open_gym(job, meter)


def _gym_actors(job: Job) -> GymActors | None:
    """What judges are asked there is counted by nobody."""
    execution = job.execution
    if job.document.config["kind"] == "sft" or not execution.gym_actors:
        return None
    return GymActors(partial(_open_gym_there, job), execution.gym_actors, execution.threads)


def _open_gym_there(job: Job) -> Gym:
    return _open_gym(job, UsageMeter())


def _open_gym(job: Job, meter: UsageMeter) -> Gym:
    assert job.document.stage is not None
    settings = stage_settings(job)
    assert isinstance(settings, RLStage)
    reward_model = job.input("reward_model") if "reward_model" in job.document.inputs else None
    context = GymContext(
        settings=settings,
        training=True,
        execution=job.execution,
        label=job.document.name,
        reward_model=reward_model,
        meter=meter,
    )
    return STAGES[job.document.stage].open_gym(context)


def _read_diagnostic(job: Job) -> Diagnostic | None:
    config = job.document.config.get(DIAGNOSTIC)
    if config is None:
        return None
    assert job.document.stage is not None
    families = STAGES[job.document.stage].families
    problems = islice(read_problem_file(job.document.external[DIAGNOSTIC], DIAGNOSTIC, families), config["num_prompts"])
    return Diagnostic(list(problems), config["interval_steps"])


def _external(job: Job) -> dict[str, ExternalFile]:
    """The diagnostic's file, if it is still what the step's identity says."""
    files = job.document.external
    return {role: unchanged_file(path, job.document.config[role]["sha256"]) for role, path in files.items()}


def _stored(step: int, issued: Issued) -> StoredRollout:
    trajectory = issued.trajectory
    episode, verdict = trajectory.episode, trajectory.verdict
    return StoredRollout(
        step=step,
        group=issued.group,
        round=issued.round,
        sample_index=trajectory.sample_index,
        problem_id=trajectory.problem_id,
        family=episode.problem.family,
        source=episode.problem.source,
        fate=issued.fate,
        why=issued.why,
        score=verdict.score,
        reward=trajectory.reward,
        advantage=issued.advantage,
        verdict=verdict.kind,
        reason=verdict.reason,
        extracted=verdict.extracted,
        reward_parts=verdict.parts,
        termination=episode.termination,
        num_calls=episode.num_calls,
        num_successful_calls=episode.num_successful_calls,
        num_malformed_calls=episode.num_malformed_calls,
        num_response_tokens=episode.num_response_tokens,
        num_final_tokens=episode.num_final_tokens,
        weight_version=trajectory.weight_version,
        messages=tuple(episode.messages),
        token_ids=trajectory.token_ids,
        loss_mask=trajectory.loss_mask,
        logprobs=trajectory.logprobs,
        routed_experts=trajectory.routed_experts,
    )


class _Watched:
    """Tells whoever watches of each step, of what its judge was asked, and what there is to know of it."""

    def __init__(self, report: Reporter, meter: UsageMeter) -> None:
        self._report, self._monitor, self._meter = report, Monitor(), meter
        self._prices = Prices.from_environment()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._report.log(step, {**metrics, **self._meter.since_last().metrics(self._prices)})
        for warning in self._monitor.warnings(step, metrics):
            self._report.warn(warning)


class _Nowhere:
    """The metrics of a rank that doesn't report."""

    def __init__(self) -> None:
        self.last: dict[str, float] = {}

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...


class _Both:
    """Sends metrics to the artifact's own file, where they are part of its bytes, and to whoever watches.

    What the clock says stays out of the artifact: equal runs write equal bytes.
    """

    def __init__(self, kept: Reporter, shown: MetricSink) -> None:
        self._kept, self._shown = kept, shown
        self.last: dict[str, float] = {}

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.last = dict(metrics)
        self._kept.log(step, {k: v for k, v in metrics.items() if not k.endswith("seconds")}, timed=False)
        self._shown.log(step, metrics)
