"""What is checked before a run starts, so that it doesn't fail an hour later."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from rufus_core.data.sources import read_conversations
from rufus_core.errors import InfrastructureError
from rufus_core.jobs.filters import SCHEMA
from rufus_core.jobs.problem_rows import read_problem_file
from rufus_core.jobs.ranks import load_launcher
from rufus_core.recipe.step import Step
from rufus_core.sandbox.placement import require_sandbox
from rufus_core.settings import Recipe, SFTStage

MIN_FREE_BYTES = 1 << 30


def preflight(recipe: Recipe, graph: Sequence[Step], home: Path) -> None:
    """Check what the steps of `graph` need.

    Raises:
        SandboxUnavailable: a policy's code can't be isolated here.
        ConfigError: training in several processes is wanted, and Ray isn't installed; or microVMs are, and their
            client, key or template is missing.
        DataError: a data file of the user's has a row that can't be used.
        InfrastructureError: the disk is nearly full, or the service of microVMs doesn't answer.
    """
    require_sandbox(recipe.execution)
    if any(recipe.execution.for_step(step.kind, step.compute).num_ranks > 1 for step in graph):
        load_launcher()
    for step in graph:
        if step.kind == "problems" and step.stage:
            _read_files(recipe, step.stage)
    _require_space(graph, home)


def _read_files(recipe: Recipe, stage_name: str) -> None:
    """Read every row of a stage's files once."""
    stage = recipe.stages[stage_name]
    settings = stage.data if isinstance(stage, SFTStage) else stage.problems
    for name, source in settings.sources.items():
        if source.path is None:
            continue
        if isinstance(stage, SFTStage):
            rows = read_conversations(source.path, name, source.category or "general_chat", source.format)
            sum(1 for _ in rows)
        else:
            from rufus_core.stages import STAGES  # torch

            families, drops = STAGES[stage_name].families, SCHEMA in settings.filters
            sum(1 for _ in read_problem_file(source.path, name, families, on_fault=_pass_over if drops else None))


def _pass_over(_line: str, _reason: str) -> None:
    """The filter `schema` drops such rows, and counts them."""


def _require_space(graph: Sequence[Step], home: Path) -> None:
    """Each training keeps about two checkpoints of the base policy's size."""
    base = sum(Path(path).stat().st_size for step in graph if step.kind == "base" for path in step.external.values())
    num_trainings = sum(step.kind == "training" for step in graph)
    needed = MIN_FREE_BYTES + 2 * base * num_trainings
    existing = next(folder for folder in (home, *home.parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise InfrastructureError(
            f"{free / 2**30:.1f} GiB are free, and this run needs about {needed / 2**30:.1f} GiB",
            where=str(home),
            hint="free some space, or choose another place with --home",
        )
