"""Which candidate is carried forward (SFT-09, CRL-T6, RM-T3)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rufus_core.errors import ConfigError
from rufus_core.jobs.checkpoint import best_candidate
from rufus_core.jobs.document import InputArtifact, JobDocument
from rufus_core.jobs.problem_files import save_problems
from rufus_core.jobs.run import run_job
from rufus_core.lineage import Candidate, Record, Store
from tests.jobs.miniature import Runner, small_recipe
from tests.jobs.solver import LONG_ENOUGH, RIGHT, solver


def _document(runner: Runner, folder: Path, select: str, steps: dict[int, Path]) -> JobDocument:
    """A selection among these policies, by step. Its problems are those of `folder`."""
    candidates = folder / "training" / "checkpoints"
    for step, policy in steps.items():
        shutil.copytree(policy, candidates / f"step-{step}", ignore=shutil.ignore_patterns("record.json"))
    recipe = small_recipe(LONG_ENOUGH, f"stages.reasoning_rl.run.select={select}")
    step = Runner(folder, recipe).steps["stages/reasoning_rl/checkpoint"]
    paths = {"training": folder / "training", "problems": folder / "problems"}
    for path in paths.values():  # a job asks that its inputs have records; it doesn't read them
        path.mkdir(exist_ok=True)
        (path / "record.json").touch()
    return JobDocument(
        name=step.name,
        kind=step.kind,
        title=step.title,
        version=step.version,
        fingerprint="0" * 64,
        config=step.config,
        stage=step.stage,
        inputs={
            role: InputArtifact(name=name, digest="1" * 64, record_id="x", path=paths[role])
            for role, name in step.inputs.items()
        },
        seed=step.seed,
        store=folder / "store",
        placement=recipe.execution.model_dump(mode="json"),
        progress=folder / "progress.jsonl",
    )


def _select(runner: Runner, folder: Path, select: str, steps: dict[int, Path]) -> Record:
    return run_job(_document(runner, folder, select, steps))


@pytest.fixture(scope="module")
def learned(runner: Runner, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("solver")
    solver(runner.path("base"), RIGHT).save(folder)
    return folder


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    """Only a validation split: a selection that looked at another one would fail."""
    folder = tmp_path / "problems"
    folder.mkdir()
    save_problems(folder, "validation", [RIGHT])
    return folder


def test_the_peak_is_the_best_on_validation_problems(
    runner: Runner, tmp_path: Path, problems: Path, learned: Path
) -> None:
    base = runner.path("base")
    steps = {5: base, 10: learned, 15: learned, 20: base}
    record = _select(runner, tmp_path, "{rule: peak}", steps)
    assert record.step == 10  # the earliest of equals
    assert record.decision is not None
    assert record.decision.rule == "peak"
    values = {candidate.step: candidate.value for candidate in record.decision.candidates}
    assert list(values) == [5, 10, 15, 20]
    assert values[10] == values[15]
    assert (values[10] or 0) > 0.7 > (values[5] or 0)
    chosen = Store(tmp_path / "store").path(record)
    assert (chosen / "model.safetensors").read_bytes() == (learned / "model.safetensors").read_bytes()


def test_equal_candidates_give_the_earliest(runner: Runner, tmp_path: Path, problems: Path) -> None:
    base = runner.path("base")
    record = _select(runner, tmp_path, "{rule: peak}", {2: base, 10: base, 1: base})
    assert record.step == 1
    assert [c.step for c in record.decision.candidates] == [1, 2, 10]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("values", "best"),
    [([0.5, 0.75, 0.75], 2), ([0.0, 0.0], 1), ([-2.0, -1.0], 2), ([None, 0.0], 2), ([0.3, None], 1)],
)
def test_the_best_candidate(values: list[float | None], best: int) -> None:
    assert best_candidate([Candidate(step=k, value=v) for k, v in enumerate(values, start=1)]).step == best


def test_without_validation_problems_there_is_no_peak(runner: Runner, tmp_path: Path, problems: Path) -> None:
    save_problems(problems, "validation", [])
    with pytest.raises(ConfigError, match="no validation problem") as caught:
        _select(runner, tmp_path, "{rule: peak}", {1: runner.path("base")})
    assert caught.value.where == "stages.reasoning_rl.run.select"


def test_a_named_step_is_carried_forward(runner: Runner, tmp_path: Path) -> None:
    base = runner.path("base")
    record = _select(runner, tmp_path, "{rule: step, step: 2}", {2: base, 4: base})
    assert record.step == 2
    assert record.decision is not None
    assert (record.decision.rule, record.decision.chosen_step) == ("step", 2)


def test_a_step_that_was_not_saved_is_refused(runner: Runner, tmp_path: Path) -> None:
    base = runner.path("base")
    with pytest.raises(ConfigError, match="step 3 was not saved") as caught:
        _select(runner, tmp_path, "{rule: step, step: 3}", {2: base, 4: base})
    assert caught.value.hint == "saved steps: 2, 4"
    assert not Store(tmp_path / "store").records()
