from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rufus_core.lineage import Decision, Draft, Record, Store, fingerprint
from rufus_core.lineage.collect import collect, collectable
from rufus_core.recipe.spared import spared
from rufus_core.recipe.step import VERSIONS, Step

TRAIN, CHECKPOINT = "stages/sft/train", "stages/sft/checkpoint"
GRAPH = [
    Step("base", "base", "base", {}),
    Step(TRAIN, "training", "train", {"steps": 2}, stage="sft", inputs={"parent": "base"}),
    Step(CHECKPOINT, "checkpoint", "select", {"select": "last"}, stage="sft", inputs={"training": TRAIN}),
]
FILES = {
    "base": ["model"],
    TRAIN: ["metrics.jsonl", "checkpoints/step-1/model", "checkpoints/step-2/model"],
    CHECKPOINT: ["model"],
}


def publish(store: Store, step: Step, made: dict[str, Record]) -> Record:
    inputs = {role: made[name].as_input() for role, name in step.inputs.items()}
    digests = {role: source.digest for role, source in inputs.items()}
    key = fingerprint(step.kind, step.version, {**step.config, "seed": step.seed}, digests)
    attempt = store.attempt(step.name, key)
    for file in FILES[step.name]:
        (attempt.folder / file).parent.mkdir(parents=True, exist_ok=True)
        (attempt.folder / file).write_text(file)
    decision = Decision(rule="last", chosen_step=2) if step.kind == "checkpoint" else None
    draft = Draft(kind=step.kind, version=step.version, config=step.config, inputs=inputs, decision=decision)
    return store.publish(attempt, draft)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A finished graph whose training lost step 1 to a collection."""
    store, made = Store(tmp_path / "store"), dict[str, Record]()
    for step in GRAPH:
        made[step.name] = publish(store, step, made)
    assert spared(GRAPH, store) == {}
    collect(store, collectable(store, VERSIONS))
    return store


def test_a_training_that_lacks_unchosen_steps_is_not_made_again(store: Store) -> None:
    (training,) = store.records(TRAIN)
    assert store.find(training.name, training.fingerprint) is None
    assert spared(GRAPH, store) == {training.id: training}


def test_it_is_made_again_when_its_checkpoint_is_forced_broken_or_asks_for_another_step(store: Store) -> None:
    base, train, select = GRAPH
    assert spared([base, train, replace(select, force=True)], store) == {}
    assert spared([base, train, replace(select, config={"select": 1})], store) == {}
    assert spared([base, replace(train, force=True), select], store) == {}
    (checkpoint,) = store.records(CHECKPOINT)
    (store.path(checkpoint) / "model").write_text("x")
    assert spared(GRAPH, store) == {}


def test_it_is_made_again_when_something_else_of_it_is_gone(store: Store) -> None:
    (training,) = store.records(TRAIN)
    (store.path(training) / "metrics.jsonl").unlink()
    assert spared(GRAPH, store) == {}
