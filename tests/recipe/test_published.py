"""The production recipe against the printed values: stages.yaml, prompt_sets.yaml and sft_mixture.yaml.

Every printed value is in one of three places: a setting that a step uses, `published`, or (prose) not compared. Where
the paper prints null and the recipe has a value, the line is marked `# open choice`; no other line is.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rufus_core.recipe.document import descend, parse
from rufus_core.recipe.load import DEPLOYMENTS, load_recipe

PRINTED = Path(__file__).resolve().parents[3] / "shared" / "recipe"
pytestmark = pytest.mark.skipif(not PRINTED.is_dir(), reason=f"the printed values are not here: {PRINTED}")

RECIPE_FILE = DEPLOYMENTS / "recipes" / "rufus_air.yaml"
MARK = "# open choice"

# Printed path -> the setting's path, within a stage. {problems} is `data` for SFT.
SETTINGS = {
    "title": "title",
    "section": "section",
    "reward.kind": "reward.kind",
    "reward.max_tests_per_problem": "reward.max_tests_per_problem",
    "reward.min_successful_tool_calls": "reward.min_successful_tool_calls",
    "reward.malformed_call_factor_floor": "reward.malformed_call_factor_floor",
    "reward.no_answer_budget_exhausted": "reward.no_answer_budget_exhausted",
    "optimizer.name": "optimizer.name",
    "optimizer.lr_peak": "optimizer.lr_peak",
    "optimizer.lr_min": "optimizer.lr_min",
    "optimizer.schedule": "optimizer.schedule",
    "optimizer.warmup_steps": "optimizer.warmup_steps",
    "optimizer.betas": "optimizer.betas",
    "optimizer.eps": "optimizer.eps",
    "optimizer.weight_decay": "optimizer.weight_decay",
    "optimizer.grad_clip": "optimizer.grad_clip",
    "batch.prompts_per_rollout": "rollout.prompts_per_rollout",
    "batch.samples_per_prompt": "rollout.samples_per_prompt",
    "batch.opt_steps_per_rollout": "rollout.opt_steps_per_rollout",
    "lengths.response_budget_tokens": "rollout.response_budget_tokens",
    "sampling.temperature": "rollout.temperature",
    "sampling.top_p": "rollout.top_p",
    "algorithm.name": "algorithm.name",
    "algorithm.clip_low": "algorithm.clip_low",
    "algorithm.clip_high": "algorithm.clip_high",
    "algorithm.kl_coef": "algorithm.kl_coef",
    "algorithm.entropy_coef": "algorithm.entropy_coef",
    "algorithm.length_normalization": "algorithm.length_normalization",
    "algorithm.tis": "algorithm.tis",
    "algorithm.tis_cap": "algorithm.tis_cap",
    "stability.r3.enabled": "precision.router_replay",
    "stability.fp8_rollout.layers_bf16_first": "precision.rollout_bf16_first_layers",
    "stability.train_precision": "precision.train",
    "stability.truncation_masking": "algorithm.truncation_masking",
    "stability.length_penalty.cap_value": "length_penalty.cap",
    "stability.length_penalty.threshold_tokens": "length_penalty.threshold_tokens",
    "dynamic_sampling.window.low_exclusive": "dynamic_sampling.low_exclusive",
    "dynamic_sampling.window.high_inclusive": "dynamic_sampling.high_inclusive",
    "dynamic_sampling.window.high_exclusive": "dynamic_sampling.high_exclusive",
    "dynamic_sampling.oversample_factor": "dynamic_sampling.oversample_factor",
    "tools.tool_call_limit_train": "tools.tool_call_limit_train",
    "tools.tool_call_limit_eval": "tools.tool_call_limit_eval",
    "models.teacher": "models.teacher",
    "models.judge": "models.judge",
    "models.eval_judge": "models.eval_judge",
    "models.scrape_summarizer": "models.summarizer",
    "models.reward_model_hf_id": "models.reward_model",
    "compute.nodes": "compute.nodes",
    "compute.gpus_per_node": "compute.gpus_per_node",
    "compute.gpus_per_rollout_engine": "compute.gpus_per_rollout_engine",
    "compute.colocated_rollout": "compute.colocated_rollout",
    "compute.distributed_rollout": "compute.distributed_rollout",
    "compute.wall_clock.hours_per_epoch": "compute.wall_clock.hours_per_epoch",
    "run.epochs": "run.epochs",
    "run.steps_trained": "run.steps",
    "run.checkpoint_interval_steps": "run.checkpoint_interval_steps",
    "run.eval_interval_steps": "run.eval_interval_steps",
    "run.validation_prompts": "problems.num_validation",
}
SFT_SETTINGS = {
    "batch.global_batch_sequences": "batch.global_batch_sequences",
    # SFT has neither rollouts nor a policy-gradient algorithm; what is printed for them is `published`.
    **dict.fromkeys(key for key, setting in SETTINGS.items() if setting.split(".")[0] in ("rollout", "algorithm")),
}
# Settled in a test of their own below, or by arithmetic.
ELSEWHERE = {
    "index", "name", "parent", "phases", "algorithm.advantage",
    "batch.sequences_per_rollout", "batch.global_batch_sequences", "batch.global_batch_sequences_derived",
    "stability.fp8_rollout", "stability.fp8_rollout.enabled",
    "stability.length_penalty", "stability.length_penalty.zero_at_or_below_baseline",
    "dynamic_sampling.enabled", "dynamic_sampling.window", "dynamic_sampling.oversampled_prompts",
    "dynamic_sampling.kept_prompts",
    "compute.gpus_total", "compute.extra_nodes", "compute.extra_nodes.count", "compute.extra_nodes.role",
    "run.primary_metric", "run.guardrail_metrics", "run.shipped_checkpoint",
    "lengths.per_turn_tokens", "lengths.trajectory_tokens",
}  # fmt: skip
PROSE = {
    "capability", "notes", "data.prompt_set", "batch.packing", "batch.data_mix", "tools.tool_surface",
    "reward.figure1_label", "reward.detail", "reward.test_subsample", "reward.infrastructure_failures",
    "reward.unconditional_positive_terms", "stability.r3.basis", "stability.fp8_rollout.basis",
    "stability.length_penalty.kind", "stability.length_penalty.baseline", "stability.length_penalty.max_at",
    "stability.length_penalty.applies_when", "stability.length_penalty.negative_rewards",
    "models.multi_turn_assistants", "compute.sandbox", "run.stop_reason",
}  # fmt: skip
BENCHMARKS = {
    "GPQA": "gpqa_diamond", "AIME 24": "aime_24", "AIME 25": "aime_25", "AIME 26": "aime_26", "IFEval": "ifeval",
    "IFBench": "ifbench", "Multi-challenge": "multi_challenge", "AdvancedIF": "advanced_if", "MCP-Atlas": "mcp_atlas",
    "LiveCodeBench v6 pass@1": "livecodebench_v6_n8", "LiveCodeBench": "livecodebench_v6", "BrowseComp": "browsecomp",
    "Tau2-Retail": "tau2_retail_sonnet_4_5", "Terminal-Bench 2.1": "terminal_bench_2_1", "Seal-0": "seal_0",
    "SWE-bench Verified": "swe_bench_verified", "HLE-Verified": "hle_verified", "Arena-Hard v2 HP": "arena_hard_v2_hp",
    "Arena-Hard v2 CW": "arena_hard_v2_cw",
}  # fmt: skip


def printed(name: str) -> Any:
    return yaml.safe_load((PRINTED / name).read_text())


STAGES = {stage["name"]: stage for stage in printed("stages.yaml")["stages"]} if PRINTED.is_dir() else {}
RECIPE = load_recipe(profile="h200").model_dump(mode="json")
SOURCE = RECIPE_FILE.read_text().splitlines()
TREE = parse(RECIPE_FILE.read_text(), str)
RL_STAGES = [name for name in STAGES if name != "sft"]


def at(tree: Any, path: str) -> Any:
    for key in path.split("."):
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


def leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from leaves(value, f"{prefix}.{key}" if prefix else key)
    else:
        yield prefix, tree


def line_of(path: str) -> str | None:
    """The recipe file's line of a setting, None where the file doesn't say it."""
    taken, node = descend(TREE, path.split("."))
    return SOURCE[int(node.where) - 1] if len(taken) == len(path.split(".")) else None


def is_open(path: str) -> bool:
    line = line_of(path)
    return line is not None and MARK in line


def setting_of(stage: str, key: str) -> str | None:
    return SFT_SETTINGS[key] if stage == "sft" and key in SFT_SETTINGS else SETTINGS.get(key)


@pytest.mark.parametrize("name", STAGES)
def test_each_printed_value_of_a_stage_is_a_setting_or_published_T16(name: str) -> None:
    ours = RECIPE["stages"][name]
    wrong = {}
    for key, value in leaves(STAGES[name]):
        setting = setting_of(name, key)
        if value is None or key in PROSE or key in ELSEWHERE:
            continue
        path = setting or f"published.{key}"
        if at(ours, path) != value:
            wrong[f"{key} -> {path}"] = (value, at(ours, path))
    assert not wrong


@pytest.mark.parametrize("name", RL_STAGES)
def test_a_value_that_the_paper_leaves_open_is_marked_and_no_other(name: str) -> None:
    wrong = []
    for key, setting in SETTINGS.items():
        value = at(STAGES[name], key)
        line = line_of(f"stages.{name}.{setting}")
        ours = at(RECIPE["stages"][name], setting)
        if setting.startswith("compute."):  # placement, said by a profile
            continue
        if value is None and ours is not None and line is not None and MARK not in line:
            wrong.append(f"{setting} = {ours} is not marked")
        if value is not None and line is not None and MARK in line:
            wrong.append(f"{setting} is printed as {value}, yet marked")
    assert not wrong


@pytest.mark.parametrize("name", RL_STAGES)
def test_no_open_value_is_left_to_a_hidden_default(name: str) -> None:
    hidden = [
        setting
        for key, setting in SETTINGS.items()
        if setting.split(".")[0] in ("optimizer", "rollout", "algorithm")
        and line_of(f"stages.{name}.{setting}") is None
        and key != "optimizer.name"
    ]
    assert not hidden


def test_every_mark_is_a_comment_on_a_value() -> None:
    assert sum(MARK in line for line in SOURCE) > 100
    assert all(":" in line.split("#")[0] for line in SOURCE[5:] if MARK in line and not line.startswith("#"))


SUGGESTED = {  # the specification's "Open choices", wherever a stage's value is marked
    "optimizer.betas": [0.9, 0.98],
    "optimizer.eps": 1e-8,
    "optimizer.weight_decay": 0.1,
    "optimizer.grad_clip": 1.0,
    "optimizer.schedule": "constant",
    "optimizer.warmup_steps": 0,
    "rollout.temperature": 1.0,
    "rollout.top_p": 1.0,
    "algorithm.clip_low": 0.2,
    "algorithm.clip_high": 0.28,
    "algorithm.kl_coef": 0.0,
    "algorithm.entropy_coef": 0.0,
    "algorithm.tis_cap": 2.0,
    "algorithm.length_normalization": "per_sequence",
    "algorithm.truncation_masking": False,
    "dynamic_sampling.oversample_factor": 2.0,
    "tools.result_tokens": 8000,
    "tools.command_timeout_seconds": 120.0,
}


@pytest.mark.parametrize("name", RL_STAGES)
def test_open_choices_are_the_suggested_ones(name: str) -> None:
    ours = RECIPE["stages"][name]
    marked = {path: at(ours, path) for path in SUGGESTED if is_open(f"stages.{name}.{path}")}
    assert marked
    assert marked == {path: SUGGESTED[path] for path in marked}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("reasoning_rl.reward.similarity_threshold", 0.9),
        ("reasoning_rl.length_penalty.cap", 0.2),
        ("coding_rl.reward.seconds_per_test", 10.0),
        ("coding_rl.reward.memory_mib", 1024),
        ("if_rl.models.judge", "Qwen3-235B-A22B"),
        ("if_rl.problems.filters.sanity.options.max_context_tokens", 16000),
        ("if_rl.problems.filters.sanity.options.max_refusal_share", 0.05),
        ("general_agent.tools.tool_call_limit_train", 50),
        ("coding_agent.tools.tool_call_limit_train", 100),
        ("rlhf.length_penalty.threshold_tokens", 2000),
        ("rlhf.length_penalty.max_tokens", 8000),
        ("rlhf.problems.filters.validity.options.min_tokens", 5),
        ("rlhf.problems.filters.validity.options.max_repeated_ngram_share", 0.5),
    ],
)
def test_open_choices_of_one_stage(path: str, value: float | str) -> None:
    assert at(RECIPE["stages"], path) == value
    assert is_open(f"stages.{path}")


@pytest.mark.parametrize("name", RL_STAGES)
def test_batch_arithmetic_T16(name: str) -> None:
    batch, rollout = STAGES[name]["batch"], RECIPE["stages"][name]["rollout"]
    sequences = rollout["prompts_per_rollout"] * rollout["samples_per_prompt"]
    assert sequences == batch["sequences_per_rollout"]
    per_step = batch["global_batch_sequences"] or batch["global_batch_sequences_derived"]
    assert sequences / rollout["opt_steps_per_rollout"] == per_step


@pytest.mark.parametrize("name", STAGES)
def test_chain_compute_and_metrics_PIPE_01_INF_02(name: str) -> None:
    theirs, ours = STAGES[name], RECIPE["stages"][name]
    assert ours["parent"] == ("base" if name == "sft" else theirs["parent"])
    assert ours["compute"]["nodes"] * ours["compute"]["gpus_per_node"] == theirs["compute"]["gpus_total"]
    extra = theirs["compute"]["extra_nodes"] or {"count": 0, "role": None}
    assert (ours["compute"]["extra_nodes"], ours["compute"]["extra_nodes_role"]) == (extra["count"], extra["role"])
    for role, key in (("targets", "primary_metric"), ("guardrails", "guardrail_metrics")):
        metrics = theirs["run"].get(key)
        if metrics is not None:
            wanted = [BENCHMARKS[metric] for metric in ([metrics] if isinstance(metrics, str) else metrics)]
            assert ours["evaluation"][role] == wanted


def test_stage_order_and_base_PIPE_01_PIPE_02() -> None:
    document = printed("stages.yaml")
    assert list(RECIPE["stages"]) == document["pipeline"]["order"] == list(STAGES)
    base = document["base_model"]
    assert RECIPE["base"]["name"] == base["name"]
    assert RECIPE["base"]["path"] == base["hf_id"]
    assert RECIPE["base"]["total_params"] == base["total_params"]
    assert RECIPE["base"]["active_params"] == base["active_params"]


def test_pins_INF_01() -> None:
    document = printed("stages.yaml")
    assert RECIPE["pins"] == document["cluster"]["software_pins"]
    assert RECIPE["published"]["paper"] == document["paper"]
    assert RECIPE["published"]["final_checkpoint_name"] == document["final_checkpoint_name"]
    for key in ("gpu", "gpus_per_node", "scheduler"):
        assert RECIPE["published"]["cluster"][key] == document["cluster"][key]


def test_selection_SFT_09_CRL_T6_IF_T1_GA_T2_RM_T3() -> None:
    for name, stage in STAGES.items():
        select, shipped = RECIPE["stages"][name]["run"]["select"], stage["run"]["shipped_checkpoint"]
        if shipped is None:
            assert is_open(f"stages.{name}.run.select")
        elif select["rule"] == "step":
            assert select["step"] == shipped
        elif select["rule"] == "last":
            assert RECIPE["stages"][name]["run"]["steps"] == shipped
        else:
            assert RECIPE["stages"][name]["published"]["run"]["shipped_checkpoint"] == shipped


def test_coding_phases_CRL_T3_CRL_T4() -> None:
    first, second = STAGES["coding_rl"]["phases"]
    ours = RECIPE["stages"]["coding_rl"]
    assert ours["rollout"]["prompts_per_rollout"] == first["prompts_per_rollout"]
    assert ours["algorithm"]["kl_coef"] == first["kl_coef"]
    (phase,) = ours["phases"]
    assert phase["from_step"] == second["first_rollout_step"] == STAGES["coding_rl"]["lengths"]["extension_at_step"] + 1
    assert phase["prompts_per_rollout"] == second["prompts_per_rollout"]
    assert phase["kl_coef"] == second["kl_coef"]
    assert ours["run"]["steps"] == second["last_rollout_step"]
    assert phase["prompts_per_rollout"] * ours["rollout"]["samples_per_prompt"] == second["sequences_per_rollout"]
    assert (ours["rollout"]["response_budget_tokens"], phase["response_budget_tokens"]) == (65536, 131072)
    for theirs, published in zip((first, second), ours["published"]["phases"], strict=True):
        assert published == {key: theirs[key] for key in published}


def test_advantages_SA_T1() -> None:
    for name in RL_STAGES:
        kind = STAGES[name]["algorithm"]["advantage"]
        wanted = {"group_relative": "group_normalised", "mean_only": "mean_only"}[kind]
        assert RECIPE["stages"][name]["algorithm"]["advantage"] == wanted


def test_precision_SLM_07() -> None:
    for name, stage in STAGES.items():
        fp8 = stage["stability"]["fp8_rollout"]
        rollout = RECIPE["stages"][name]["precision"]["rollout"]
        assert rollout == ("fp8" if fp8 and fp8["enabled"] else "bf16")
        if fp8 is None:
            assert is_open(f"stages.{name}.precision.rollout")


def test_dynamic_sampling_PIPE_10() -> None:
    for name in RL_STAGES:
        theirs, ours = STAGES[name]["dynamic_sampling"], RECIPE["stages"][name]["dynamic_sampling"]
        if theirs["enabled"]:
            assert ours is not None
            for bound in ("low_exclusive", "high_inclusive", "high_exclusive"):
                assert ours[bound] == theirs["window"].get(bound)
        if theirs["enabled"] is False:
            assert ours is None
    reasoning = STAGES["reasoning_rl"]["dynamic_sampling"]
    prompts = RECIPE["stages"]["reasoning_rl"]["rollout"]["prompts_per_rollout"]
    factor = RECIPE["stages"]["reasoning_rl"]["dynamic_sampling"]["oversample_factor"]
    assert (prompts, prompts * factor) == (reasoning["kept_prompts"], reasoning["oversampled_prompts"])


def test_lengths_VALID_03_SA_E4() -> None:
    sft, search = RECIPE["stages"]["sft"], RECIPE["stages"]["search_agent"]
    assert (sft["data"]["sample_cap_tokens"], sft["batch"]["context_tokens"]) == (120000, 131072)
    assert (search["rollout"]["response_budget_tokens"], search["rollout"]["trajectory_tokens"]) == (32000, 131072)
    for key in ("per_turn_tokens", "trajectory_tokens"):
        assert search["published"]["lengths"][key] == STAGES["search_agent"]["lengths"][key]
    assert search["tools"]["surface"] == STAGES["search_agent"]["tools"]["tool_surface"]


def test_length_penalties_RRL_R2_RM_R2() -> None:
    reasoning, rlhf = (RECIPE["stages"][name]["length_penalty"] for name in ("reasoning_rl", "rlhf"))
    assert reasoning["kind"] == "shortest_correct"
    assert reasoning["max_tokens"] == RECIPE["stages"]["reasoning_rl"]["rollout"]["response_budget_tokens"]
    assert rlhf["kind"] == "over_length"
    assert is_open("stages.rlhf.length_penalty.max_tokens")
    assert all(RECIPE["stages"][n]["length_penalty"] is None for n in RL_STAGES if n not in ("reasoning_rl", "rlhf"))


# --- prompt_sets.yaml -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RL_STAGES)
def test_each_printed_count_of_a_prompt_set_is_published_T5_T7_T13(name: str) -> None:
    document = printed("prompt_sets.yaml")[name]
    ours = RECIPE["stages"][name]["published"]["data"]
    counts = {
        key: value
        for key, value in leaves(document)
        if isinstance(value, int | float) and not isinstance(value, bool)
        and key.split(".")[0] not in ("filters", "online", "reward", "applied_uniformly_across_families")
    }  # fmt: skip
    assert {key: at(ours, key) for key in counts} == counts


def filters(name: str) -> dict[str, dict[str, Any]]:
    return RECIPE["stages"][name]["problems"]["filters"]


def screen(name: str, key: str) -> tuple[Any, ...]:
    """(samplers, n, low, high inclusive, high exclusive)"""
    found = filters(name)[key]
    bounds = (found["low_exclusive"], found["high_inclusive"], found["high_exclusive"])
    return (tuple(found["samplers"]), found["num_attempts"], *bounds)


def printed_filters(tree: Any) -> dict[str, dict[str, Any]]:
    return {found["name"]: found for found in tree["filters"]}


def test_reasoning_filters_RRL_D4_RRL_D5() -> None:
    theirs = printed_filters(printed("prompt_sets.yaml")["reasoning_rl"])
    assert screen("reasoning_rl", "correctness") == ((theirs["correctness"]["sampler"],), 8, 0.0, None, None)
    assert screen("reasoning_rl", "learnability") == (("policy",), 16, 0.0, 0.8, None)
    assert theirs["learnability_offline"]["keep_iff"] == "0 < p <= 0.8"


def test_coding_filters_CRL_D3_to_CRL_D8() -> None:
    theirs = printed_filters(printed("prompt_sets.yaml")["coding_rl"])
    order = [key for key in filters("coding_rl") if key != "contamination"]
    assert order == ["schema", "deduplication", "leakage", "solvability", "drop_all_pass"]
    prefix, ngram = theirs["lcb_v6_leakage"]["checks"]
    options = filters("coding_rl")["leakage"]["options"]
    assert (options["prefix_chars"], options["ngram_chars"]) == (prefix["prefix_chars"], ngram["ngram_chars"])
    assert f"at least {options['min_shared_ngrams']} shared" in ngram["flag_if"]
    benchmark = theirs["lcb_v6_leakage"]["benchmark"]
    assert RECIPE["benchmarks"]["livecodebench_v6"]["release"] == benchmark["release"]
    leakage = RECIPE["stages"]["coding_rl"]["published"]["data"]["leakage"]
    assert leakage["benchmark"]["problems"] == benchmark["problems"]
    assert leakage["outcome"] == theirs["lcb_v6_leakage"]["outcome"]
    assert screen("coding_rl", "solvability") == ((theirs["teacher_solvability"]["sampler"],), 4, 0.0, None, None)
    assert screen("coding_rl", "drop_all_pass") == (("policy",), theirs["drop_all_pass"]["n"], None, 0.8, None)


def test_printed_sizes_of_prompt_sets_RRL_D3_RRL_D6_CRL_D1_CRL_D9_IF_D1() -> None:
    document = printed("prompt_sets.yaml")
    ours = {name: RECIPE["stages"][name]["published"]["data"] for name in ("reasoning_rl", "coding_rl", "if_rl")}
    for family, row in ours["reasoning_rl"]["table_5"].items():
        theirs = document["reasoning_rl"]["table_5"][family]
        assert row == {key: theirs[key] for key in row}
    families = ours["reasoning_rl"]["table_5"]
    assert sum(families[name]["prompts"] for name in ("math", "science", "puzzles")) == families["total"]["prompts"]
    facts = ours["reasoning_rl"]["facts"]
    assert facts == {key: document["reasoning_rl"]["facts"][key] for key in facts}
    assert (facts["short_answer_prompt_share"], facts["gold_label_median_tokens"]) == (0.835, 5)
    sources = ours["coding_rl"]["table_7"]
    for name, row in sources.items():
        assert row == {key: document["coding_rl"]["table_7"][name][key] for key in row}
    assert sum(row["problems"] for name, row in sources.items() if name != "total") == sources["total"]["problems"]
    assert ours["coding_rl"]["facts"]["codeforces_problems_approx"] / sources["total"]["problems"] == pytest.approx(
        ours["coding_rl"]["facts"]["codeforces_share_approx"], abs=0.01
    )
    datasets = ours["if_rl"]["datasets"]
    assert datasets["verifiable_multi_constraint"]["constraints_per_prompt"] == [2, 6]
    assert [each["prompts"] for each in datasets.values()] == [14000, 13000]
    assert (datasets["multi_turn_conversational"]["mean_turns"], ours["if_rl"]["prompts"]) == (6.1, 27000)
    assert list(RECIPE["stages"]["if_rl"]["problems"]["sources"]) == list(datasets)  # one stage trains on both


def test_rlhf_trains_on_valid_hh_rlhf_prompts_alone_RM_D2_RM_D4() -> None:
    """Neither unfiltered prompts, nor HelpSteer3's, nor those of instruction following or agents."""
    problems = RECIPE["stages"]["rlhf"]["problems"]
    assert list(problems["sources"]) == ["hh_rlhf"]
    assert "validity" in problems["filters"]
    data = RECIPE["stages"]["rlhf"]["published"]["data"]
    assert data["prompts"] == data["table_13"]["hh_rlhf"]["valid"] == 75815
    assert not data["labels_used_in_training"]


