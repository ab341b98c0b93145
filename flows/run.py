"""Runs a graph of steps inside a flow run: one task run for each step, an MLflow run around all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.context import TaskRunContext
from prefect.exceptions import TerminationSignal
from prefect.futures import PrefectFuture
from prefect.states import Cancelled, Completed, Failed
from prefect.task_runners import ThreadPoolTaskRunner

from flows.artifacts import ShownProgress, show_results
from flows.limits import gpus_held, job_resources
from flows.recorded import await_recorded
from flows.schedule import by_urgency, fitting, num_cores, startable
from rufus_core.errors import InfrastructureError
from rufus_core.lineage.claims import tidy
from rufus_core.lineage.home import open_store
from rufus_core.lineage.process import ProcessId
from rufus_core.ports.orchestration import RunObserver, RunOutcome, StepOutcome
from rufus_core.recipe.step import Step
from rufus_core.settings import ExecutionSettings, Recipe
from tasks.aliases import point_aliases
from tasks.launchers import open_launcher
from tasks.steps import StepRunner
from tasks.tracking import Tracker

FLOW = "rufus-recipe"
THREADS = ThreadPoolTaskRunner(max_workers=64)  # they wait for jobs; `fitting` says how many of these run
GO_ON = "no worker can retry this run, for it has no deployment: the same rufus command goes on"


def run_recipe(
    recipe: Recipe, graph: Sequence[Step], home: Path, observer: RunObserver, command: tuple[str, ...] | None = None
) -> RunOutcome:
    """Run a graph that the caller built as one flow run.

    `command` carries out a job document; by default a fork of a warm server does.
    """
    outcomes: list[RunOutcome] = []

    def body(recipe: str, profile: str, seed: int, process: str) -> State[None]:  # noqa: ARG001 (shown by Prefect)
        outcomes.append(run_tracked(settings, graph, home, observer, command))
        return flow_state(outcomes[0], GO_ON)

    settings = recipe
    here = flow(body, name=FLOW, flow_run_name="{recipe} on {profile}", task_runner=THREADS)
    state = here(recipe.name, recipe.profile, recipe.seed, str(ProcessId.mine()), return_state=True)
    if not outcomes:
        state.result()  # raises what kept the run from its end
    flow_run_id = state.state_details.flow_run_id
    if flow_run_id is not None and not await_recorded(flow_run_id, len(outcomes[0].steps)):
        observer.warned("Prefect's page may miss how some steps ended; the store holds what they made")
    return outcomes[0]


def run_tracked(
    recipe: Recipe,
    graph: Sequence[Step],
    home: Path,
    observer: RunObserver,
    command: tuple[str, ...] | None = None,
    keep_going: bool = False,
) -> RunOutcome:
    """Run a graph inside a flow run, with an MLflow run around it, and show in Prefect what it made."""
    store = open_store(home)
    tracker = Tracker(home, recipe.name, observer.warned)
    params = recipe.model_dump(mode="json", include={"name", "profile", "seed", "base", "execution"})
    tracker.run_started(f"{recipe.name} on {recipe.profile}", params)
    status, tags = "FAILED", {}

    @contextmanager
    def around(step: Step) -> Iterator[Mapping[str, str]]:
        with gpus_held(recipe, step, runner.folder(step), runner.cancelled, observer.warned):
            yield _links()

    try:
        with open_launcher(recipe.execution, command) as launcher:
            shown, resources = ShownProgress(observer), partial(job_resources, recipe)
            runner = StepRunner(home, recipe.execution, tracker, shown, launcher, resources, around)
            runner.spare(graph)
            outcome = run_graph(graph, runner, recipe.execution, keep_going)
        tidy(store)  # what the last jobs left, if they were killed
        point_aliases(recipe, graph, outcome, store, tracker)
        status = {"failed": "FAILED", "cancelled": "KILLED"}.get(verdict(outcome), "FINISHED")
        tags = {f"rufus.{word}": str(count) for word, count in counts(outcome).items()}
    finally:
        tracker.run_finished(status, tags)
    show_results(graph, outcome, home, observer)
    return outcome


def run_graph(
    graph: Sequence[Step], runner: StepRunner, execution: ExecutionSettings, keep_going: bool = False
) -> RunOutcome:
    """Run every step after its inputs, side by side as far as the cores carry, the most urgent first.

    After a failure what runs is finished, and nothing new starts; with `keep_going` only what needs the failed step
    doesn't. After Ctrl-C what runs is cancelled.
    """
    outcomes: dict[str, StepOutcome] = {}
    futures: dict[str, PrefectFuture[None]] = {}
    ended: SimpleQueue[str] = SimpleQueue()

    @task(cache_policy=NO_CACHE)
    def carry_out(name: str) -> State[None]:
        outcomes[name] = runner.run(by_name[name])
        return _task_state(outcomes[name])

    def threads_of(step: Step) -> int:
        return execution.for_step(step.kind, step.compute).cores

    cores = num_cores()
    by_name = {step.name: step for step in by_urgency(graph)}
    waiting, running = dict(by_name), set[str]()
    try:
        while True:
            busy = sum(threads_of(by_name[name]) for name in running)
            for step in fitting(startable(waiting, outcomes, keep_going), threads_of, busy, cores):
                del waiting[step.name]
                running.add(step.name)
                made_from = [futures[name] for name in step.inputs.values()]
                # No tags: for each new set Prefect asks the server for limits, and hangs where that dies meanwhile.
                run = carry_out.with_options(name=step.title, task_run_name=step.title)
                futures[step.name] = run.submit(step.name, wait_for=made_from)
                # Also where Prefect fails before the step's own code is reached.
                futures[step.name].add_done_callback(partial(_put, ended, step.name))
            if not running:  # a job that somebody else stopped ends the run as Ctrl-C does
                return RunOutcome(outcomes, interrupted="cancelled" in {o.status for o in outcomes.values()})
            name = ended.get()
            running.discard(name)
            futures[name].wait()
            if name not in outcomes:
                futures[name].result()  # raises the bug, or what kept Prefect from running the step
                raise InfrastructureError(f"Prefect ended {name} without running it: {futures[name].state.message}")
    except (KeyboardInterrupt, TerminationSignal):  # Ctrl-C, SIGTERM
        try:
            runner.cancelled.set()
            _wait_for(futures[name] for name in running)
        except (KeyboardInterrupt, TerminationSignal):  # the second one, however soon it comes
            runner.at_once.set()
            runner.cancelled.set()
            _wait_for(futures[name] for name in running)
        return RunOutcome(outcomes, interrupted=True)
    except BaseException:
        runner.cancelled.set()
        raise


def _put(ended: SimpleQueue[str], name: str, _future: PrefectFuture[None]) -> None:
    ended.put(name)


def _wait_for(futures: Iterable[PrefectFuture[None]]) -> None:
    for future in futures:
        future.wait()


def counts(outcome: RunOutcome) -> dict[str, int]:
    return dict(Counter(step.status for step in outcome.steps.values()))


def verdict(outcome: RunOutcome) -> str:
    if outcome.interrupted:
        return "cancelled"
    return "failed" if "failed" in counts(outcome) else "completed"


def flow_state(outcome: RunOutcome, go_on: str = "") -> State[None]:
    """What the page says of a flow run. `go_on` is added where there is something to go on with.

    The reason of the first failure comes first, for the page cuts a message short and counts the steps elsewhere.
    """
    message = ", ".join(f"{count} {word}" for word, count in counts(outcome).items())
    failed = [f"{name}: {step.error}" for name, step in outcome.steps.items() if step.status == "failed"]
    unfinished = "; ".join([*failed[:1], message, *([go_on] if go_on else [])])
    match verdict(outcome):
        case "cancelled":
            return Cancelled(message=unfinished)
        case "failed":
            return Failed(message=unfinished)
        case _:
            reused = all(step.status == "reused" for step in outcome.steps.values())
            return Completed(name="Reused" if reused else "Completed", message=message)


def _task_state(outcome: StepOutcome) -> State[None]:
    match outcome.status:
        case "reused":
            return Completed(name="Reused", message=f"intact in the store: {outcome.digest}")
        case "completed" if outcome.joined:
            return Completed(name="Joined", message=f"its job lived already; it published {outcome.digest}")
        case "completed":
            return Completed(message=f"published {outcome.digest}")
        case "cancelled" if outcome.note:
            return Cancelled(name="Preempted", message=outcome.note)
        case "cancelled":
            return Cancelled(message="its job was ended; nothing was published")
        case _:
            return Failed(message=f"{outcome.error} (output: {outcome.log})")


def _links() -> dict[str, str]:
    """Which runs of Prefect the current step is."""
    context = TaskRunContext.get()
    assert context is not None
    run = context.task_run
    return {"prefect.flow_run": str(run.flow_run_id), "prefect.task_run": str(run.id)}
