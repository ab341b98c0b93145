"""Layouts that can't be cut are refused with their place; those that can are whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rufus_core.errors import ConfigError
from rufus_core.settings import LayoutSettings
from rufus_core.settings.architecture import read_architecture
from rufus_core.settings.layout import cut, cut_engine
from tests.recipe.footprint.models import GLM_4_5_AIR, QWEN3_0_6B

AIR, DENSE = (read_architecture(config.to_dict()) for config in (GLM_4_5_AIR, QWEN3_0_6B))


@pytest.mark.parametrize(
    ("layout", "gpus", "place", "told"),
    [
        ({"tensor_parallel": 5}, 64, "tensor_parallel", "96 attention heads can't be cut into 5 equal parts (1, 2, 3"),
        ({"tensor_parallel": 16}, 64, "tensor_parallel", "8 key and value heads can't be cut into 16"),
        ({"pipeline_parallel": 4}, 64, "pipeline_parallel", "46 layers can't be cut into 4 equal parts (1, 2, 23, 46"),
        ({"expert_parallel": 12}, 48, "expert_parallel", "128 experts can't be cut into 12"),
        ({"expert_parallel": 64}, 32, "expert_parallel", "32 ranks of a pipeline stage can't be cut into 64"),
        ({"tensor_parallel": 8, "sequence_parallel": True}, 12, "", "12 ranks can't be cut into 8"),
        ({"tensor_parallel": 2}, 8, "sequence_parallel", "only where sequences are cut too"),
        ({"sequence_parallel": True}, 8, "sequence_parallel", "over the ranks of tensor_parallel, which is 1"),
        ({"tensor_parallel": 2, "sequence_parallel": True}, 8, "expert_parallel", "can't be written as a Hugging Face"),
        ({"context_parallel": 2}, 8, "context_parallel", "sequences are not cut for it yet"),
    ],
)
def test_what_does_not_divide_is_refused_at_its_place(layout: dict[str, int], gpus: int, place: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        cut(AIR, LayoutSettings.model_validate(layout), gpus, "layout")
    assert (caught.value.where or "").startswith(f"layout.{place}" if place else "layout (")
    assert told in str(caught.value)


def test_a_dense_policy_has_no_experts_to_cut() -> None:
    with pytest.raises(ConfigError, match="the policy has no experts"):
        cut(DENSE, LayoutSettings(expert_parallel=2), 2, "layout")


def test_engines_may_hold_a_head_of_keys_several_times_but_no_part_of_one() -> None:
    assert cut_engine(AIR, 64, 16, "engine") == 4
    for gpus in (3, 5, 128):
        with pytest.raises(ConfigError):
            cut_engine(AIR, 384, gpus, "engine")


@given(
    tensor=st.sampled_from([1, 2, 4, 8]),
    pipeline=st.sampled_from([1, 2]),
    expert=st.sampled_from([1, 2, 4, 8]),
    nodes=st.integers(4, 64),
)
def test_every_gpu_has_its_part(tensor: int, pipeline: int, expert: int, nodes: int) -> None:
    layout = LayoutSettings(
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        expert_parallel=expert,
        sequence_parallel=tensor > 1,
    )
    try:
        ranks = cut(AIR, layout, 8 * nodes, "layout")
    except ConfigError:
        assert 8 * nodes % (tensor * pipeline) or 8 * nodes // pipeline % expert or (tensor > 1 and expert == 1)
        return
    assert ranks.data * layout.model_parallel == ranks.expert_data * pipeline * expert == ranks.gpus == 8 * nodes