def test_instruction_filters_IF_D3_IF_D6() -> None:
    assert list(filters("if_rl")) == ["contamination", "sanity", "quality", "difficulty"]
    for dataset in printed("prompt_sets.yaml")["if_rl"]["datasets"].values():
        theirs = printed_filters(dataset)
        assert screen("if_rl", "quality") == (("Qwen3-235B-A22B",), theirs["quality"]["n"], 0.0, None, None)
        assert screen("if_rl", "difficulty") == (("policy",), theirs["difficulty"]["n"], None, 0.8, None)


def test_agent_filters_GA_D2_GA_D3_CA_D3() -> None:
    theirs = printed_filters(printed("prompt_sets.yaml")["general_agent"])
    assert theirs["correctness"]["samplers"] == ["Qwen3-235B-A22B", "initial policy"]
    assert screen("general_agent", "correctness")[0] == ("Qwen3-235B-A22B", "policy")
    for name, key in (("general_agent", "difficulty"), ("coding_agent", "learnability")):
        assert screen(name, key) == (("policy",), 8, 0.0, 0.8, None)
    files = printed("prompt_sets.yaml")["coding_agent"]["task_format"]["files"]
    assert filters("coding_agent")["structural"]["options"]["require"] == files


def test_search_filters_SA_D2_SA_D3() -> None:
    theirs = printed_filters(printed("prompt_sets.yaml")["search_agent"])
    assert screen("search_agent", "closed_book") == (("policy",), theirs["closed_book"]["n"], None, 0.0, None)
    assert not filters("search_agent")["closed_book"]["tools"]
    n = theirs["learnability"]["n"]
    assert screen("search_agent", "learnability") == (("policy",), n, 0.0, None, 0.5)
    kept = [c for c in range(n + 1) if 0.0 < c / n < 0.5]
    assert [kept[0], kept[-1]] == theirs["learnability"]["boundary_k"]
    assert RECIPE["stages"]["search_agent"]["models"]["judge"] == theirs["learnability"]["grader"]
    problems, held_out = RECIPE["stages"]["search_agent"]["problems"], printed("prompt_sets.yaml")["search_agent"]
    assert problems["num_validation"] == held_out["validation_used_in_training_loop"]
    assert problems["num_validation"] + problems["num_heldout"] == held_out["held_out_validation"]


