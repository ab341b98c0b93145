"""What `rufus plan` says a run would do: three steps in a row, in a store of real artifacts."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rufus_core.lineage.canonical import fingerprint
from rufus_core.lineage.record import Draft, Record, Timings
from rufus_core.lineage.store import Store
from rufus_core.recipe.status import BROKEN, GraphStatus, StepStatus, graph_status
from rufus_core.recipe.step import Step

BASE = Step("base", "base", "base policy", {"shape": {"layers": 2}}, seed=1)
TRAIN = Step("stages/sft/train", "training", "SFT: train", {"settings": {"lr": 0.1}}, inputs={"parent": "base"}, seed=2)
SELECT = Step("stages/sft/checkpoint", "checkpoint", "SFT: select", {}, inputs={"training": TRAIN.name}, seed=3)
GRAPH = [BASE, TRAIN, SELECT]
DAY = datetime(2026, 5, 1, tzinfo=UTC)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def publish(
    store: Store, steps: list[Step], text: str = "", seconds: float | None = 10.0, version: str | None = None
) -> dict[str, Record]:
    """Make steps the way jobs do. `text` is written into each artifact."""
    made: dict[str, Record] = {}
    for step in steps:
        inputs = {role: made[name].as_input() for role, name in step.inputs.items()}
        digests = {role: source.digest for role, source in inputs.items()}
        declared = version or step.version
        key = fingerprint(step.kind, declared, {**step.config, "seed": step.seed}, digests)
        attempt = store.attempt(step.name, key)
        (attempt.folder / "text").write_text(step.name + text)
        ended = DAY + timedelta(seconds=seconds or 0)
        timings = None if seconds is None else Timings(started=DAY, ended=ended, seconds=seconds)
        draft = Draft(
            kind=step.kind, version=declared, config=step.config, inputs=inputs, seed=step.seed, timings=timings
        )
        made[step.name] = store.publish(attempt, draft)
    return made


def actions(status: GraphStatus) -> list[str]:
    return [step.action for step in status.steps]


def changed(step: StepStatus) -> dict[str, tuple[object, object]]:
    return {change.path: (change.old, change.new) for change in step.changes}


def with_rate(rate: float) -> list[Step]:
    return [BASE, replace(TRAIN, config={"settings": {"lr": rate}}), SELECT]


def test_in_an_empty_store_everything_is_run_for_an_unknown_time(store: Store) -> None:
    status = graph_status(GRAPH, store)
    assert [(step.action, step.why) for step in status.steps] == [("run", "never made")] * 3
    assert (status.seconds_at_most, status.num_unknown) == (0, 3)
    assert not store.root.exists()


def test_what_is_intact_is_reused_and_costs_nothing(store: Store) -> None:
    made = publish(store, GRAPH)
    status = graph_status(GRAPH, store)
    assert actions(status) == ["reuse"] * 3
    assert [step.record for step in status.steps] == [record.id for record in made.values()]
    assert (status.seconds, status.seconds_at_most, status.num_unknown) == (0, 0, 0)


def test_a_changed_setting_is_named_and_what_follows_is_run_if_it_changes(store: Store) -> None:
    publish(store, GRAPH)
    base, train, select = graph_status(with_rate(0.2), store).steps
    assert (base.action, train.action, select.action) == ("reuse", "stale", "run")
    assert changed(train) == {"config.settings.lr": (0.1, 0.2)}
    assert (select.why, select.unless) == ("", (TRAIN.name,))
    assert (train.seconds, train.measured) == (10.0, DAY + timedelta(seconds=10))


def test_the_cost_is_what_is_certain_and_what_may_come(store: Store) -> None:
    publish(store, GRAPH)
    status = graph_status(with_rate(0.2), store)
    assert (status.seconds, status.seconds_at_most, status.num_unknown) == (10.0, 20.0, 0)


def test_times_that_no_record_holds_are_unknown(store: Store) -> None:
    publish(store, GRAPH, seconds=None)
    status = graph_status(with_rate(0.2), store)
    assert (status.seconds_at_most, status.num_unknown) == (0, 2)


def test_a_step_that_came_out_the_same_leaves_what_follows_valid(store: Store) -> None:
    publish(store, GRAPH)
    publish(store, with_rate(0.2)[:2])  # the same bytes
    assert actions(graph_status(with_rate(0.2), store)) == ["reuse"] * 3


def test_another_input_is_named_by_role_with_both_digests(store: Store) -> None:
    before = publish(store, GRAPH)
    after = publish(store, with_rate(0.2)[:2], text="other")
    select = graph_status(with_rate(0.2), store).steps[2]
    assert select.action == "stale"
    assert changed(select) == {"inputs.training": (before[TRAIN.name].digest, after[TRAIN.name].digest)}


def test_seed_and_version_are_named(store: Store) -> None:
    publish(store, [BASE], version="0")
    (base,) = graph_status([replace(BASE, seed=9)], store).steps
    assert changed(base) == {"seed": (1, 9), "version": ("0", BASE.version)}


def test_a_step_with_its_own_change_is_stale_whatever_its_inputs_become(store: Store) -> None:
    publish(store, GRAPH)
    base, train, select = with_rate(0.2)
    step = graph_status([base, train, replace(select, seed=9)], store).steps[2]
    assert (step.action, changed(step)) == ("stale", {"seed": (3, 9)})


def test_it_is_compared_with_the_newest_of_its_name(store: Store) -> None:
    publish(store, GRAPH)
    publish(store, with_rate(0.2))
    assert changed(graph_status(with_rate(0.3), store).steps[1]) == {"config.settings.lr": (0.2, 0.3)}
    assert actions(graph_status(GRAPH, store)) == ["reuse"] * 3  # the older ones are still there


def test_a_broken_artifact_is_run(store: Store) -> None:
    made = publish(store, GRAPH)
    (store.path(made[TRAIN.name]) / "text").write_text("x")
    _, train, select = graph_status(GRAPH, store).steps
    assert (train.action, train.why) == ("run", BROKEN)
    assert select.unless == (TRAIN.name,)
    (store.path(made[SELECT.name]) / "text").write_text("x")
    assert graph_status(GRAPH, store).steps[2].why == BROKEN


def test_a_forced_step_is_run_and_what_follows_only_if_it_changes(store: Store) -> None:
    publish(store, GRAPH)
    base, train, select = graph_status([BASE, replace(TRAIN, force=True), SELECT], store).steps
    assert (base.action, train.action, train.why) == ("reuse", "run", "forced")
    assert select.unless == (TRAIN.name,)


def test_a_given_artifact_is_no_step_to_tell_of(store: Store) -> None:
    made = publish(store, GRAPH)
    given = Step(TRAIN.name, TRAIN.kind, TRAIN.title, {}, artifact=made[TRAIN.name])
    assert [step.name for step in graph_status([given, SELECT], store).steps] == [SELECT.name]
    assert actions(graph_status([given, SELECT], store)) == ["reuse"]
