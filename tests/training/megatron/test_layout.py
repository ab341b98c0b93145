"""What Megatron-core couldn't train rightly is refused in the recipe's words, before anything is built."""

from __future__ import annotations

import pytest
from transformers import LlamaConfig

from rufus_core.errors import ConfigError
from rufus_core.settings import LayoutSettings
from rufus_core.training.megatron.layout import check_layout, has_transformer_engine
from tests.training.megatron.compared import parent_policy

CUT = {"tensor_parallel": 2, "sequence_parallel": True, "expert_parallel": 2}


@pytest.mark.skipif(has_transformer_engine(), reason="TransformerEngine is installed, and less is refused")
@pytest.mark.parametrize(
    ("layout", "num_ranks", "told"),
    [
        ({**CUT, "tensor_parallel": 4}, 4, "execution.layout.tensor_parallel: 2 attention heads can't be cut into 4"),
        ({"pipeline_parallel": 3}, 3, "execution.layout.pipeline_parallel: 4 layers can't be cut into 3 equal parts"),
        ({"expert_parallel": 3}, 3, "execution.layout.expert_parallel: 4 experts can't be cut into 3 equal parts"),
        (
            {"expert_parallel": 4},
            2,
            "execution.layout.expert_parallel: 2 ranks of a pipeline stage can't be cut into 4",
        ),
        ({"pipeline_parallel": 2}, 3, "execution.layout (tensor x pipeline x context parallel): 3 ranks can't"),
        ({**CUT, "sequence_parallel": False}, 2, "execution.layout.sequence_parallel: experts are trained with"),
        ({"sequence_parallel": True}, 1, "execution.layout.sequence_parallel: sequence_parallel cuts over the ranks"),
        (
            {**CUT, "expert_parallel": 1},
            2,
            "execution.layout.expert_parallel: with tensor_parallel and expert_parallel 1",
        ),
        ({"context_parallel": 2}, 2, "execution.layout.context_parallel: context_parallel needs TransformerEngine"),
        ({"distributed_optimizer": True}, 1, "execution.layout.distributed_optimizer: no training can go on from"),
    ],
)
def test_layouts_that_are_refused(layout: dict[str, object], num_ranks: int, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_layout(parent_policy().model.config, LayoutSettings.model_validate(layout), num_ranks)
    assert str(refused.value).startswith(told)
    assert refused.value.hint


@pytest.mark.parametrize(
    ("layout", "num_ranks"), [({}, 1), ({"expert_parallel": 4}, 4), (CUT, 2), ({**CUT, "pipeline_parallel": 4}, 16)]
)
def test_layouts_that_are_taken(layout: dict[str, object], num_ranks: int) -> None:
    check_layout(parent_policy().model.config, LayoutSettings.model_validate(layout), num_ranks)


@pytest.mark.parametrize("change", [{"n_group": 2}, {"num_experts_per_tok": 1}, {"norm_topk_prob": False}])
def test_a_router_of_another_kind_is_refused(change: dict[str, object]) -> None:
    config = parent_policy().model.config
    config.update(change)
    with pytest.raises(ConfigError, match=r"execution\.trainer: this policy routes by groups"):
        check_layout(config, LayoutSettings(), 1)


def test_another_family_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"execution\.trainer: Megatron-core trains GLM-4\.5 .* is a llama"):
        check_layout(LlamaConfig(), LayoutSettings(), 1)
