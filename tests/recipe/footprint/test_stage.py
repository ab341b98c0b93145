"""Footprints of the recipe's stages under the profiles with GPUs."""

from __future__ import annotations

import pytest

from rufus_core.errors import ConfigError
from rufus_core.recipe.footprint.gpus import ASSUMPTIONS
from rufus_core.recipe.footprint.stage import StageFootprint, stage_footprint
from rufus_core.recipe.load import load_recipe
from rufus_core.settings import RLStage


def footprint(stage: str, *overrides: str, profile: str = "h200") -> StageFootprint:
    found = stage_footprint(load_recipe(profile=profile, overrides=overrides), stage)
    assert found is not None
    return found


@pytest.mark.parametrize("profile", ["h200", "gpu1", "node8"])
def test_every_stage_fits_its_gpus_and_uses_all_of_them(profile: str) -> None:
    recipe = load_recipe(profile=profile)
    for name, stage in recipe.stages.items():
        found = footprint(name, profile=profile)
        gpus = stage.compute.nodes * stage.compute.gpus_per_node
        assert found.ranks.gpus == gpus
        assert found.ranks.data * found.layout.model_parallel == gpus
        assert found.training.total < found.gpu_bytes - ASSUMPTIONS.reserve_bytes
        assert (found.engine is not None) == isinstance(stage, RLStage)
        if found.engine is not None:
            assert found.engine.engines * found.engine.gpus == gpus
            assert found.engine.memory.total <= found.gpu_bytes - ASSUMPTIONS.reserve_bytes + 1


def test_no_gpus_no_footprint() -> None:
    recipe = load_recipe(profile="cpu")
    assert all(stage_footprint(recipe, name) is None for name in recipe.stages)
    assert stage_footprint(load_recipe(profile="h200", overrides=["base.architecture=null"]), "sft") is None


def test_the_printed_wall_clock_of_sft_says_what_the_hardware_did_SFT_11_MIX_01() -> None:
    """105 h per epoch on 512 GPUs is about a fortieth of the peak: told as it is, and not tuned to."""
    printed = footprint("sft").printed
    assert printed is not None
    assert printed.tokens == pytest.approx(44.5e9, rel=1e-3)
    assert printed.tokens_per_second == pytest.approx(230, rel=0.01)
    assert 0.02 < printed.mfu < 0.03 < ASSUMPTIONS.flops_share
    assert footprint("reasoning_rl").printed is None


def test_one_node_does_not_hold_the_optimizer_of_glm_4_5_air() -> None:
    recipe = load_recipe(profile="h200")
    arch, layout = recipe.base.architecture, recipe.execution.layout.model_copy(update={"expert_parallel": 8})
    assert arch is not None
    overrides = (
        f"base.architecture=!replace {arch.model_dump_json()}",
        f"execution={{trainer: megatron, layout: {layout.model_dump_json()}}}",
        "stages.sft.precision.train=bf16",
    )
    with pytest.raises(ConfigError, match=r"largest term is optimizer, 160\.\d GB"):
        footprint("sft", *overrides, profile="node8")


def test_megatron_takes_no_other_family_in_the_plan_either() -> None:
    with pytest.raises(ConfigError, match=r"execution\.trainer: .* this is a qwen3 without experts"):
        footprint("sft", "execution.trainer=megatron", profile="node8")


@pytest.mark.parametrize(
    ("override", "term", "change"),
    [
        ("stages.sft.compute.layout.distributed_optimizer=false", "optimizer", "grows"),
        ("stages.sft.compute.layout.expert_parallel=64", "weights", "shrinks"),
        ("stages.sft.batch.context_tokens=65536", "activations", "shrinks"),
        ("stages.sft.batch.context_tokens=65536", "logits", "shrinks"),
        ("stages.sft.precision.train=fp32", "weights", "grows"),
    ],
)
def test_what_changes_a_term(override: str, term: str, change: str) -> None:
    before, after = (getattr(footprint("sft", *said).training, term) for said in ((), (override,)))
    assert after > before if change == "grows" else after < before


def test_distance_from_a_reference_costs_a_second_policy() -> None:
    assert footprint("rlhf").training.reference == 0
    paid = footprint("rlhf", "stages.rlhf.algorithm.kl_coef=0.1")
    assert paid.training.reference == paid.training.weights
    assert paid.phases[0].logprob_seconds == 2 * footprint("rlhf").phases[0].logprob_seconds


def test_engines_of_their_own_leave_the_trainer_its_gpus() -> None:
    apart = "{colocated_rollout: false, extra_nodes: 4, extra_nodes_role: rollout, gpus_per_rollout_engine: 8}"
    found = footprint("if_rl", f"stages.if_rl.compute={apart}").engine
    assert found is not None
    assert (found.engines, found.memory.trainer, found.colocated) == (4, 0.0, False)
    with pytest.raises(ConfigError, match="no other node is theirs"):
        footprint("if_rl", "stages.if_rl.compute.colocated_rollout=false")


def test_a_trainer_that_cuts_nothing_refuses_a_layout_that_does() -> None:
    with pytest.raises(ConfigError, match="knows nothing of tensor_parallel, expert_parallel"):
        footprint("if_rl", "execution.trainer=torch")


def test_an_engine_that_cannot_hold_a_rollout_names_its_largest_term() -> None:
    with pytest.raises(ConfigError, match=r"needs 3\.3 GB of kv_cache .* largest term is weights, 213\.7 GB"):
        footprint("if_rl", "stages.if_rl.compute.gpus_per_rollout_engine=1")


def test_hours_are_those_of_all_phases_and_all_nodes() -> None:
    found = footprint("coding_rl")
    first, second = found.phases
    assert found.run is not None
    assert found.run.gpu_hours == pytest.approx((23 * first.seconds + 11 * second.seconds) / 3600 * 256)
    assert found.run.calls.test_runs == 50 * (23 * 8192 + 11 * 4096)
    rlhf = footprint("rlhf", "stages.rlhf.run.steps=29", "gpu_hour_price=2")
    assert rlhf.run is not None
    assert rlhf.run.gpu_hours == pytest.approx(29 * rlhf.phases[0].seconds / 3600 * 72)  # the reward model's node too
    assert rlhf.run.gpu_price == 2 * rlhf.run.gpu_hours


def test_what_a_stage_will_see_may_be_left_open() -> None:
    found = footprint("if_rl", "stages.if_rl.compute.load=null")
    assert (found.phases, found.run) == ((), None)
    assert found.training.total > 0
