"""The production path at toy size: SGLang rolls out with its routing, Megatron-core replays it, and both agree.

Any trainer goes with any engine. Each combination learns the same toy problem, with what a recipe would name.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rufus_core.rollout.opening import open_engine
from rufus_core.rollout.sglang.engine import SGLangEngine
from rufus_core.settings import ExecutionSettings, LayoutSettings, PrecisionSettings, RLStage
from tests.rollout.sglang.installed import PYTHON, cpu_settings
from tests.training import toy
from tests.training.combined import Learned, learn
from tests.training.ranked import in_ranks

STEPS = 24
RANKS = {"torch": 1, "megatron": 2}
LAYOUTS = {"torch": LayoutSettings(), "megatron": LayoutSettings(expert_parallel=2)}
PRECISION = {"embedded": "fp32", "sglang": "bf16"}
GAP = {"embedded": 1e-4, "sglang": 0.01}  # of a log-prob on average, by what the engine computes in

pytestmark = pytest.mark.slow
needs = {
    "torch": (),
    "embedded": (),
    "megatron": pytest.mark.skipif(
        importlib.util.find_spec("mbridge") is None, reason="Megatron-core isn't installed: make install-megatron"
    ),
    "sglang": pytest.mark.skipif(not PYTHON.exists(), reason="SGLang isn't installed: make install-sglang"),
}


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It says each colour about as often; scaled, so that a wrong expert would tell."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("parent")
    toy.speaking_policy().save(folder)
    return folder


@pytest.fixture(scope="module")
def served(parent: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a server that all trainings use in turn; each brings it to its own weights."""
    execution = ExecutionSettings(engine="sglang", sglang=cpu_settings())
    precision = PrecisionSettings(rollout="bf16")
    scratch = tmp_path_factory.mktemp("scratch")
    with open_engine(execution, parent, _unused, precision=precision, scratch=scratch) as engine:
        assert isinstance(engine, SGLangEngine)
        [server] = engine.pool.living
        yield server.url


def _unused() -> object:
    raise AssertionError


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((trainer, engine), marks=[mark for name in (trainer, engine) if (mark := needs[name])])
        for trainer in RANKS
        for engine in GAP
    ],
    ids="-".join,
)
def combination(request: pytest.FixtureRequest) -> tuple[str, str]:
    pair: tuple[str, str] = request.param
    return pair


@pytest.fixture(scope="module")
def learned(
    combination: tuple[str, str], parent: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Learned:
    trainer, engine = combination
    urls = (request.getfixturevalue("served"),) if engine == "sglang" else ()
    execution = ExecutionSettings(
        trainer=trainer,
        engine=engine,
        data_parallel=RANKS[trainer],
        layout=LAYOUTS[trainer],
        sglang={"urls": urls, "device": "cpu"},
    )
    folder = tmp_path_factory.mktemp("ranks")
    found = in_ranks(RANKS[trainer], folder, learn, parent, execution, _stage(engine), folder)
    assert all(isinstance(one, Learned) for one in found), found
    assert all(one.rows[-1]["reward"] == found[0].rows[-1]["reward"] for one in found)
    first: Learned = found[0]
    return first


def _stage(engine: str) -> RLStage:
    return toy.rl_stage(
        precision={"train": "fp32", "rollout": PRECISION[engine], "router_replay": True},
        algorithm={"tis": True},
        optimizer={"lr_peak": 3e-3, "grad_clip": 0.3},
        rollout={"samples_per_prompt": 16},
        run={"steps": STEPS},
    )


def test_it_learns(learned: Learned) -> None:
    """On a CPU SGLang knows no seeds, so that no two of its trainings are alike."""
    rewards = [row["reward"] for row in learned.rows]
    assert rewards[0] < 0.6
    assert sum(rewards[-3:]) / 3 > 0.8


def test_every_step_rolls_out_the_newest_weights(learned: Learned) -> None:
    assert learned.versions == [{str(step)} for step in range(STEPS)]
    assert learned.last_version == {"newest"}


def test_the_trainer_agrees_with_the_rollout_whose_routing_it_replays_SLM_06(
    combination: tuple[str, str], learned: Learned
) -> None:
    """SLM-06: "routing differences add no log-probability gap"."""
    allowed = GAP[combination[1]]
    trained = [row for row in learned.rows if "grad_norm" in row]  # once all is learnt, a step may have no signal
    assert len(trained) >= 5
    assert all(row["grad_norm"] > 0 for row in trained)
    assert all(row["logprob_gap"] < allowed for row in trained)
    assert all(row["routing_agreement"] > 0.9 for row in trained)
    assert max(learned.gaps) < 10 * allowed
