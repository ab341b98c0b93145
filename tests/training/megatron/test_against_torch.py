"""Megatron-core trains as torch does, however the policy is cut: the same batch, the same loss, the same steps."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rufus_core.rollout.routing import UNRECORDED
from rufus_core.settings import LayoutSettings
from rufus_core.training.torch_trainer import TorchTrainer
from tests.training.megatron import compared
from tests.training.megatron.compared import Found
from tests.training.ranked import in_ranks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("megatron") is None or importlib.util.find_spec("mbridge") is None,
        reason="Megatron-core isn't installed: make install-megatron",
    ),
]


@dataclass(frozen=True)
class Case:
    layout: LayoutSettings
    num_ranks: int
    precision: str = "fp32"


def _cut(num_ranks: int, **layout: object) -> Case:
    return Case(LayoutSettings.model_validate({"micro_batch_tokens": 24, **layout}), num_ranks)


CASES = {
    "one rank": _cut(1, recompute="selective"),
    "EP2": _cut(2, expert_parallel=2),
    "PP2": _cut(2, pipeline_parallel=2, recompute="full"),
    "TP2+SP+EP2": _cut(2, tensor_parallel=2, sequence_parallel=True, expert_parallel=2),
    "TP2+SP+PP2+EP2": _cut(
        4, tensor_parallel=2, sequence_parallel=True, expert_parallel=2, pipeline_parallel=2, recompute="full"
    ),
}


@dataclass(frozen=True)
class Run:
    case: Case
    parent: Path
    folder: Path
    torch: Found
    ranks: list[Found]


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parent")
    compared.parent_policy().save(folder)
    return folder


@pytest.fixture(scope="module")
def by_torch() -> Found:
    policy = compared.parent_policy()
    trainer = TorchTrainer(policy, compared.OPTIMIZER, reference=True)
    found = compared.ask(trainer)
    found.steps = [compared.take_step(trainer) for _ in range(compared.STEPS)]
    found.weights = dict(policy.model.state_dict())
    return found


@pytest.fixture(scope="module", params=CASES)
def run(request: pytest.FixtureRequest, parent: Path, by_torch: Found, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A layout, tried once for all tests that ask about it."""
    case, folder = CASES[request.param], tmp_path_factory.mktemp("ranks")
    ranks = in_ranks(case.num_ranks, folder, compared.try_layout, parent, case.layout, case.precision, folder)
    assert all(isinstance(found, Found) for found in ranks), ranks
    return Run(case, parent, folder, by_torch, ranks)


def test_log_probs_are_those_of_torch(run: Run) -> None:
    for found in run.ranks:
        for rows, expected in (
            (found.logprobs, run.torch.logprobs),
            (found.replayed, run.torch.replayed),
            (found.alone, run.torch.alone),
        ):
            assert len(rows) == len(expected)
            for row, expected_row in zip(rows, expected, strict=True):
                assert row == pytest.approx(expected_row, abs=1e-5)
    apart = [
        abs(a - b)
        for row, other in zip(run.torch.replayed, run.torch.logprobs, strict=True)
        for a, b in zip(row, other, strict=True)
    ]
    assert max(apart) > 1e-3  # replay makes a difference here


def test_loss_gradient_norm_and_metrics_of_each_step_are_those_of_torch(run: Run) -> None:
    """With KL towards the parent, entropy, clipping, routing replayed, and gradients cut at their norm."""
    for found in run.ranks:
        assert len(found.steps) == compared.STEPS
        for step, expected in zip(found.steps, run.torch.steps, strict=True):
            assert step["grad_norm"] > compared.GRAD_CLIP
            assert step == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_weights_stay_those_of_torch_over_the_steps(run: Run) -> None:
    for found in run.ranks:
        assert found.weights.keys() == run.torch.weights.keys()
        for name, weight in found.weights.items():
            assert (weight - run.torch.weights[name]).abs().max() < 1e-4, name
    before = compared.parent_policy().model.state_dict()
    assert max((run.torch.weights[name] - weight).abs().max() for name, weight in before.items()) > 1e-2


def test_routers_take_the_experts_of_the_rollout(run: Run) -> None:
    """SLM-06: with R3 on, the routed expert ids of the trainer equal the recorded ones for every response token."""
    layers = set()
    for found in run.ranks:
        for recorded_tK, taken_tK in found.experts:
            asked_t = (recorded_tK != UNRECORDED).all(-1)
            layers.add(len(recorded_tK))
            assert torch.equal(recorded_tK[asked_t].long(), taken_tK[asked_t])
    num_asked = sum(int((recorded != UNRECORDED).all(-1).sum()) for found in run.ranks for recorded, _ in found.experts)
    length = len(compared.sequences()[0].token_ids)
    copies = run.case.num_ranks // run.case.layout.model_parallel
    assert num_asked == copies * (compared.SHAPE.num_layers - compared.SHAPE.first_dense_layers) * (length - 1)


def test_what_was_loaded_is_exported_bit_for_bit(run: Run) -> None:
    assert all(found.exact_export for found in run.ranks)
    given, saved = (load_file(folder / "model.safetensors") for folder in (run.parent, run.folder / "untrained"))
    assert given.keys() == saved.keys()
    assert all(torch.equal(given[name], saved[name]) for name in given)
    assert {file.name for file in run.parent.iterdir()} == {file.name for file in (run.folder / "untrained").iterdir()}


def test_a_training_goes_on_from_its_state_bit_for_bit(run: Run) -> None:
    for found in run.ranks:
        assert found.resumed == found.steps[1:]
        for name, weight in found.weights.items():
            assert torch.equal(weight, found.resumed_weights[name]), name


def test_all_ranks_hear_the_same(run: Run) -> None:
    first, *others = run.ranks
    for other in others:
        assert (other.steps, other.logprobs, other.replayed) == (first.steps, first.logprobs, first.replayed)


def test_bf16_trains_and_goes_on_bit_for_bit(parent: Path, by_torch: Found, tmp_path: Path) -> None:
    layout = CASES["EP2"].layout
    first, second = in_ranks(2, tmp_path, compared.try_layout, parent, layout, "bf16", tmp_path)
    assert first.steps == second.steps
    for step, expected in zip(first.steps, by_torch.steps, strict=True):
        assert step["loss"] == pytest.approx(expected["loss"], rel=0.05, abs=0.05)
    assert first.exact_export
    assert first.resumed == first.steps[1:]
    assert all(torch.equal(weight, first.resumed_weights[name]) for name, weight in first.weights.items())


def test_without_a_gpu_it_says_so(parent: Path, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    (error,) = in_ranks(1, tmp_path, _start, parent)
    assert str(error).startswith("execution.trainer: Megatron-core trains on GPUs, and none is here")


def _start(ranks: object, parent: Path) -> None:
    from rufus_core.training.megatron.trainer import MegatronTrainer

    MegatronTrainer(parent, compared.OPTIMIZER, LayoutSettings(), precision="fp32")
