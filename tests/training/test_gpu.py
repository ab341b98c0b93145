"""The torch trainer on a GPU takes the steps that it takes on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
import torch

from rufus_core.algorithms.losses import LossOutput
from rufus_core.errors import ConfigError
from rufus_core.rollout.policy import load_policy
from rufus_core.settings import OptimizerSettings
from rufus_core.training.forward import TokenSequence
from rufus_core.training.torch_trainer import TorchTrainer
from rufus_core.training.trainer import Scored
from tests.training.toy import toy_policy

BATCH = [TokenSequence(k, [5 + k, 9, 7, 8, 6 + k], [0, 0, 1, 1, 1]) for k in range(3)]


def trainer_on(device: Literal["cpu", "cuda"]) -> TorchTrainer:
    return TorchTrainer(toy_policy(), OptimizerSettings(lr_peak=1e-2), reference=True, device=device)


def loss(scored: Scored) -> LossOutput:
    """With a term for each kind of log-prob that a loss may see."""
    assert scored.entropy_N is not None
    assert scored.reference_N is not None
    weights_N = torch.ones(len(scored.batch.sequence_N))  # as losses make them: in the host's memory
    total = (-(scored.logprobs_N - scored.reference_N.detach()) * weights_N - 0.1 * scored.entropy_N).sum()
    return LossOutput(total, len(weights_N), {})


def step(trainer: TorchTrainer) -> tuple[float, float]:
    outputs = trainer.accumulate(BATCH, loss, entropy=True, reference=True)
    return sum(float(output.loss) for output in outputs), trainer.step(1e-2, 1.0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_told() -> None:
    with pytest.raises(ConfigError, match="torch finds none") as caught:
        trainer_on("cuda")
    assert caught.value.where == "compute.gpus_per_node"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")
def test_a_gpu_takes_the_steps_of_a_cpu_and_goes_on_from_its_state(tmp_path: Path) -> None:
    here, there = trainer_on("cpu"), trainer_on("cuda")
    assert next(there.hf_model().parameters()).is_cuda
    for _ in range(2):
        assert step(there) == pytest.approx(step(here), rel=1e-4)
    for expected, found in zip(here.logprobs(BATCH, 1.0), there.logprobs(BATCH, 1.0), strict=True):
        assert found == pytest.approx(expected, abs=1e-4)
    there.save_state(tmp_path)
    resumed = trainer_on("cuda")
    resumed.load_state(tmp_path)
    assert step(resumed) == step(there)
    there.save_policy(tmp_path / "policy")
    saved = load_policy(tmp_path / "policy").model.state_dict()
    assert all(torch.equal(weight.cpu(), saved[name]) for name, weight in there.weights())
