"""The graph of a recipe: every artifact as a step, with what it is made from. Pure; nothing runs here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rufus_core.errors import ConfigError
from rufus_core.lineage.external import external_file
from rufus_core.lineage.resolve import checkpoint_name
from rufus_core.recipe.base_files import base_files, gguf_file
from rufus_core.recipe.filters import screens_of
from rufus_core.recipe.problem_steps import hash_of, problems_step
from rufus_core.recipe.step import Step, seed_of
from rufus_core.recipe.unsupported import refuse_unsupported
from rufus_core.recipe.validate import nearest
from rufus_core.rewards.judges import JUDGES, judge_identity
from rufus_core.settings import DIAGNOSTIC, POLICY, FilterSettings, Recipe, RLStage, SFTStage
from rufus_core.types import Json

# What a stage's training depends on; data, parent and reward model enter by digest instead.
_TRAINING_FIELDS: dict[str, bool | set[str]] = {
    **dict.fromkeys(("optimizer", "precision", "batch", "rollout", "algorithm", "dynamic_sampling", "phases"), True),
    **dict.fromkeys(("length_penalty", "tools", "models", "reward"), True),
    "run": {"steps", "checkpoint_interval_steps"},
}
# What decides how a held-out problem is played; the benchmark says the temperature and the number of samples.
_PLAY_FIELDS: dict[str, bool | set[str]] = {
    "rollout": {"response_budget_tokens", "trajectory_tokens"},
    **dict.fromkeys(("tools", "models", "reward"), True),
}


def checkpoint_of(stage: str) -> str:
    """Name of the step whose artifact a stage (or `base`) hands on."""
    return "base" if stage == "base" else checkpoint_name(stage)


def build_graph(recipe: Recipe) -> list[Step]:
    """All steps in an order in which each comes after its inputs.

    Raises:
        ConfigError: a stage can't be run with this recipe, or asks for something that this release doesn't do.
        DataError: a data file of the user's is missing or can't be read.
    """
    refuse_unsupported(recipe)
    steps = [_base(recipe)]
    steps += [problems_step(recipe, name) for name in recipe.stages]
    steps += _scores(recipe, "base", "the base policy")
    for name, stage in recipe.stages.items():
        if isinstance(stage, RLStage):
            steps += _screens(recipe, name, stage)
            if stage.reward_model is not None:
                steps.append(_reward_model(recipe, name, stage))
        steps += [_training(recipe, name), _checkpoint(recipe, name), *_scores(recipe, name, stage.title)]
    return steps


def _base(recipe: Recipe) -> Step:
    base = recipe.base
    config: dict[str, Json] = base.model_dump(mode="json", include={"shape", "pretrain"})
    external = {}
    if base.path is not None:
        files = base_files(base.path)
        config = {"files": {name: external_file(str(file)).sha256 for name, file in files.items()}}
        external = {name: str(file) for name, file in files.items()}
    elif base.gguf is not None:
        path = str(gguf_file(base.gguf))
        config, external = {"gguf": external_file(path).sha256}, {"gguf": path}
    elif base.shape is None or base.pretrain is None:
        raise ConfigError(
            f"{base.name} is not on this machine",
            where="base",
            hint="give its directory with --set base.path=DIR, or use --profile cpu",
        )
    return Step("base", "base", "base policy", config, external=external, seed=seed_of(recipe, "base"))


def _screens(recipe: Recipe, name: str, stage: RLStage) -> Iterator[Step]:
    """One step for each screen of a stage's training problems (PIPE-10), in their order."""
    problems = f"data/{name}"
    for key, settings in screens_of(stage).items():
        step = screen_step(recipe, name, stage, key, settings, problems)
        problems = step.name
        yield step


def screen_step(recipe: Recipe, name: str, stage: RLStage, key: str, settings: FilterSettings, problems: str) -> Step:
    """The screen `key` of what the step `problems` left. Its policy is the stage's initial checkpoint."""
    inputs = {"problems": problems}
    if POLICY in settings.samplers:
        inputs["policy"] = checkpoint_of(stage.parent)
    return Step(
        name=f"screens/{name}/{key}",
        kind="screen",
        title=f"{stage.title}: {key}",
        stage=name,
        config={
            "filter": settings.model_dump(mode="json"),
            "temperature": stage.rollout.temperature,
            "play": _play(recipe, [name]),
        },
        inputs=inputs,
        seed=seed_of(recipe, "screen", name, key),
        compute=stage.compute,
    )


def _training_problems(name: str, stage: SFTStage | RLStage) -> str:
    """Name of the step whose problems a stage trains on: the last screen's, or else all that it has."""
    screens = list(screens_of(stage)) if isinstance(stage, RLStage) else []
    return f"screens/{name}/{screens[-1]}" if screens else f"data/{name}"


def _reward_model(recipe: Recipe, name: str, stage: RLStage) -> Step:
    assert stage.reward_model is not None
    return Step(
        name=f"stages/{name}/reward_model",
        kind="reward_model",
        title=f"{stage.title}: reward model",
        stage=name,
        config={"settings": stage.reward_model.model_dump(mode="json"), "split_seed": recipe.seed},
        inputs={"policy": checkpoint_of("sft")},
        seed=seed_of(recipe, "reward_model", name),
    )


