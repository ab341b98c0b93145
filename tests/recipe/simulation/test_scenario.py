"""From the recipe to a step's model, and what it says against what the paper prints."""

from __future__ import annotations

from functools import cache

import pytest

from rufus_core.errors import ConfigError
from rufus_core.recipe.footprint.parameters import count_parameters
from rufus_core.recipe.load import DEPLOYMENTS, load_recipe
from rufus_core.recipe.simulation.assumptions import load_assumptions
from rufus_core.recipe.simulation.costs import RooflineCost
from rufus_core.recipe.simulation.episodes import DrawnEpisode, Turn
from rufus_core.recipe.simulation.published import printed_flops_share
from rufus_core.recipe.simulation.scenario import step_model
from rufus_core.recipe.simulation.step import StepResult, simulate_step
from rufus_core.settings import RLStage

RECIPE, ASSUMED = load_recipe(profile="h200"), load_assumptions()
ACTIVE = 12_803_366_912  # of GLM-4.5-Air for a token: all but the embedding and 120 of 128 experts a layer
SMALL = 8  # samples a prompt, where a simulation of all would take seconds
RL_STAGES = [name for name, stage in RECIPE.stages.items() if isinstance(stage, RLStage)]


@cache
def simulated(stage: str, nodes: int | None = None, step: int = 1, samples: int | None = None) -> StepResult:
    overrides = [f"stages.{stage}.rollout.samples_per_prompt={samples}"] if samples else []
    nodes = nodes or RECIPE.stages[stage].compute.nodes
    return simulate_step(step_model(load_recipe(profile="h200", overrides=overrides), stage, ASSUMED, nodes, step=step))


def truncated(result: StepResult) -> float:
    return sum(each.episode.truncated for each in result.rollout.episodes) / len(result.rollout.episodes)


def fault(stage: str = "if_rl", nodes: int = 8, profile: str = "h200", assume: tuple[str, ...] = (), **how: int) -> str:
    with pytest.raises(ConfigError) as caught:
        step_model(load_recipe(profile=profile), stage, load_assumptions(overrides=assume), nodes, **how)
    return str(caught.value)


@pytest.mark.parametrize("file", sorted((DEPLOYMENTS / "assumptions").glob("*.yaml")), ids=lambda file: file.stem)
def test_every_file_of_assumptions_loads_and_says_every_rl_stage_of_the_recipe(file) -> None:
    assert set(load_assumptions(file).stages) == set(RL_STAGES)


@pytest.mark.parametrize("stage", RL_STAGES)
def test_more_nodes_make_a_step_quicker_and_dearer(stage: str) -> None:
    results = [simulated(stage, nodes, samples=SMALL) for nodes in (8, 16, 32)]
    seconds = [result.seconds for result in results]
    assert seconds == sorted(seconds, reverse=True)
    assert results[0].gpu_time.total < results[2].gpu_time.total * 1.02  # more cache may save a little at first
    assert {result.rollout.drawn_tokens for result in results} == {results[0].rollout.drawn_tokens}


def test_reasoning_issues_1024_prompts_to_eight_engines_RRL_T6() -> None:
    result = simulated("reasoning_rl")
    assert (result.num_gpus, len(result.rollout.engines)) == (64, 8)
    assert result.rollout.rounds[0].issued_groups == 1024
    assert len(result.rollout.trained) == 256 * 16


def test_shares_of_truncated_responses_are_those_printed() -> None:
    assert 0.15 <= truncated(simulated("reasoning_rl")) <= 0.20
    assert 0.11 <= truncated(simulated("coding_rl", step=23)) <= 0.28  # at 64K
    assert truncated(simulated("coding_rl", step=24)) <= 0.002  # at 128K; printed: below 0.001


def test_lengths_are_those_printed() -> None:
    def mean(stage: str, sampled: bool) -> float:
        drawn = [each.episode for each in simulated(stage, samples=SMALL).rollout.episodes]
        return sum(e.sampled_tokens if sampled else e.num_tokens for e in drawn) / len(drawn)

    assert mean("if_rl", True) == pytest.approx(5400, rel=0.1)
    assert 14_000 <= mean("general_agent", False) <= 16_500


def test_a_phase_changes_the_batch_CRL_T4() -> None:
    assert len(simulated("coding_rl", step=23).rollout.trained) == 128 * 64
    assert len(simulated("coding_rl", step=24).rollout.trained) == 64 * 64


def test_the_printed_hours_of_an_sft_epoch_come_to_a_small_share_of_the_peak_SFT_11() -> None:
    """6 FLOPs for each active parameter of 44.5B tokens, on 512 GPUs of 989.5 TFLOP/s in 105 hours."""
    assert printed_flops_share(RECIPE) == pytest.approx(6 * ACTIVE * 44.5e9 / (512 * 989.5e12 * 105 * 3600), rel=0.01)
    assert printed_flops_share(RECIPE) == pytest.approx(0.0178, abs=1e-4)
    assert printed_flops_share(load_recipe()) is None  # the miniature's SFT prints none


def test_more_passes_over_a_token_where_log_probs_and_a_reference_are_needed() -> None:
    def passes(stage: str, step: int = 1) -> float:
        return step_model(RECIPE, stage, ASSUMED, 8, step=step).trainer.flops_per_token / ACTIVE

    assert passes("if_rl") == 6  # one optimizer step, no reference
    assert passes("coding_rl", 1) == 8  # log-probs before eight of them
    assert passes("coding_rl", 24) == 10  # and a KL


def test_the_policy_and_the_gpus_are_those_of_the_profile() -> None:
    """Qwen3-0.6B on one GPU: 1.5 GB of weights, and 28 layers x 8 heads x 128 x 2 x 2 bytes of cache for each token."""
    recipe = load_recipe(profile="gpu1")
    assert recipe.base.architecture is not None
    model = step_model(recipe, "reasoning_rl", ASSUMED, 1)
    assert model.gpus_per_engine == 1
    cost = model.rollout.engine.cost
    assert isinstance(cost, RooflineCost)
    assert cost.kv_bytes_per_token == 28 * 8 * 128 * 2 * 2
    assert cost.expert_bytes == 0
    assert cost.dense_bytes == pytest.approx(2 * count_parameters(recipe.base.architecture).total)


def test_recorded_episodes_take_the_place_of_assumed_lengths() -> None:
    recorded = [DrawnEpisode(10, (Turn(7),), False)]
    model = step_model(RECIPE, "if_rl", ASSUMED, 8, recorded=recorded)
    assert {each.episode.sampled_tokens for each in simulate_step(model).rollout.episodes} == {7}


def test_what_cannot_be_simulated_is_told_with_its_place() -> None:
    assert "'sft' is no RL stage" in fault("sft")
    assert "did you mean 'if_rl'" in fault("if_r")
    assert "stages.if_rl.compute.gpus_per_node: this stage has no GPUs" in fault(profile="cpu")
    assert "hold no engine of 8" in fault(nodes=2, train_nodes=2)
    tiny = fault("coding_rl", assume=("engine.memory_share=0.12",), step=24)
    assert "stages.coding_rl.compute.gpus_per_rollout_engine" in tiny
    assert "not even its weights" in fault(assume=("engine.memory_share=0.01",))
    assert "did you mean 'memory_share'" in fault(assume=("engine.memory_shar=1",))
    assert "nothing is assumed of the episodes of 'if_rl'" in fault(assume=("stages=!replace {}",))
