"""Screens of a stage's problems by the policy it starts from (PIPE-10, RRL-D5, CRL-D7)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rufus_core.errors import ConfigError, DataError
from rufus_core.jobs.document import InputArtifact
from rufus_core.jobs.problem_files import load_problems, save_problems
from rufus_core.jobs.run import run_job
from rufus_core.jobs.screen import verdicts
from rufus_core.lineage import Record, Store
from rufus_core.lineage.diff import diff
from rufus_core.lineage.impact import impact
from rufus_core.recipe.graph import build_graph
from rufus_core.settings import FilterSettings
from rufus_core.types import Json
from tests.jobs.miniature import Runner, small_recipe
from tests.jobs.solver import LONG_ENOUGH, OTHER, RIGHT, solver

SCREEN = "screens/reasoning_rl/learnability"
FILTER = "stages.reasoning_rl.problems.filters={learnability: {samplers: [policy], num_attempts: 2, %s}}"
WIDE = FILTER % "high_inclusive: 1.0"


@pytest.fixture(scope="module")
def inputs(runner: Runner, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A policy that solves RIGHT and not OTHER, and these two problems."""
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "problems").mkdir()
    solver(runner.path("base"), RIGHT).save(folder / "policy")
    save_problems(folder / "problems", "train", [RIGHT, OTHER])
    paths = {"policy": folder / "policy", "problems": folder / "problems"}
    for path in paths.values():  # a job asks that its inputs have records; it doesn't read them
        (path / "record.json").touch()
    return paths


def _screened(runner: Runner, folder: Path, inputs: dict[str, Path], **window: Json) -> tuple[Record, Path]:
    step = Runner(folder, small_recipe(LONG_ENOUGH, WIDE)).steps[SCREEN]
    document = runner.document("scores/base").model_copy(
        update={
            "name": SCREEN,
            "kind": "screen",
            "config": step.config | {"filter": {"samplers": ["policy"], "num_attempts": 4, **window}},
            "fingerprint": "1" * 64,
            "inputs": {
                role: InputArtifact(name=role, digest="1" * 64, record_id="x", path=path)
                for role, path in inputs.items()
            },
            "store": folder / "store",
        }
    )
    record = run_job(document)
    return record, Store(folder / "store").path(record)


def test_what_the_policy_can_solve_already_is_dropped(runner: Runner, tmp_path: Path, inputs: dict[str, Path]) -> None:
    record, folder = _screened(runner, tmp_path, inputs, high_exclusive=0.5)
    assert load_problems(folder, "train") == [OTHER]
    right, other = (json.loads(line) for line in (folder / "screen.jsonl").read_text().splitlines())
    assert (right["id"], right["num_scored"], right["verdict"]) == (RIGHT.id, 4, "out_of_window")
    assert right["num_passed"] >= 3
    assert other == {"id": OTHER.id, "source": OTHER.source, "num_passed": 0, "num_scored": 4, "verdict": "kept"}
    assert record.metrics == {"problems": 2.0, "kept": 1.0, "out_of_window": 1.0}


def test_what_it_never_solves_is_dropped(runner: Runner, tmp_path: Path, inputs: dict[str, Path]) -> None:
    _, folder = _screened(runner, tmp_path, inputs, low_exclusive=0.0)
    assert load_problems(folder, "train") == [RIGHT]


def test_a_screen_that_leaves_nothing_says_so(runner: Runner, tmp_path: Path, inputs: dict[str, Path]) -> None:
    with pytest.raises(DataError, match="no problem of 2 is left: 2 out_of_window") as caught:
        _screened(runner, tmp_path, inputs, low_exclusive=0.0, high_exclusive=0.5)
    assert caught.value.where == SCREEN


@given(passes=st.lists(st.sampled_from([0.0, 1.0, None]), max_size=8), low=st.floats(0, 1), high=st.floats(0, 1))
def test_a_problem_stays_if_its_share_of_passes_lies_in_the_window(
    passes: list[float | None], low: float, high: float
) -> None:
    settings = FilterSettings(samplers=("policy",), num_attempts=8, low_exclusive=low, high_inclusive=high)
    (found,) = verdicts([RIGHT], {RIGHT.id: passes}, settings)
    scored = [each for each in passes if each is not None]
    assert found.num_scored == len(scored)
    assert found.num_passed == scored.count(1.0)
    if not scored:
        assert found.verdict == "unscored"
    else:
        assert (found.verdict == "kept") == (low < scored.count(1.0) / len(scored) <= high)


def test_the_lineage_leads_from_the_parent_to_the_problems_to_the_training(home: Path, runner: Runner) -> None:
    screened = Runner(home, small_recipe(WIDE))
    training = screened.run("stages/reasoning_rl/train")
    screen, parent = screened.run(SCREEN), screened.run("stages/sft/checkpoint")
    assert training.inputs["problems"].record_id == screen.id
    assert screen.inputs["policy"].record_id == parent.id
    assert screen.inputs["problems"].record_id == screened.run("data/reasoning_rl").id
    touched = {each.id for each in impact(screened.store, "data/reasoning_rl").touched}
    assert {screen.id, training.id} <= touched
    unscreened = runner.run("stages/reasoning_rl/train")
    refs = (screened.store.resolve(record.id) for record in (unscreened, training))
    pairs = {pair.role: pair for pair in diff(screened.store, *refs).pairs}
    assert (pairs["problems"].old, pairs["problems"].new) == (unscreened.inputs["problems"].record_id, screen.id)
    assert pairs["problems"].rows is not None


def test_screens_apply_in_their_order_and_selection_and_scores_see_all_problems() -> None:
    two = (
        "stages.reasoning_rl.problems.filters={a: {samplers: [policy], num_attempts: 1}, "
        "b: {samplers: [policy], num_attempts: 2}}"
    )
    steps = {step.name: step for step in build_graph(small_recipe(two))}
    assert steps["screens/reasoning_rl/a"].inputs == {
        "problems": "data/reasoning_rl",
        "policy": "stages/sft/checkpoint",
    }
    assert steps["screens/reasoning_rl/b"].inputs["problems"] == "screens/reasoning_rl/a"
    assert steps["stages/reasoning_rl/train"].inputs["problems"] == "screens/reasoning_rl/b"
    assert steps["scores/reasoning_rl"].inputs["problems/reasoning_rl"] == "data/reasoning_rl"


@pytest.mark.parametrize(
    "unable",
    [
        "deduplication: {}",
        "correctness: {samplers: [GPT-OSS-120B], num_attempts: 8}",
        "closed_book: {samplers: [policy], num_attempts: 8, tools: false}",
    ],
)
def test_other_filters_are_refused_before_anything_runs(unable: str) -> None:
    with pytest.raises(ConfigError, match=f"doesn't run the filters {unable.partition(':')[0]}"):
        build_graph(small_recipe(f"stages.reasoning_rl.problems.filters={{{unable}}}"))