def _training(recipe: Recipe, name: str) -> Step:
    stage = recipe.stages[name]
    if stage.run.steps is None:
        raise ConfigError(
            "the recipe doesn't say how many steps to train",
            where=f"stages.{name}.run.steps",
            hint=f"--set stages.{name}.run.steps=N",
        )
    diagnostic, external = _diagnostic(name, stage)
    config: dict[str, Json] = {
        "kind": stage.kind,
        "settings": stage.model_dump(mode="json", include=_TRAINING_FIELDS),
        **_judges(stage),
        **diagnostic,
    }
    inputs = {"parent": checkpoint_of(stage.parent), "problems": _training_problems(name, stage)}
    if isinstance(stage, RLStage) and stage.reward_model is not None:
        inputs["reward_model"] = f"stages/{name}/reward_model"
    return Step(
        name=f"stages/{name}/train",
        kind="training",
        title=f"{stage.title}: train",
        stage=name,
        config=config,
        inputs=inputs,
        external=external,
        seed=seed_of(recipe, "train", name),
        compute=stage.compute,
    )


def _diagnostic(name: str, stage: SFTStage | RLStage) -> tuple[dict[str, Json], dict[str, str]]:
    """A training's diagnostic prompts in its identity, by hash, and where they lie; nothing where it has none."""
    if isinstance(stage, SFTStage) or stage.diagnostic is None:
        return {}, {}
    place, interval = f"stages.{name}.diagnostic", stage.run.eval_interval_steps
    if interval is None:
        where = f"stages.{name}.run.eval_interval_steps"
        raise ConfigError("the diagnostic needs an interval", where=where, hint=f"--set {where}=5")
    settings = stage.diagnostic
    config = {"sha256": hash_of(settings.path, place), "num_prompts": settings.num_prompts, "interval_steps": interval}
    return {DIAGNOSTIC: config}, {DIAGNOSTIC: settings.path}


def _checkpoint(recipe: Recipe, name: str) -> Step:
    stage = recipe.stages[name]
    select = stage.run.select
    config: dict[str, Json] = {"select": select.model_dump(mode="json")}
    inputs = {"training": f"stages/{name}/train"}
    if select.rule == "peak":
        inputs["problems"] = f"data/{name}"
        config["play"] = _play(recipe, [name])
    return Step(
        name=checkpoint_of(name),
        kind="checkpoint",
        title=f"{stage.title}: select",
        stage=name,
        config=config,
        inputs=inputs,
        seed=seed_of(recipe, "select", name),
        compute=stage.compute if select.rule == "peak" else None,
    )


def _scores(recipe: Recipe, name: str, title: str) -> Iterator[Step]:
    """One step measures all that is asked of a checkpoint, for its own row and as the parent in the next row."""
    wanted: list[str] = []
    for other, stage in recipe.stages.items():
        if name in (other, stage.parent):
            wanted += [*stage.evaluation.targets, *stage.evaluation.guardrails]
    if wanted:
        yield scores_step(recipe, f"scores/{name}", f"{title}: scores", name, checkpoint_of(name), wanted)


def scores_step(recipe: Recipe, name: str, title: str, stage: str, checkpoint: str, wanted: Iterable[str]) -> Step:
    """The step `name`, which measures what the step `checkpoint` gives on some of the recipe's benchmarks.

    Raises:
        ConfigError: a benchmark is unknown, or one that this release doesn't run.
    """
    benchmarks: dict[str, dict[str, Json]] = {}
    inputs = {"checkpoint": checkpoint}
    for benchmark in dict.fromkeys(wanted):
        if benchmark not in recipe.benchmarks:
            raise ConfigError(f"there is no benchmark {benchmark!r}", hint=nearest(benchmark, recipe.benchmarks))
        settings = recipe.benchmarks[benchmark]
        if settings.kind == "external":
            raise ConfigError(
                f"{benchmark} needs the harness {settings.harness}, which this release doesn't run",
                where=f"benchmarks.{benchmark}",
                hint="`rufus plan` shows this profile; `--profile cpu` runs",
            )
        assert settings.stage is not None
        benchmarks[benchmark] = settings.model_dump(mode="json", exclude={"title"})
        inputs[f"problems/{settings.stage}"] = f"data/{settings.stage}"
    first = next(iter(recipe.stages))  # where the base policy is scored, too
    return Step(
        name=name,
        kind="scores",
        title=title,
        stage=stage,
        config={"benchmarks": benchmarks, "play": _play(recipe, [b["stage"] for b in benchmarks.values()])},
        inputs=inputs,
        seed=seed_of(recipe, "scores"),  # one seed for all checkpoints: their samples are paired
        compute=recipe.stages[stage if stage in recipe.stages else first].compute,
    )


def _play(recipe: Recipe, of_stages: Sequence[str]) -> dict[str, Json]:
    """How these stages' problems are played. The SFT mixture has problems of every RL stage."""
    every = any(isinstance(recipe.stages[name], SFTStage) for name in of_stages)
    return {
        name: stage.model_dump(mode="json", include=_PLAY_FIELDS) | _judges(stage)
        for name, stage in recipe.stages.items()
        if isinstance(stage, RLStage) and (every or name in of_stages)
    }


def _judges(stage: SFTStage | RLStage) -> dict[str, Json]:
    """Identities of the judges whose name alone doesn't settle what they say: another prompt is another number."""
    names = (stage.models.judge, stage.models.eval_judge) if isinstance(stage, RLStage) else ()
    judges = {name: judge_identity(name) for name in names if name}
    judges = {name: identity for name, identity in judges.items() if identity != name}
    return {JUDGES: judges} if judges else {}
