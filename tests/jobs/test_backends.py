"""What `execution` names is what trains and rolls out, or it is told why not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rufus_core.algorithms.losses import LossOutput
from rufus_core.errors import ConfigError
from rufus_core.jobs.backends import neighbours, open_trainer
from rufus_core.rollout.opening import placed_engines
from rufus_core.settings import ExecutionSettings, PrecisionSettings, SGLangSettings
from rufus_core.training.forward import TokenSequence
from rufus_core.training.ranks import ALONE
from rufus_core.training.trainer import Scored
from tests.training import toy


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parent")
    toy.toy_policy().save(folder)
    return folder


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("stage", [toy.sft_stage(), toy.rl_stage()], ids=["sft", "rl"])
def test_a_stage_that_names_gpus_trains_on_no_processor_instead(parent: Path, stage: object) -> None:
    with pytest.raises(ConfigError, match="torch finds none"):
        open_trainer(ExecutionSettings(device="cuda"), parent, stage, ALONE)  # type: ignore[arg-type]


def test_a_reference_is_kept_where_a_step_measures_a_kl(parent: Path) -> None:
    stage = toy.rl_stage(algorithm={"kl_coef": 0.1})
    trainer = open_trainer(ExecutionSettings(), parent, stage, ALONE)
    [sequence] = toy.examples(toy.toy_policy(), 1)

    def same(scored: Scored) -> LossOutput:
        assert scored.reference_N is not None
        assert torch.equal(scored.reference_N, scored.logprobs_N)
        return LossOutput(scored.logprobs_N.sum(), len(scored.logprobs_N), {})

    outputs = trainer.accumulate([TokenSequence(0, sequence.token_ids, sequence.loss_mask)], same, reference=True)
    assert sum(output.num_tokens for output in outputs) > 0


def test_colocated_engines_take_turns_with_the_next_ranks_SLM_10(parent: Path) -> None:
    """SLM-10: "rollout engines and trainer share GPUs and alternate"."""
    sglang = {"num_engines": 2, "tensor_parallel": 4, "colocated": True}
    execution = ExecutionSettings(engine="sglang", sglang=sglang, layout={"tensor_parallel": 2})
    first, second = placed_engines(execution, parent, 64, PrecisionSettings())
    assert (first.beside, second.beside) == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert not first.resources  # the ranks have asked for the GPUs
    assert neighbours(execution) == 4


def test_engines_apart_ask_for_gpus_of_their_own(parent: Path) -> None:
    execution = ExecutionSettings(engine="sglang", sglang={"num_engines": 2, "tensor_parallel": 4})
    engines = placed_engines(execution, parent, 64, PrecisionSettings())
    assert [(each.beside, dict(each.resources)) for each in engines] == [((), {"GPU": 4.0})] * 2
    assert neighbours(execution) == 1
    assert "{port}" in engines[0].command
    running = execution.model_copy(update={"sglang": SGLangSettings(urls=("http://h:1",))})
    assert placed_engines(running, parent, 64, PrecisionSettings()) == []
