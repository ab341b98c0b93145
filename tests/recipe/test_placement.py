"""What asks for machines, precisions and engines that don't go together is refused; the plan and the jobs agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from rufus_core.errors import ConfigError
from rufus_core.lineage import Store
from rufus_core.recipe.documents import document_of
from rufus_core.recipe.footprint.stage import stage_footprint
from rufus_core.recipe.graph import build_graph
from rufus_core.recipe.load import load_recipe
from rufus_core.recipe.placement import refuse_placement
from rufus_core.settings import ComputeSettings, ExecutionSettings, RLStage, SGLangSettings

PRECISION = "stages.if_rl.precision"
RAY = 'execution={launcher: ray, ray_dashboard: "http://head:8265"}'


def refusal(*overrides: str, profile: str = "cpu") -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        refuse_placement(load_recipe(profile=profile, overrides=overrides))
    return caught.value


@pytest.mark.parametrize(
    ("overrides", "where", "remedy"),
    [
        ([f"{PRECISION}.train=bf16"], f"{PRECISION}.train", [f"{PRECISION}.train=fp32"]),
        (
            [f"{PRECISION}.train=bf16"],
            f"{PRECISION}.train",
            ["execution.trainer=megatron", "execution.engine=sglang"],
        ),
        ([f"{PRECISION}.rollout=bf16"], f"{PRECISION}.rollout", ["execution.engine=sglang"]),
        (["execution.trainer=megatron", f"{PRECISION}.train=bf16"], f"{PRECISION}.train", ["execution.engine=sglang"]),
        (
            ["execution.engine=sglang", f"{PRECISION}.rollout=fp8"],
            f"{PRECISION}.rollout",
            [f"{PRECISION}.rollout=bf16"],
        ),
        (["stages.if_rl.compute.gpus_per_node=1"], "execution.engine", ["execution.engine=sglang"]),
        (["stages.if_rl.compute.nodes=2"], "execution.launcher", [RAY]),
        (["execution.layout.expert_parallel=2"], "execution.layout", ["execution.trainer=megatron"]),
        (
            [
                "execution.trainer=megatron",
                "execution.engine=sglang",
                "execution.layout={tensor_parallel: 2, sequence_parallel: true, expert_parallel: 2}",
                "stages.if_rl.compute.gpus_per_node=3",
            ],
            "execution.layout (tensor x pipeline x context parallel)",
            ["stages.if_rl.compute.gpus_per_node=4"],
        ),
    ],
)
def test_what_does_not_go_together_is_refused_and_can_be_mended(
    overrides: list[str], where: str, remedy: list[str]
) -> None:
    error = refusal(*overrides)
    assert error.where == where
    assert error.hint
    refuse_placement(load_recipe(overrides=[*overrides, *remedy]))


def test_a_hint_says_what_to_set() -> None:
    assert "--set execution.engine=sglang" in (refusal("stages.if_rl.compute.gpus_per_node=1").hint or "")
    assert f"--set {PRECISION}.rollout=fp32" in (refusal(f"{PRECISION}.rollout=bf16").hint or "")


def test_a_layout_that_cannot_fit_is_refused_as_the_plan_refuses_it() -> None:
    changed = "execution.layout.recompute=none"
    error = refusal(changed, profile="h200")
    assert "its largest term is activations" in str(error)
    with pytest.raises(ConfigError) as caught:
        stage_footprint(load_recipe(profile="h200", overrides=[changed]), "reasoning_rl")
    assert str(caught.value) == str(error)


def test_a_job_of_one_pod_spans_no_nodes() -> None:
    assert refusal("execution.kubernetes.kind=job", profile="h200").where == "execution.kubernetes.kind"


@pytest.mark.parametrize("profile", ["gpu1", "node8", "h200"])
def test_no_profile_asks_for_what_placement_refuses(profile: str) -> None:
    refuse_placement(load_recipe(profile=profile))


@pytest.mark.parametrize("profile", ["gpu1", "node8", "h200"])
def test_jobs_have_the_ranks_and_engines_of_the_plan(profile: str) -> None:
    recipe = load_recipe(profile=profile)
    for name, stage in recipe.stages.items():
        planned = stage_footprint(recipe, name)
        assert planned is not None
        job = recipe.execution.for_step("training", stage.compute)
        assert (job.data_parallel, job.num_ranks) == (planned.ranks.data, planned.ranks.gpus)
        assert job.layout == planned.layout
        assert (job.device, job.ray_resources) == ("cuda", {"GPU": 1.0})
        if isinstance(stage, RLStage):
            assert planned.engine is not None
            engines = (job.sglang.num_engines, job.sglang.tensor_parallel, job.sglang.colocated)
            assert engines == (planned.engine.engines, planned.engine.gpus, planned.engine.colocated)


def test_a_document_says_the_placement_of_its_stage_and_can_be_read_again(tmp_path: Path) -> None:
    recipe = load_recipe(overrides=["execution.engine=sglang", "stages.if_rl.compute.gpus_per_node=4"])
    steps = {step.name: step for step in build_graph(recipe)}

    def execution(step: str) -> ExecutionSettings:
        document = document_of(steps[step], {}, Store(tmp_path), recipe.execution, tmp_path / "progress.jsonl")
        return ExecutionSettings.model_validate(document.placement)

    trained, scored, elsewhere = map(execution, ("stages/if_rl/train", "scores/if_rl", "stages/sft/train"))
    assert (trained.data_parallel, trained.device, trained.sglang.tensor_parallel) == (4, "cuda", 4)
    assert (scored.num_ranks, scored.sglang.num_engines, scored.sglang.colocated) == (1, 1, False)
    assert (elsewhere.data_parallel, elsewhere.device, elsewhere.ray_resources) == (1, "cpu", {})


def test_where_no_gpus_are_named_execution_says_how_many_copies_there_are() -> None:
    execution = ExecutionSettings(data_parallel=3)
    assert execution.for_step("training", ComputeSettings()).data_parallel == 3
    assert execution.for_step("training", ComputeSettings(gpus_per_node=8)).data_parallel == 8


def test_engines_of_a_stage_may_have_nodes_of_their_own_and_running_ones_stay_as_they_are() -> None:
    apart = ComputeSettings(nodes=2, gpus_per_node=8, extra_nodes=4, colocated_rollout=False, gpus_per_rollout_engine=4)
    execution = ExecutionSettings()
    engines = execution.for_step("training", apart).sglang
    assert (engines.num_engines, engines.tensor_parallel, engines.colocated) == (8, 4, False)
    assert execution.for_step("scores", apart).sglang.num_engines == 2  # one process has one node
    running = SGLangSettings(urls=("http://10.0.0.1:30000",))
    document = execution.model_copy(update={"sglang": running}).for_step("training", apart).model_dump(mode="json")
    assert ExecutionSettings.model_validate(document).sglang == running


def test_gpus_that_cannot_be_divided_are_refused() -> None:
    with pytest.raises(ConfigError, match="8 GPUs can't be cut into 3 equal parts"):
        ExecutionSettings().for_step("training", ComputeSettings(gpus_per_node=8, gpus_per_rollout_engine=3))