def test_sources_name_the_printed_data_sets() -> None:
    document = printed("prompt_sets.yaml")
    wanted = {
        "coding_rl": {key: row for key, row in document["coding_rl"]["table_7"].items() if key != "total"},
        "general_agent": {"agent_world_model": document["general_agent"]["source"]},
        "coding_agent": document["coding_agent"]["sources"],
        "search_agent": {"miroverse": document["search_agent"]["source"]},
    }
    for name, rows in wanted.items():
        sources = RECIPE["stages"][name]["problems"]["sources"]
        assert {key: source["hf_id"] for key, source in sources.items()} == {k: r.get("hf_id") for k, r in rows.items()}
        for key, row in rows.items():
            assert sources[key]["terms"] == row.get("licence")
    assert set(RECIPE["stages"]["if_rl"]["problems"]["sources"]) == set(document["if_rl"]["datasets"])
    assert set(RECIPE["stages"]["rlhf"]["problems"]["sources"]) == {document["rlhf"]["selected"]}


# --- sft_mixture.yaml -------------------------------------------------------------------------------------------------


def test_sft_sources_with_two_provenance_columns_MIX_04_MIX_05_MIX_06() -> None:
    document = printed("sft_mixture.yaml")
    sources = RECIPE["stages"]["sft"]["data"]["sources"]
    names = [row["name"].lower().replace("-", "_").replace(".", "_") for row in document["datasets"]]
    assert list(sources) == names
    for row, source in zip(document["datasets"], sources.values(), strict=True):
        assert source["hf_id"] == (row["hf_id"] or row["hf_candidate"])
        assert source["terms"] == row["terms"]
        assert source["upstream"]
        assert source["upstream_generators"] == row["upstream_generators"]
        assert source["restricted"] == ("licence_flag" in row)
    assert {source["category"] for source in sources.values()} == set(document["categories"])  # MIX-02


