"""Parts of the recipe's graph: --until, --from, --only and --force."""

from __future__ import annotations

from pathlib import Path

import pytest

from rufus_core.errors import ConfigError, LineageError
from rufus_core.lineage.record import Record
from rufus_core.lineage.store import Store
from rufus_core.recipe.graph import build_graph
from rufus_core.recipe.load import load_recipe
from rufus_core.recipe.step import Step
from rufus_core.recipe.until import part
from tests.lineage.miniature import make


@pytest.fixture(scope="module")
def graph() -> list[Step]:
    return build_graph(load_recipe())


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def checkpoint(store: Store, stage: str, text: str = "x") -> Record:
    return make(store, f"stages/{stage}/checkpoint", "checkpoint", {"model.bin": text}, config={"of": text})


def taken(steps: list[Step]) -> dict[str, Record]:
    return {step.name: step.artifact for step in steps if step.artifact is not None}


def own(stage: str) -> set[str]:
    return {f"data/{stage}", f"stages/{stage}/train", f"stages/{stage}/checkpoint", f"scores/{stage}"}


def test_from_starts_on_the_newest_checkpoint_above_whatever_made_it(graph: list[Step], store: Store) -> None:
    checkpoint(store, "reasoning_rl", "older")
    newest = checkpoint(store, "reasoning_rl", "newer")
    checkpoint(store, "sft")
    steps = part(graph, store, start="coding_rl")
    assert taken(steps)["stages/reasoning_rl/checkpoint"] == newest
    made = {step.name for step in steps if step.artifact is None}
    for stage in ("coding_rl", "if_rl", "general_agent", "coding_agent", "search_agent", "rlhf"):
        assert own(stage) <= made
    assert not {"base", "stages/sft/train", "stages/reasoning_rl/train", "scores/sft"} & made
    assert "stages/rlhf/reward_model" in made
    known = {step.name for step in steps}
    assert all(set(step.inputs.values()) <= known for step in steps)


def test_only_is_one_stage_with_what_its_scores_are_measured_on(graph: list[Step], store: Store) -> None:
    above = checkpoint(store, "reasoning_rl")
    steps = part(graph, store, only="coding_rl")
    assert taken(steps) == {"stages/reasoning_rl/checkpoint": above}
    made = {step.name for step in steps if step.artifact is None}
    assert made == own("coding_rl") | {"data/reasoning_rl", "data/if_rl"}


def test_the_base_alone_needs_nothing_above(graph: list[Step], store: Store) -> None:
    assert {step.name for step in part(graph, store, only="base")} >= {"base", "scores/base"}
    assert part(graph, store, start="base") == graph


def test_a_missing_checkpoint_names_the_next_command(graph: list[Step], store: Store) -> None:
    with pytest.raises(LineageError, match="no stages/reasoning_rl/checkpoint to start from") as caught:
        part(graph, store, only="coding_rl")
    assert caught.value.hint == "make it with `rufus run --until reasoning_rl`"
    with pytest.raises(LineageError, match="rufus run --until base"):
        part(graph, store, start="sft")


def test_an_unreadable_checkpoint_that_may_be_the_newest_is_told(graph: list[Step], store: Store) -> None:
    checkpoint(store, "reasoning_rl", "older")
    file = store.path(checkpoint(store, "reasoning_rl", "newer")) / "record.json"
    file.write_text("{")
    with pytest.raises(LineageError, match="not JSON"):
        part(graph, store, only="coding_rl")


def test_from_and_until_enclose_a_part(graph: list[Step], store: Store) -> None:
    checkpoint(store, "reasoning_rl")
    trainings = {s.stage for s in part(graph, store, start="coding_rl", until="if_rl") if s.kind == "training"}
    assert trainings == {"coding_rl", "if_rl"}


def test_force_marks_a_stage_s_own_steps(graph: list[Step], store: Store) -> None:
    assert {step.name for step in part(graph, store, force="coding_rl") if step.force} == own("coding_rl")
    assert {step.name for step in part(graph, store, force="base") if step.force} == {"base", "scores/base"}
    assert not any(step.force for step in part(graph, store))
    checkpoint(store, "reasoning_rl")
    steps = part(graph, store, only="coding_rl", force="coding_rl")
    assert {step.name for step in steps if step.force} == own("coding_rl")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"only": "sft", "start": "sft"}, "--only runs one stage, and --from several"),
        ({"only": "sft", "until": "sft"}, "--only runs one stage, and --until several"),
        ({"start": "if_rl", "until": "coding_rl"}, "if_rl comes after coding_rl"),
        ({"start": "coding_lr"}, "did you mean 'coding_rl'"),
        ({"only": "nope"}, "--only: there is no stage 'nope'"),
        ({"until": "coding_rl", "force": "if_rl"}, "--force: there is no stage 'if_rl'"),
        ({"only": "coding_rl", "force": "sft"}, "--force: there is no stage 'sft'"),
    ],
)
def test_what_makes_no_sense_is_refused(graph: list[Step], store: Store, options: dict[str, str], said: str) -> None:
    checkpoint(store, "reasoning_rl")
    with pytest.raises(ConfigError) as caught:
        part(graph, store, **options)
    assert said in str(caught.value)
