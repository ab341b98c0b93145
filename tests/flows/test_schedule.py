"""Which steps start next."""

from __future__ import annotations

from flows.schedule import by_urgency, fitting, startable
from rufus_core.ports.orchestration import StepOutcome
from rufus_core.recipe.graph import build_graph
from rufus_core.recipe.load import load_recipe
from rufus_core.recipe.step import Step


def chain() -> list[Step]:
    """Two stages, in the order in which a recipe's graph has them: scores before the next stage."""
    return [
        Step("base", "base", "", {}),
        Step("data/a", "problems", "", {}),
        Step("data/b", "problems", "", {}),
        Step("scores/base", "scores", "", {}, inputs={"checkpoint": "base", "problems": "data/a"}),
        Step("a/train", "training", "", {}, inputs={"parent": "base", "problems": "data/a"}),
        Step("a/select", "checkpoint", "", {}, inputs={"training": "a/train"}),
        Step("scores/a", "scores", "", {}, inputs={"checkpoint": "a/select", "problems": "data/a"}),
        Step("b/train", "training", "", {}, inputs={"parent": "a/select", "problems": "data/b"}),
        Step("b/select", "checkpoint", "", {}, inputs={"training": "b/train"}),
        Step("scores/b", "scores", "", {}, inputs={"checkpoint": "b/select", "problems": "data/b"}),
    ]


def ready(*done: str) -> list[str]:
    waiting = {step.name: step for step in by_urgency(chain()) if step.name not in done}
    return [step.name for step in startable(waiting, {name: StepOutcome("completed") for name in done})]


def test_training_waits_neither_for_scores_nor_for_data_of_later_stages() -> None:
    assert ready() == ["base", "data/a", "data/b"]
    assert ready("base", "data/a") == ["a/train", "data/b", "scores/base"]
    assert ready("base", "data/a", "a/train", "data/b", "a/select") == ["b/train", "scores/base", "scores/a"]


def test_jobs_share_the_cores_and_none_overtakes_one_that_waits() -> None:
    steps = {step.name: step for step in chain()}
    train, first, second = steps["b/train"], steps["scores/a"], steps["scores/b"]

    def threads_of(step: Step) -> int:
        return 2 if step.kind == "training" else 1

    assert fitting([first, second], threads_of, 0, 2) == [first, second]
    assert fitting([train, first], threads_of, 0, 2) == [train]
    assert fitting([train, first], threads_of, 1, 2) == []
    assert fitting([train], threads_of, 0, 1) == [train]  # more than there are: alone


def test_nothing_starts_after_a_failure() -> None:
    steps = {step.name: step for step in chain()}
    assert startable(steps, {"base": StepOutcome("completed"), "data/a": StepOutcome("failed")}) == []


def test_the_shipped_recipe_keeps_inputs_first_and_scores_last() -> None:
    graph = build_graph(load_recipe("rufus_air", "cpu"))
    order = [step.name for step in by_urgency(graph)]
    assert sorted(order) == sorted(step.name for step in graph)
    assert all(order.index(name) < order.index(step.name) for step in graph for name in step.inputs.values())
    kinds = [step.kind for step in by_urgency(graph)]
    assert set(kinds[kinds.index("scores") :]) == {"scores"}


def test_a_failure_stops_what_is_made_from_it_alone_where_the_run_goes_on() -> None:
    steps = {name: Step(name, "scores", name, {}, inputs={"a": "a"} if name == "c" else {}) for name in ("b", "c")}
    failed = {"a": StepOutcome("failed")}
    assert startable(steps, failed) == []
    assert [step.name for step in startable(steps, failed, keep_going=True)] == ["b"]