def test_sft_totals_and_removals_MIX_01_MIX_02_DECON_05_to_DECON_11() -> None:
    document = printed("sft_mixture.yaml")
    ours = RECIPE["stages"]["sft"]["published"]["data"]
    for key in ("totals", "categories", "lengths"):
        assert ours[key] == document[key]
    assert ours["licence_counts"] == document["licence_counts_derived"]
    for key, value in leaves(document["decontamination_removals"]):
        if isinstance(value, int):
            assert at(ours["decontamination_removals"], key) == value
    for key in ("math_plus_coding_agent", "largest_by_samples", "largest_by_train_tokens"):
        assert ours["category_facts"][key] == document["category_facts"][key]


def test_detectors_DECON_01_to_DECON_09() -> None:
    removals = printed("sft_mixture.yaml")["decontamination_removals"]
    ours = RECIPE["decontamination"]
    assert ours["sampled"]["benchmarks"] == removals["sampled_8gram_chain"]["order"]
    for detector in ("exhaustive", "dense"):
        assert ours[detector]["benchmarks"] == removals["math_and_knowledge_detectors"]["benchmarks"]
    sampled, _, dense = printed("prompt_sets.yaml")["common_contamination_screen"]["detectors"]
    assert ours["sampled"]["phrases_per_item"] == sampled["phrases_per_item_approx"]
    assert ours["sampled"]["drop_share"] == sampled["drop_if_item_hit_fraction_at_least"]
    assert ours["sampled"]["phrase_words"] == ours["exhaustive"]["phrase_words"] == 8
    assert ours["exhaustive"]["phrases_per_item"] is None
    assert ours["dense"]["model"] == dense["model"]


