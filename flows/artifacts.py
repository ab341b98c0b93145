"""What a run leaves on Prefect's pages: progress of its steps, the stage table, links, and where checkpoints come from.

A run that made nothing leaves nothing, so that it stays quick.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import httpx
from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.exceptions import PrefectException

from rufus_core.errors import RufusError
from rufus_core.evaluation.collect import collect_rows
from rufus_core.evaluation.table import StageRow
from rufus_core.lineage.home import open_store
from rufus_core.lineage.record import CHECKPOINT_KINDS, Decision, Record
from rufus_core.ports.orchestration import RunObserver, RunOutcome, StepOutcome
from rufus_core.ports.progress import StepProgress
from rufus_core.recipe.step import Step

EVERY_SECONDS = 10.0  # between two updates of a step's progress; a shorter step has none
MLFLOW_PAGE = "http://127.0.0.1:5000"  # where `rufus ui` serves it
SHORT = 12  # digits of a digest


class ShownProgress:
    """An observer between a run and the caller's: it also shows the progress of long steps in Prefect."""

    def __init__(self, observer: RunObserver) -> None:
        self._observer = observer
        self._shown: dict[str, float] = {}  # step -> when it started, or was shown last
        self._artifacts: dict[str, UUID] = {}

    def step_started(self, step: str) -> None:
        self._shown[step] = time.monotonic()
        self._observer.step_started(step)

    def step_progressed(self, step: str, progress: StepProgress) -> None:
        self._observer.step_progressed(step, progress)
        if progress.step is None or not progress.total:
            return
        now = time.monotonic()
        if now - self._shown[step] >= EVERY_SECONDS or (step in self._artifacts and progress.step == progress.total):
            self._shown[step] = now
            self._show(step, 100.0 * progress.step / progress.total, f"{step}: {progress.step} of {progress.total}")

    def step_finished(self, step: str, outcome: StepOutcome) -> None:
        self._observer.step_finished(step, outcome)

    def warned(self, message: str) -> None:
        self._observer.warned(message)

    def _show(self, step: str, percent: float, text: str) -> None:
        with _warned(self._observer):
            if step in self._artifacts:
                update_progress_artifact(self._artifacts[step], percent, text)
            else:
                self._artifacts[step] = create_progress_artifact(percent, description=text)


@contextmanager
def _warned(observer: RunObserver) -> Iterator[None]:
    """A page that can't be written stops nothing: no outage, and no damaged scores of another run in the store."""
    try:
        yield
    except (httpx.HTTPError, PrefectException, RufusError) as error:
        observer.warned(f"Prefect's page can't be written: {error}")


def show_results(graph: Sequence[Step], outcome: RunOutcome, home: Path, observer: RunObserver) -> None:
    """The stage table, the lineage page and links, in the current flow run, if it made anything."""
    if not any(step.status == "completed" for step in outcome.steps.values()):
        return
    store = open_store(home)
    found = (store.get(outcome.steps[step.name].record_id or "") for step in graph if step.name in outcome.steps)
    records = [record for record in found if record is not None]
    with _warned(observer):
        create_markdown_artifact(lineage_page(records), "rufus-lineage", "Where each checkpoint of this run comes from")
        place = store.root.absolute()  # as text, for a browser opens no file from a server's page
        create_link_artifact(place.as_uri(), str(place), "rufus-store", "Artifacts and their records")
        create_link_artifact(MLFLOW_PAGE, "MLflow", "rufus-mlflow", "Curves and models, while `rufus ui` serves them")
        if rows := table_rows(collect_rows(store)):
            create_table_artifact(rows, "rufus-stages", "Percent of each benchmark (change)")


def table_rows(rows: Sequence[StageRow]) -> list[dict[str, str]]:
    """The stage table as Prefect shows tables: a mapping for each row."""
    names = list(dict.fromkeys(name for row in rows for name in row.metrics))
    return [
        {"stage": row.stage, "digest": row.digest[:SHORT], **{name: _cell(row, name) for name in names}} for row in rows
    ]


def lineage_page(records: Sequence[Record]) -> str:
    """Markdown: a section for each checkpoint among the records, in their order."""
    by_id = {record.id: record for record in records}
    sections = [_section(record, by_id) for record in records if record.kind in CHECKPOINT_KINDS]
    made = f"{len(records)} artifacts, {len(sections)} of them checkpoints."
    return "\n\n".join(["# Lineage", made, *sections]) + "\n"


def _section(record: Record, by_id: Mapping[str, Record]) -> str:
    trained = record.inputs.get("training")
    training = by_id.get(trained.record_id) if trained else None
    made_from = {**record.inputs, **(training.inputs if training else {})}  # the parent is what the training read
    inputs = [f"- {role}: `{each.record_id}`, digest `{each.digest[:SHORT]}`" for role, each in made_from.items()]
    data = by_id.get(made_from["problems"].record_id) if "problems" in made_from else None
    external = {**record.external, **(data.external if data else {})}
    files = [f"- file {role}: `{file.path}`, SHA-256 `{file.sha256[:SHORT]}`" for role, file in external.items()]
    why = [f"- decision: {_decided(record.decision)}"] if record.decision else []
    lines = [f"## {record.stage or record.kind}", "", f"- digest: `{record.digest}`", *inputs, *files, *why]
    return "\n".join([*lines, f"- all of it: `rufus trace {record.digest[:SHORT]}`"])


def _cell(row: StageRow, name: str) -> str:
    cell = row.metrics.get(name)
    if cell is None or cell.mean is None:
        return ""
    change = "" if cell.delta is None else f" ({100 * cell.delta:+.1f}{'*' if cell.significant else ''})"
    return f"{100 * cell.mean:.1f}{change}"


def _decided(decision: Decision) -> str:
    metric = f" by {decision.metric}" if decision.metric else ""
    candidates = ", ".join(
        str(each.step) if each.value is None else f"{each.step} ({each.value:.4g})" for each in decision.candidates
    )
    among = f", among steps {candidates}" if len(decision.candidates) > 1 else ""
    return f"{decision.rule}{metric}: step {decision.chosen_step}{among}"
