"""The graph of a recipe: every artifact as a step, with what it is made from. Pure; nothing runs here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from rufus_core.data.catalogue import GENERATORS
from rufus_core.errors import ConfigError, DataError
from rufus_core.jobs.filters import BENCHMARKS
from rufus_core.lineage.external import external_file
from rufus_core.lineage.record import Record
from rufus_core.lineage.resolve import checkpoint_name
from rufus_core.recipe.base_files import base_files, gguf_file
from rufus_core.recipe.filters import benchmark_files, options_of, refuse_filters, screens_of
from rufus_core.recipe.validate import nearest
from rufus_core.rewards.judges import JUDGES, judge_identity
from rufus_core.settings import POLICY, FilterSettings, ProblemSettings, Recipe, RLStage, SFTStage
from rufus_core.types import Json, content_id

# Declared versions of the implementations: raised by hand when a step's code would give another result.
VERSIONS = {
    "base": "3",
    "problems": "3",
    "screen": "3",
    "reward_model": "6",
    "training": "3",
    "checkpoint": "1",
    "scores": "3",
}

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


@dataclass(frozen=True, slots=True)
class Step:
    """One artifact to make. `config` is its identity; `inputs` are names of earlier steps by role.

    `external` are the user's data files by role, as paths; their contents enter `config` by hash. With `artifact`
    nothing is made: it is in the store already, whatever it was made from. With `force` it is made also where it is
    intact.
    """

    name: str
    kind: str
    title: str
    config: dict[str, Json]
    stage: str | None = None
    inputs: dict[str, str] = field(default_factory=dict)
    external: dict[str, str] = field(default_factory=dict)
    seed: int = 0
    artifact: Record | None = None
    force: bool = False

    @property
    def version(self) -> str:
        return VERSIONS[self.kind]


def checkpoint_of(stage: str) -> str:
    """Name of the step whose artifact a stage (or `base`) hands on."""
    return "base" if stage == "base" else checkpoint_name(stage)


def build_graph(recipe: Recipe) -> list[Step]:
    """All steps in an order in which each comes after its inputs.

    Raises:
        ConfigError: a stage can't be run with this recipe, or asks for something that this release doesn't do.
        DataError: a data file of the user's is missing or can't be read.
    """
    _refuse_unsupported(recipe)
    steps = [_base(recipe)]
    steps += [_problems(recipe, name) for name in recipe.stages]
    steps += _scores(recipe, "base", "the base policy")
    for name, stage in recipe.stages.items():
        if isinstance(stage, RLStage):
            steps += _screens(recipe, name, stage)
            if stage.reward_model is not None:
                steps.append(_reward_model(recipe, name, stage))
        steps += [_training(recipe, name), _checkpoint(recipe, name), *_scores(recipe, name, stage.title)]
    return steps


def _refuse_unsupported(recipe: Recipe) -> None:
    """What would otherwise be left out in silence."""
    for name, stage in recipe.stages.items():
        nodes, gpus = stage.compute.nodes, stage.compute.gpus_per_node
        if nodes > 1 or gpus:
            raise ConfigError(
                f"this release trains on one machine's CPU, and not on {nodes} nodes with {gpus} GPUs each",
                where=f"stages.{name}.compute",
                hint="`rufus plan` shows this profile; `--profile cpu` runs",
            )
    if recipe.decontamination is not None:
        raise ConfigError(
            "this release doesn't screen data against benchmarks",
            where="decontamination",
            hint="--set decontamination=null",
        )
    for name, stage in recipe.stages.items():
        field = "data" if isinstance(stage, SFTStage) else "problems"
        data = stage.data if isinstance(stage, SFTStage) else stage.problems
        refuse_filters(data.filters, f"stages.{name}.{field}.filters", stage)
        if (stage.precision.train, stage.precision.rollout) != ("fp32", "fp32"):
            raise ConfigError(
                "this release trains and rolls out in fp32",
                where=f"stages.{name}.precision",
                hint=f"--set 'stages.{name}.precision={{train: fp32, rollout: fp32}}'",
            )
        if stage.precision.router_replay and (isinstance(stage, SFTStage) or _is_dense(recipe)):
            raise ConfigError(
                "there are no rollouts whose routing could be replayed"
                if isinstance(stage, SFTStage)
                else "the base policy has no router to replay: all of its layers are dense",
                where=f"stages.{name}.precision.router_replay",
                hint=f"--set stages.{name}.precision.router_replay=false",
            )
        if stage.run.select.metric is not None:
            raise ConfigError(
                f"this release selects by pass@1 on validation problems, and not by {stage.run.select.metric}",
                where=f"stages.{name}.run.select.metric",
                hint=f"--set stages.{name}.run.select.metric=null",
            )
        if isinstance(stage, SFTStage) and stage.batch.long_sample_tokens is not None:
            raise ConfigError(
                "this release makes no smaller batches for long samples",
                where=f"stages.{name}.batch.long_sample_tokens",
                hint=f"--set stages.{name}.batch.long_sample_tokens=null",
            )


def _is_dense(recipe: Recipe) -> bool:
    """Whether it is known here that no layer has experts; of a policy that is given as files, its job tells."""
    shape = recipe.base.shape
    return shape is not None and shape.first_dense_layers >= shape.num_layers


def _seed(recipe: Recipe, *parts: str) -> int:
    return int(content_id(recipe.seed, *parts)[:8], 16)


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
    return Step("base", "base", "base policy", config, external=external, seed=_seed(recipe, "base"))


def _problems(recipe: Recipe, name: str) -> Step:
    stage = recipe.stages[name]
    settings = stage.data if isinstance(stage, SFTStage) else stage.problems
    where = f"stages.{name}.{'data' if isinstance(stage, SFTStage) else 'problems'}"
    config, external = _data_config(settings, where)
    config["filters"], benchmarks = _filters_config(settings, f"{where}.filters")
    if config["filters"]:
        config["filter_order"] = list(config["filters"])
        external |= benchmarks
    config |= {"kind": stage.kind, "split_seed": recipe.seed}
    if isinstance(stage, SFTStage):
        config["context_tokens"] = stage.batch.context_tokens
    return Step(
        name=f"data/{name}",
        kind="problems",
        title=f"{stage.title}: data",
        stage=name,
        config=config,
        inputs={"base": "base"} if isinstance(stage, SFTStage) else {},
        external=external,
        seed=_seed(recipe, "data", name),
    )


def _data_config(settings: ProblemSettings, where: str) -> tuple[dict[str, Json], dict[str, str]]:
    """Problem settings with each user file replaced by its hash: where a file lies is placement.

    `order` names the sources as they are written, for a mixture depends on it and a fingerprint sorts keys.
    """
    config = settings.model_dump(mode="json") | {"order": list(settings.sources)}
    external = {}
    for name, source in settings.sources.items():
        place = f"{where}.sources.{name}"
        if source.path is not None:
            external[name] = source.path
            config["sources"][name]["path"] = _hash_of(source.path, place)
        elif source.generator is None:
            raise ConfigError(
                "this source has neither a generator nor a file", where=place, hint=f"--set {place}.path=FILE.jsonl"
            )
        elif source.generator not in GENERATORS:
            raise ConfigError(
                f"there is no generator {source.generator!r}",
                where=f"{place}.generator",
                hint=nearest(source.generator, GENERATORS),
            )
        elif source.count is None:
            raise ConfigError("a generator needs a count", where=place, hint=f"--set {place}.count=N")
    return config, external


def _filters_config(settings: ProblemSettings, where: str) -> tuple[dict[str, Json], dict[str, str]]:
    """Filters that look at problems alone, in their order, each benchmark file replaced by its hash.

    A screen is a step of its own, and no part of the data's identity.
    """
    config: dict[str, Json] = {}
    external = {}
    for name, each in settings.filters.items():
        if each.samplers:
            continue
        config[name] = {"options": options_of(each), "files": {}}
        for benchmark, path in benchmark_files(each).items():
            config[name]["files"][benchmark] = _hash_of(path, f"{where}.{name}.options.{BENCHMARKS}.{benchmark}")
            external[f"{name}/{benchmark}"] = path
    return config, external


def _hash_of(path: str, place: str) -> str:
    try:
        return external_file(path).sha256
    except DataError as error:
        raise DataError(error.what, where=f"{place}.path={path}", hint="give the path of a .jsonl file") from error


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
        seed=_seed(recipe, "screen", name, key),
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
        seed=_seed(recipe, "reward_model", name),
    )


def _training(recipe: Recipe, name: str) -> Step:
    stage = recipe.stages[name]
    if stage.run.steps is None:
        raise ConfigError(
            "the recipe doesn't say how many steps to train",
            where=f"stages.{name}.run.steps",
            hint=f"--set stages.{name}.run.steps=N",
        )
    config: dict[str, Json] = {
        "kind": stage.kind,
        "settings": stage.model_dump(mode="json", include=_TRAINING_FIELDS),
        **_judges(stage),
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
        seed=_seed(recipe, "train", name),
    )


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
        seed=_seed(recipe, "select", name),
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
    return Step(
        name=name,
        kind="scores",
        title=title,
        stage=stage,
        config={"benchmarks": benchmarks, "play": _play(recipe, [b["stage"] for b in benchmarks.values()])},
        inputs=inputs,
        seed=_seed(recipe, "scores"),  # one seed for all checkpoints: their samples are paired
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