# --- evaluation -------------------------------------------------------------------------------------------------------


def test_benchmark_protocols_EVAL_01_EVAL_02_SIM_02() -> None:
    protocol = printed("results.yaml")["protocol"]
    benchmarks = RECIPE["benchmarks"]
    for name, found in benchmarks.items():
        special = {"livecodebench_v6_n8": protocol["avg_at_n"]["table_8_livecodebench"]}
        default = protocol["avg_at_n"]["aime" if name.startswith("aime") else "default"]
        if not name.startswith("arena"):
            assert found["samples_per_problem"] == special.get(name, default), name
    for name in ("arena_hard_v2_hp", "arena_hard_v2_cw"):
        assert benchmarks[name]["judge"] == protocol["arena_hard_judge"]
    for name in ("browsecomp", "seal_0", "hle_verified"):
        assert benchmarks[name]["judge"] == protocol["search_judge"]
    for name in ("tau2_retail", "tau2_airline", "tau2_telecom"):
        assert benchmarks[name]["user_simulator"] == protocol["tau2_user_simulator_table_1"]
    assert benchmarks["tau2_retail_sonnet_4_5"]["user_simulator"] == protocol["tau2_user_simulator_table_10"]


def test_every_row_of_the_results_table_has_a_protocol_T1() -> None:
    rows = printed("results.yaml")["table_1"]["rows"]
    renamed = {
        "ifbench_prompt_strict": "ifbench",
        "ifeval_prompt_strict": "ifeval",
        "hle_verified_gold": "hle_verified",
    }
    assert {renamed.get(name, name) for name in rows} <= set(RECIPE["benchmarks"])
