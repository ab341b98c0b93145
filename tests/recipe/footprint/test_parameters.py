"""Parameter counts against real models of transformers, and against what is printed (PIPE-02)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PretrainedConfig

from rufus_core.errors import ConfigError
from rufus_core.recipe.footprint.parameters import count_parameters, rank_parameters
from rufus_core.recipe.footprint.stage import architecture_of
from rufus_core.recipe.load import load_recipe
from rufus_core.settings import ArchitectureSettings, LayoutSettings
from rufus_core.settings.architecture import read_architecture
from tests.recipe.footprint.models import GLM_4_5_AIR, QWEN3_0_6B, QWEN3_1_7B_BASE, on_meta


def architecture(profile: str) -> ArchitectureSettings:
    found = load_recipe(profile=profile).base.architecture
    assert found is not None
    return found


ARCHITECTURES = {profile: architecture(profile) for profile in ("h200", "gpu1", "node8")}


@pytest.mark.parametrize(
    ("profile", "config"), [("h200", GLM_4_5_AIR), ("gpu1", QWEN3_0_6B), ("node8", QWEN3_1_7B_BASE)]
)
def test_a_profiles_architecture_has_as_many_parameters_as_the_model(profile: str, config: PretrainedConfig) -> None:
    arch = ARCHITECTURES[profile]
    assert arch == read_architecture(config.to_dict())
    assert count_parameters(arch).total == on_meta(config).num_parameters()


def test_the_printed_counts_PIPE_02() -> None:
    """106B in total, 12B active: as the report of GLM-4.5 counts, without embedding and output."""
    base, counts = load_recipe(profile="h200").base, count_parameters(ARCHITECTURES["h200"])
    assert f"{counts.in_layers / 1e9:.0f}B" == base.total_params == "106B"
    assert f"{(counts.active - counts.output) / 1e9:.0f}B" == base.active_params == "12B"
    assert (round(counts.total / 1e9, 2), round(counts.active / 1e9, 2)) == (106.85, 12.80)


def test_a_directorys_own_configuration_is_read(tmp_path: Path) -> None:
    on_meta(QWEN3_0_6B).config.save_pretrained(tmp_path)
    stated = load_recipe(profile="h200").base
    found = architecture_of(stated.model_copy(update={"path": str(tmp_path)}))
    assert found == read_architecture(QWEN3_0_6B.to_dict())
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ConfigError, match=r"config\.json: no decoder's configuration"):
        architecture_of(stated.model_copy(update={"path": str(tmp_path)}))


@given(
    profile=st.sampled_from(["h200", "gpu1", "node8"]),
    tensor=st.sampled_from([1, 2, 4]),
    pipeline=st.sampled_from([1, 2]),
    expert=st.sampled_from([1, 8, 32]),
)
def test_ranks_hold_the_model_together(profile: str, tensor: int, pipeline: int, expert: int) -> None:
    arch = ARCHITECTURES[profile]
    layout = LayoutSettings(tensor_parallel=tensor, pipeline_parallel=pipeline, expert_parallel=expert)
    held = sum(rank.shared * tensor + rank.experts * expert for rank in rank_parameters(arch, layout))
    twice = arch.vocab_size * arch.hidden_size if pipeline > 1 and arch.tied_embeddings else 0
    assert held == count_parameters(arch).total + twice
