"""Running a recipe's graph, and what `rufus` asks of whoever does."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from rufus_core.ports.progress import StepProgress


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """How a step of the recipe ended. `digest` and `record_id` are its artifact's, when it was reused or completed.

    `joined`: an earlier run had started its job. `note` is for a step that was made anew although intact, or whose
    job was told to stop and kept its state.
    """

    status: Literal["reused", "completed", "failed", "cancelled"]
    digest: str | None = None
    record_id: str | None = None
    error: str = ""
    log: Path | None = None
    joined: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """Outcomes by step name; a step that was never reached is absent."""

    steps: Mapping[str, StepOutcome]
    interrupted: bool = False


class RunObserver(Protocol):
    """Hears what a run does. Called from several threads at once when steps run side by side."""

    def step_started(self, step: str) -> None:
        """A job runs for this step (a reused step never starts)."""
        ...

    def step_progressed(self, step: str, progress: StepProgress) -> None: ...

    def step_finished(self, step: str, outcome: StepOutcome) -> None: ...

    def warned(self, message: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Check:
    """One line of `rufus doctor`: what is there, what it is for, and how to get it."""

    name: str
    ok: bool
    detail: str
    required: bool = True
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that isn't what a record says: where, what, and the command to type next."""

    where: str
    what: str
    next: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what} ({self.next})"


@dataclass(frozen=True, slots=True)
class PagesCheck:
    """How a home's pages compare with its records; `not_checked` names what wasn't there to be compared, and why."""

    differences: tuple[Difference, ...]
    not_checked: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Deployed:
    """What became of one thing on the server that runs are started from."""

    kind: Literal["work pool", "limit", "deployment", "automation"]
    name: str
    action: Literal["created", "updated", "unchanged", "removed", "checked"]


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What MLflow was written anew with: how many records, where, and where the old database lies now."""

    num_records: int
    place: str
    kept: Path | None


RecipeT = TypeVar("RecipeT", contravariant=True)
StepT = TypeVar("StepT", contravariant=True)


class Orchestrator(Protocol[RecipeT, StepT]):
    """Runs a recipe's graph. Found through the entry point group `rufus.orchestrator`, for the core can't import it."""

    def run(self, recipe: RecipeT, graph: Sequence[StepT], home: Path, observer: RunObserver) -> RunOutcome:
        """Run the steps in order, reusing what is intact. Ctrl-C ends the running jobs and is told in the outcome."""
        ...

    def serve_pages(self, home: Path, prefect_port: int, mlflow_port: int) -> AbstractContextManager[Mapping[str, str]]:
        """Serve the run's pages: address by name. Raises PortInUse."""
        ...

    def verify_pages(self, home: Path, only: Collection[str] | None, prefect: bool) -> PagesCheck:
        """Compare what Prefect and MLflow show with the records of a home's store; of `only` these ids where given.

        Asking Prefect starts its server where none is named by PREFECT_API_URL.
        """
        ...

    def deploy(self, file: Path, names: Collection[str], check: bool) -> list[Deployed]:
        """Check the files of deployments; without `check`, also deploy them, or only `names`, and read them back.

        Raises ConfigError, with the line of each fault, and where there is no server to deploy to.
        """
        ...

    def rebuild_mlflow(self, home: Path, experiment: str, warn: Callable[[str], None]) -> Rebuilt:
        """Write MLflow anew from a home's records: its database, or the empty MLflow that the environment names.

        `warn` hears of each record that can't be read. Raises RufusError while a run writes there.
        """
        ...

    def checks(self) -> list[Check]: ...
