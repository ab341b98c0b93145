"""The plan: arithmetic, phases, cost, data."""

from __future__ import annotations

import json

import pytest

from rufus_core.recipe.load import load_recipe
from rufus_core.recipe.plan import Plan, StagePlan, make_plan


def production(*overrides: str) -> Plan:
    return make_plan(load_recipe(profile="h200", overrides=overrides))


def stage(plan: Plan, name: str) -> StagePlan:
    return next(found for found in plan.stages if found.name == name)


@pytest.mark.parametrize(
    ("name", "gpus", "sequences", "per_step", "opt_steps", "budget"),
    [
        ("sft", 512, 4096, 4096, None, 131072),
        ("reasoning_rl", 64, 4096, 2048, 2, 30000),
        ("coding_rl", 256, 8192, 1024, 8, 65536),
        ("if_rl", 64, 4096, 4096, 1, 16000),
        ("general_agent", 128, 3072, 3072, 1, 32000),
        ("coding_agent", 128, 1024, 1024, 1, 60000),
        ("search_agent", 128, 512, 256, 2, 32000),
        ("rlhf", 64, 3840, 1920, 2, 30000),
    ],
)
def test_table_16(name: str, gpus: int, sequences: int, per_step: int, opt_steps: int | None, budget: int) -> None:
    found = stage(production(), name)
    first = found.phases[0]
    assert (found.gpus, first.sequences, first.sequences_per_step) == (gpus, sequences, per_step)
    assert (first.opt_steps, first.budget_tokens) == (opt_steps, budget)


def test_coding_phase_CRL_T4() -> None:
    first, second = stage(production(), "coding_rl").phases
    assert (first.from_step, first.prompts, first.kl_coef) == (1, 128, 0.0)
    assert (second.from_step, second.prompts, second.budget_tokens, second.kl_coef) == (24, 64, 131072, 1e-6)
    assert second.sequences_per_step == 512


def test_a_phase_keeps_what_it_does_not_say() -> None:
    plan = production("stages.coding_rl.phases=[{from_step: 5, prompts_per_rollout: 32}, {from_step: 9, kl_coef: 0.1}]")
    _, second, third = stage(plan, "coding_rl").phases
    assert (second.kl_coef, second.budget_tokens) == (0.0, 65536)
    assert (third.prompts, third.kl_coef) == (32, 0.1)


def test_sft_cost_derived_and_printed_SFT_11() -> None:
    cost = stage(production(), "sft").cost
    assert cost.gpu_hours == 105 * 3 * 512
    assert (cost.node_days, cost.published_node_days) == (840, 832)
    assert cost.price is None
    priced = stage(production("gpu_hour_price=2.5"), "sft").cost
    assert priced.price == 105 * 3 * 512 * 2.5


def test_cost_is_not_stated_without_a_wall_clock_COST_04() -> None:
    assert [s.name for s in production().stages if s.cost.gpu_hours is not None] == ["sft"]
    assert all(s.cost.gpu_hours is None for s in make_plan(load_recipe()).stages)


def test_steps_that_the_paper_leaves_open_stay_open() -> None:
    assert [s.name for s in production().stages if s.steps is None] == ["reasoning_rl", "coding_agent", "rlhf"]


def test_checks_hold_in_every_profile_and_say_the_arithmetic() -> None:
    for profile in ("cpu", "gpu1", "h200", "node8"):
        checks = make_plan(load_recipe(profile=profile)).checks
        assert checks
        assert all(check.ok for check in checks)
    texts = [check.text for check in production().checks]
    assert "256 x 16 / 2 = 2,048 sequences per optimizer step" in texts
    assert "256 x 4 = 1,024 prompts sampled to keep 256" in texts
    assert "105 h x 3 epochs x 64 nodes = 840 node-days (printed: about 832)" in texts
    assert "2,048 sandboxes at once of 10,000" in texts  # COST-02


@pytest.mark.parametrize(
    "override",
    [
        "stages.if_rl.rollout.opt_steps_per_rollout=3",
        "stages.coding_rl.run.steps=20",
        "stages.sft.run.steps=3000",
        "stages.if_rl.dynamic_sampling.oversample_factor=1.001",
    ],
)
def test_arithmetic_that_does_not_come_out_is_shown(override: str) -> None:
    assert [check.ok for check in production(override).checks].count(False) == 1


def test_data_sizes_and_filters_RRL_D3_PIPE_10() -> None:
    data = stage(production(), "reasoning_rl").data
    assert (data.published_rows, data.published_tokens, data.num_rows) == (121161, 25070000, None)
    assert "learnability: 0 < p <= 0.8 (policy, n=16)" in data.filters
    assert data.online_filter == "0 < mean <= 0.8, oversample x4"
    assert stage(production(), "coding_rl").data.online_filter is None
    assert "drop_all_pass: p <= 0.8 (policy, n=4)" in stage(production(), "coding_rl").data.filters
    assert "closed_book: p <= 0 (policy, n=8, no tools)" in stage(production(), "search_agent").data.filters
    cpu = stage(make_plan(load_recipe()), "sft").data
    assert cpu.num_rows == sum(source.count or 0 for source in cpu.sources) > 0
    assert cpu.published_rows is None


def test_restricted_source_MIX_06() -> None:
    sources = stage(production(), "sft").data.sources
    assert [source.name for source in sources if source.restricted] == ["am_thinking_v1_distilled"]


def test_selection_is_told() -> None:
    selections = {found.name: found.selection for found in production().stages}
    assert selections["sft"] == "step 3799"
    assert selections["coding_rl"] == "peak livecodebench_v6_n8 (printed: step 33)"
    assert selections["if_rl"] == "last"
    (chosen, *_) = make_plan(load_recipe(overrides=["stages.sft.run.select={rule: peak}"])).stages
    assert chosen.selection == "peak validation"


def test_a_plan_is_json() -> None:
    plan = production()
    assert Plan.model_validate_json(json.dumps(plan.model_dump(mode="json"), allow_nan=False)) == plan
