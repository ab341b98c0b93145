"""Loading: overlays, `--set`, and faults that name their place and the nearest known name."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from rufus_core.errors import ConfigError
from rufus_core.recipe.load import DEPLOYMENTS, load_recipe
from rufus_core.settings import Recipe, RLStage, SFTStage

PROFILES = sorted(file.stem for file in (DEPLOYMENTS / "profiles").glob("*.yaml"))
RECIPES = sorted(file.stem for file in (DEPLOYMENTS / "recipes").glob("*.yaml"))
ORDER = [
    "sft", "reasoning_rl", "coding_rl", "if_rl", "general_agent", "coding_agent", "search_agent", "rlhf",
]  # fmt: skip
SOME_STAGES = {"smol": ["reasoning_rl"], "gpu1": ["reasoning_rl", "coding_rl"]}  # of profiles that drop others


def rl(recipe: Recipe, name: str) -> RLStage:
    stage = recipe.stages[name]
    assert isinstance(stage, RLStage)
    return stage


def fault(*overrides: str, recipe: Path | str = "rufus_air", profile: Path | str = "h200") -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_recipe(recipe, profile, overrides)
    return caught.value


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_loads_under_every_profile_PIPE_01(recipe: str, profile: str) -> None:
    loaded = load_recipe(recipe, profile)
    assert (loaded.name, loaded.profile) == (recipe, profile)
    assert list(loaded.stages) == SOME_STAGES.get(profile, ORDER)


def test_the_default_is_the_cpu() -> None:
    assert load_recipe().profile == "cpu"


def test_the_cpu_profile_keeps_algorithms_and_windows_of_production() -> None:
    cpu, h200 = load_recipe(), load_recipe(profile="h200")
    for name in ORDER[1:]:
        ours, theirs = rl(cpu, name), rl(h200, name)
        assert (ours.algorithm.name, ours.algorithm.advantage) == (theirs.algorithm.name, theirs.algorithm.advantage)
        assert ours.algorithm.tis == theirs.algorithm.tis
        assert (ours.dynamic_sampling is None) == (theirs.dynamic_sampling is None)
        if ours.dynamic_sampling and theirs.dynamic_sampling:
            bounds = ("low_exclusive", "high_inclusive", "high_exclusive")
            for bound in bounds:
                assert getattr(ours.dynamic_sampling, bound) == getattr(theirs.dynamic_sampling, bound)
        assert ours.run.select.rule == "last"
        assert not ours.precision.router_replay
    assert rl(cpu, "search_agent").algorithm.kl_coef == 1e-3  # SA-T3


def test_the_cpu_profile_replaces_whole_sources_and_benchmarks() -> None:
    cpu = load_recipe()
    for stage in cpu.stages.values():
        problems = stage.data if isinstance(stage, SFTStage) else stage.problems
        assert all(source.generator and not source.hf_id for source in problems.sources.values())
        assert stage.published == {}
        assert stage.compute.gpus_per_node == 0
    assert all(found.kind == "heldout" for found in cpu.benchmarks.values())
    sft = cpu.stages["sft"]
    assert isinstance(sft, SFTStage)
    assert len({source.category for source in sft.data.sources.values()}) == 6  # MIX-02
    # supervised data are partly wrong, so that RL has something to mend; only SFT trains on demonstrations
    assert all(0 < source.error_rate < 1 for source in sft.data.sources.values())
    assert cpu.decontamination is None


def test_every_cpu_stage_targets_its_own_problems_PIPE_07() -> None:
    cpu = load_recipe()
    for name, stage in cpu.stages.items():
        assert [cpu.benchmarks[target].stage for target in stage.evaluation.targets] == [name]
        assert all(cpu.benchmarks[guard].stage != name for guard in stage.evaluation.guardrails)


def test_the_cpu_profile_holds_out_enough_problems_to_see_a_change_of_a_few_percent() -> None:
    cpu = load_recipe()
    for stage in cpu.stages.values():
        problems = stage.data if isinstance(stage, SFTStage) else stage.problems
        assert problems.num_heldout >= 200
    assert all((benchmark.num_problems or 200) >= 200 for benchmark in cpu.benchmarks.values())


def test_h200_says_placement_only() -> None:
    said = yaml.safe_load((DEPLOYMENTS / "profiles" / "h200.yaml").read_text())
    assert set(said) == {"execution", "stages"}
    assert {key for stage in said["stages"].values() for key in stage} == {"compute"}


@pytest.mark.parametrize(
    ("argument", "read"),
    [
        ("seed=7", lambda r: r.seed == 7),
        ("stages.if_rl.optimizer.lr_peak=1e-6", lambda r: r.stages["if_rl"].optimizer.lr_peak == 1e-6),
        ("stages.sft.optimizer.betas=[0.8, 0.9]", lambda r: r.stages["sft"].optimizer.betas == (0.8, 0.9)),
        ("stages.coding_rl.phases.0.kl_coef=1e-5", lambda r: r.stages["coding_rl"].phases[0].kl_coef == 1e-5),
        ("stages.coding_rl.phases=[]", lambda r: r.stages["coding_rl"].phases == ()),
        ("stages.reasoning_rl.dynamic_sampling=null", lambda r: r.stages["reasoning_rl"].dynamic_sampling is None),
        ("stages.reasoning_rl.dynamic_sampling=", lambda r: r.stages["reasoning_rl"].dynamic_sampling is None),
        ("stages.coding_rl.dynamic_sampling.low_exclusive=0.1",
         lambda r: r.stages["coding_rl"].dynamic_sampling.low_exclusive == 0.1),
        ("stages.sft.run.select={step: 100}", lambda r: r.stages["sft"].run.select.step == 100),
        ("stages.sft.run.select=!replace {rule: last}", lambda r: r.stages["sft"].run.select.step is None),
        ("stages.if_rl.problems.sources.mine.path=x.jsonl",
         lambda r: r.stages["if_rl"].problems.sources["mine"].path == "x.jsonl"),
        ("stages.if_rl.problems.sources.mine={path: 'a=b.jsonl', format: messages}",
         lambda r: r.stages["if_rl"].problems.sources["mine"].path == "a=b.jsonl"),
        ("stages.if_rl.problems.sources.multi_turn_conversational.options.anything=[1]",
         lambda r: r.stages["if_rl"].problems.sources["multi_turn_conversational"].options == {"anything": [1]}),
        ("benchmarks.mine={kind: heldout, stage: sft}", lambda r: r.benchmarks["mine"].stage == "sft"),
    ],
)  # fmt: skip
def test_set(argument: str, read: object) -> None:
    assert callable(read)
    assert read(load_recipe(profile="h200", overrides=[argument]))


def test_later_arguments_win() -> None:
    assert load_recipe(overrides=["seed=1", "seed=2"]).seed == 2


@pytest.mark.parametrize(
    ("argument", "named"),
    [
        ("sed=1", "'seed'"),
        ("stages.codng_rl.rollout.top_p=1", "'coding_rl'"),
        ("stages.codng_rl={}", "'coding_rl'"),
        ("stages.coding_rl.rollot.top_p=1", "'rollout'"),
        ("stages.coding_rl.rollout.prompts_per_rolout=1", "'prompts_per_rollout'"),
        ("stages.coding_rl.rollout={prompt_per_rollout: 1}", "'prompts_per_rollout'"),
        ("stages.coding_rl.phases.0.kl_coeff=1", "'kl_coef'"),
        ("stages.coding_rl.phases=[{from_stp: 3}]", "'from_step'"),
        ("stages.sft.problems.num_heldout=1", "data"),
        ("stages.if_rl.problems.sources.mine.pth=x", "'path'"),
        ("stages.sft.evaluation.targets=[ifevl]", "'ifeval'"),
        ("benchmarks.mine={kind: heldout, stage: sftt}", "'sft'"),
        ("decontamination.densee.model=x", "'dense'"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(argument: str, named: str) -> None:
    error = fault(argument)
    assert named in str(error)
    assert f"--set {argument}" in str(error)


@pytest.mark.parametrize(
    "argument",
    [
        "seed", "=1", "a..b=1", "seed=[1", "seed='7'", "seed=true", "seed=1.5", "seed.x=1",
        "stages.coding_rl.phases.1.kl_coef=1", "stages.coding_rl.rollout.top_p=1.5", "stages.rlhf=null",
        "stages.sft.precision.train=fp23", "stages.sft.kind=foo", "stages.sft.optimizer=!replace {}",
        "stages.if_rl.run.select={rule: best}", "stages.if_rl.run.select={rule: step}",
        "stages.reasoning_rl.dynamic_sampling.low_exclusive=0.9",
        "stages.reasoning_rl.problems.filters.x={samplers: [policy]}",
        "stages.if_rl.problems.sources.mine={path: a, generator: b}",
        "stages.coding_rl.phases=[{from_step: 9}, {from_step: 9}]",
        "benchmarks.mine={kind: heldout}", "stages.sft.compute.nodes=0", "stages.if_rl.optimizer.lr_peak=nan",
    ],
)  # fmt: skip
def test_a_wrong_value_is_one_clear_fault(argument: str) -> None:
    error = fault(argument)
    assert error.exit_code == 2
    assert error.where is not None
    assert "\n" not in str(error)
    assert len(str(error)) < 300


def test_several_faults_are_told_at_once_but_no_more_than_five() -> None:
    two = str(fault("sed=1", "stages.sft.optimizer.lr=1"))
    assert "2 faults" in two
    assert "'seed'" in two
    assert "lr_peak" in two
    many = str(fault(*(f"wrong_{index}=1" for index in range(9))))
    assert "9 faults" in many
    assert many.count("unknown key") == 5
    assert "and 4 more" in many


@pytest.mark.parametrize(
    ("argument", "culprit"),
    [("stages.if_rl.parent=sft", "if_rl"), ("stages.sft.parent=rlhf", "sft"), ("stages.rlhf.parent=nobody", "rlhf")],
)
def test_stages_form_one_chain_PIPE_01(argument: str, culprit: str) -> None:
    error = fault(argument)
    assert f"stage {culprit!r}" in error.what
    assert error.where == f"--set {argument}"


def test_a_file_is_named_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    profile = tmp_path / "mine.yaml"
    profile.write_text("# mine\nstages:\n  if_rl:\n    optimiser: {lr_peak: 1e-6}\n")
    error = fault(profile="mine.yaml")
    assert error.where == "mine.yaml:4"
    assert error.hint == "did you mean 'optimizer'?"


def test_a_profile_of_ones_own_by_path(tmp_path: Path) -> None:
    profile = tmp_path / "mine.yaml"
    profile.write_text("seed: 5\n")
    loaded = load_recipe(profile=profile)
    assert (loaded.seed, loaded.profile) == (5, "mine")


def test_an_empty_profile_changes_nothing(tmp_path: Path) -> None:
    profile = tmp_path / "h200.yaml"
    profile.write_text("# nothing\n")
    plain = load_recipe(profile=profile)
    assert rl(plain, "coding_rl").optimizer == rl(load_recipe(profile="h200"), "coding_rl").optimizer


@pytest.mark.parametrize("text", ["stages: {codng_rl: {title: x}}", "stages: {new: {title: x}, codng_rl: {}}"])
def test_a_profile_adds_no_stage(tmp_path: Path, text: str) -> None:
    profile = tmp_path / "mine.yaml"
    profile.write_text(text)
    assert "'coding_rl'" in str(fault(profile=profile))


def test_a_recipe_of_ones_own_by_path(tmp_path: Path) -> None:
    recipe, profile = tmp_path / "short.yaml", tmp_path / "none.yaml"
    recipe.write_text(
        "name: short\nbase: {name: b}\nstages:\n  only:\n    kind: sft\n    title: T\n    parent: base\n"
        "    data: {sources: {}}\n    optimizer: {lr_peak: 1e-5}\n    run: {steps: 1, select: {rule: last}}\n"
        "    evaluation: {targets: []}\n    batch: {global_batch_sequences: 1, context_tokens: 8}\n"
    )
    profile.write_text("")
    assert list(load_recipe(recipe, profile).stages) == ["only"]


@pytest.mark.parametrize(
    ("recipe", "profile", "named"),
    [("rufus_ar", "cpu", "rufus_air"), ("rufus_air", "h20", "h200"), ("rufus_air", "no/such.yaml", "no/such.yaml")],
)
def test_a_missing_file_is_refused_with_the_nearest(recipe: str, profile: str, named: str) -> None:
    assert named in str(fault(recipe=recipe, profile=profile))


@pytest.mark.parametrize("content", [b"\xff\xfe", b"- 1\n- 2\n", b"just text", b"a: [1\n"])
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, content: bytes) -> None:
    profile = tmp_path / "bad.yaml"
    profile.write_bytes(content)
    assert "bad.yaml" in str(fault(profile=profile))
