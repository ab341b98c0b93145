"""Scores of two checkpoints side by side."""

import pytest

from rufus_core.evaluation.differences import score_changes
from rufus_core.evaluation.scores import Scores
from rufus_core.lineage import Store
from tests.lineage.miniature import make

BOTH = {"seed": 1}


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def checkpoint(store, stage):
    return make(store, f"stages/{stage}/checkpoint", "checkpoint", {"model.bin": stage})


def measure(store, record, passed, name=None, benchmark="math", protocol=BOTH, seed=7, step=None):
    """The first `passed` of ten problems are solved."""
    scores = Scores(
        benchmark=benchmark,
        stage=record.stage,
        checkpoint=record.name,
        digest=record.digest,
        step=step,
        protocol=protocol,
        per_problem={f"p{index}": (float(index < passed),) for index in range(10)},
    )
    name = name or f"scores/{record.stage}"
    files = {f"{benchmark}.json": scores.model_dump_json()}
    return make(store, name, "scores", files, {"checkpoint": record}, seed=seed)


def changes(store, old, new):
    found = score_changes(store, store.resolve(old), store.resolve(new))
    return {change.benchmark: change for change in found}


def test_scores_of_one_protocol_are_subtracted_by_problem(store):
    measure(store, checkpoint(store, "sft"), 2)
    measure(store, checkpoint(store, "if_rl"), 7)
    math = changes(store, "sft", "if_rl")["math"]
    assert (math.old, math.new, math.delta, math.n, math.why) == (0.2, 0.7, 0.5, 10, "")
    low, high = math.ci95
    assert 0 < low < 0.5 < high


def test_unequal_protocols_are_not_subtracted_and_the_difference_is_named_EVAL_07(store):
    measure(store, checkpoint(store, "sft"), 2)
    measure(store, checkpoint(store, "if_rl"), 7, protocol={"seed": 2})
    math = changes(store, "sft", "if_rl")["math"]
    assert (math.old, math.new, math.delta, math.ci95) == (0.2, 0.7, None, None)
    assert math.why == "other protocol: seed 1 against 2"


def test_of_several_measurements_those_of_one_protocol_count(store):
    sft, other = checkpoint(store, "sft"), checkpoint(store, "if_rl")
    measure(store, sft, 2)
    measure(store, other, 7)
    measure(store, other, 9, name="evals/if_rl/math", protocol={"seed": 2})
    assert changes(store, "sft", "if_rl")["math"].delta == 0.5


def test_a_benchmark_of_one_side_says_which_side_lacks_it(store):
    measure(store, checkpoint(store, "sft"), 2, benchmark="code")
    measure(store, checkpoint(store, "if_rl"), 7)
    found = changes(store, "sft", "if_rl")
    assert (found["code"].old, found["code"].new, found["code"].why) == (0.2, None, "not measured on the second")
    assert (found["math"].old, found["math"].new, found["math"].why) == (None, 0.7, "not measured on the first")


def test_scores_of_other_checkpoints_and_steps_are_left_out(store):
    sft = checkpoint(store, "sft")
    measure(store, sft, 2, step=4)
    make(store, "stages/sft/checkpoint", "checkpoint", {"model.bin": "newer"}, seed=8)
    assert changes(store, "sft", sft.id) == {}


def test_artifacts_of_scores_are_compared_themselves(store):
    sft = checkpoint(store, "sft")
    old, new = measure(store, sft, 2), measure(store, sft, 3, seed=8)
    assert changes(store, old.id, new.id)["math"].delta == pytest.approx(0.1)
