"""The recipe as a Prefect flow: one task run for each step of its graph."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.exceptions import TerminationSignal
from prefect.futures import PrefectFuture
from prefect.states import Cancelled, Completed, Failed
from prefect.task_runners import ThreadPoolTaskRunner

from flows.schedule import by_urgency, fitting, num_cores, startable
from rufus_core.errors import ConfigError
from rufus_core.lineage.home import rufus_home
from rufus_core.ports import RunObserver, RunOutcome, StepOutcome, StepProgress
from rufus_core.recipe.graph import Step, build_graph
from rufus_core.recipe.load import load_recipe
from rufus_core.recipe.until import up_to
from rufus_core.settings import ExecutionSettings, Recipe
from tasks.processes import ProcessId
from tasks.spawner import Spawner
from tasks.steps import StepRunner
from tasks.tracking import Tracker

FLOW = "rufus-recipe"
THREADS = ThreadPoolTaskRunner(max_workers=64)  # they wait for jobs; `fitting` says how many of these run


@flow(name=FLOW, flow_run_name="{recipe} on {profile}", task_runner=THREADS)
def rufus_recipe(
    recipe: str = "rufus_air",
    profile: str = "cpu",
    overrides: list[str] | None = None,
    home: str | None = None,
    until: str | None = None,
) -> State[None]:
    """The recipe as a deployment runs it: from names alone.

    Raises:
        ConfigError: neither `home` nor RUFUS_HOME is set. A worker starts flows in a folder that it deletes later.
    """
    if not home and not os.environ.get("RUFUS_HOME"):
        raise ConfigError(
            "this worker doesn't know where runs live", where="home", hint="set RUFUS_HOME for the worker"
        )
    settings = load_recipe(recipe, profile, overrides or [])
    graph = up_to(build_graph(settings), until)
    folder = rufus_home(Path(home) if home else None)
    return _flow_state(run_tracked(settings, graph, folder, LogObserver()))


def run_recipe(
    recipe: Recipe, graph: Sequence[Step], home: Path, observer: RunObserver, command: tuple[str, ...] | None = None
) -> RunOutcome:
    """Run a graph that the caller built as one flow run.

    `command` carries out a job document; by default a fork of a warm server does.
    """
    outcomes: list[RunOutcome] = []

    def body(recipe: str, profile: str, seed: int, process: str) -> State[None]:  # noqa: ARG001 (shown by Prefect)
        outcomes.append(run_tracked(settings, graph, home, observer, command))
        return _flow_state(outcomes[0])

    settings = recipe
    here = flow(body, name=FLOW, flow_run_name="{recipe} on {profile}", task_runner=THREADS)
    state = here(recipe.name, recipe.profile, recipe.seed, str(ProcessId.mine()), return_state=True)
    if not outcomes:
        state.result()  # raises what kept the run from its end
    return outcomes[0]


def run_tracked(
    recipe: Recipe, graph: Sequence[Step], home: Path, observer: RunObserver, command: tuple[str, ...] | None = None
) -> RunOutcome:
    """Run a graph inside a flow run, with an MLflow run around it."""
    tracker = Tracker(home, recipe.name, observer.warned)
    params = recipe.model_dump(mode="json", include={"name", "profile", "seed", "base", "execution"})
    tracker.run_started(f"{recipe.name} on {recipe.profile}", params)
    status, tags = "FAILED", {}
    try:
        with Spawner(recipe.execution.threads, command) as spawner:
            runner = StepRunner(home, recipe.execution, tracker, observer, spawner)
            outcome = run_graph(graph, runner, recipe.execution)
        status = {"failed": "FAILED", "cancelled": "KILLED"}.get(verdict(outcome), "FINISHED")
        tags = {f"rufus.{word}": str(count) for word, count in counts(outcome).items()}
        return outcome
    finally:
        tracker.run_finished(status, tags)


def run_graph(graph: Sequence[Step], runner: StepRunner, execution: ExecutionSettings) -> RunOutcome:
    """Run every step after its inputs, side by side as far as the cores carry, the most urgent first.

    After a failure nothing new starts and what runs is finished; after Ctrl-C what runs is cancelled.
    """
    outcomes: dict[str, StepOutcome] = {}
    futures: dict[str, PrefectFuture[None]] = {}
    ended: SimpleQueue[str] = SimpleQueue()

    @task(cache_policy=NO_CACHE)
    def carry_out(name: str) -> State[None]:
        try:
            outcomes[name] = runner.run(by_name[name])
            return _task_state(outcomes[name])
        finally:
            ended.put(name)

    def threads_of(step: Step) -> int:
        return execution.for_kind(step.kind).threads

    cores = num_cores()
    by_name = {step.name: step for step in by_urgency(graph)}
    waiting, running = dict(by_name), set[str]()
    try:
        while True:
            busy = sum(threads_of(by_name[name]) for name in running)
            for step in fitting(startable(waiting, outcomes), threads_of, busy, cores):
                del waiting[step.name]
                running.add(step.name)
                made_from = [futures[name] for name in step.inputs.values()]
                # Prefect asks the server for limits of each new set of tags, 0.1 to 0.5 s: so no tag for the stage.
                run = carry_out.with_options(name=step.title, task_run_name=step.title, tags={step.kind})
                futures[step.name] = run.submit(step.name, wait_for=made_from)
            if not running:
                return RunOutcome(outcomes)
            name = ended.get()
            running.discard(name)
            futures[name].wait()
            if name not in outcomes:
                futures[name].result()  # raises the bug
    except (KeyboardInterrupt, TerminationSignal):  # Ctrl-C, SIGTERM
        runner.cancelled.set()
        for name in running:
            futures[name].wait()
        return RunOutcome(outcomes, interrupted=True)
    except BaseException:
        runner.cancelled.set()
        raise


def counts(outcome: RunOutcome) -> dict[str, int]:
    return dict(Counter(step.status for step in outcome.steps.values()))


def verdict(outcome: RunOutcome) -> str:
    if outcome.interrupted:
        return "cancelled"
    return "failed" if "failed" in counts(outcome) else "completed"


def _task_state(outcome: StepOutcome) -> State[None]:
    if outcome.status == "reused":
        return Completed(name="Reused", message=f"intact in the store: {outcome.digest}")
    if outcome.status == "completed":
        return Completed(message=f"published {outcome.digest}")
    if outcome.status == "cancelled":
        return Cancelled(message="its job was ended; nothing was published")
    return Failed(message=f"{outcome.error} (output: {outcome.log})")


def _flow_state(outcome: RunOutcome) -> State[None]:
    message = ", ".join(f"{count} {word}" for word, count in counts(outcome).items())
    match verdict(outcome):
        case "cancelled":
            return Cancelled(message=message)
        case "failed":
            return Failed(message=message)
        case _:
            reused = all(step.status == "reused" for step in outcome.steps.values())
            return Completed(name="Reused" if reused else "Completed", message=message)


class LogObserver:
    """Tells a flow run's log what happens, where no terminal listens."""

    def __init__(self) -> None:
        self._logger = get_run_logger()

    def step_started(self, step: str) -> None:
        self._logger.info("%s: started", step)

    def step_progressed(self, step: str, progress: StepProgress) -> None:
        """Curves are in MLflow."""

    def step_finished(self, step: str, outcome: StepOutcome) -> None:
        self._logger.info("%s: %s %s", step, outcome.status, outcome.error)

    def warned(self, message: str) -> None:
        self._logger.warning(message)
