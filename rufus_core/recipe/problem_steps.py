"""Steps that make problem sets, out of generators and the user's files."""

from __future__ import annotations

from rufus_core.data.catalogue import GENERATORS
from rufus_core.errors import ConfigError, DataError
from rufus_core.jobs.filters import BENCHMARKS
from rufus_core.lineage.external import external_file
from rufus_core.recipe.filters import benchmark_files, options_of
from rufus_core.recipe.step import Step, seed_of
from rufus_core.recipe.validate import nearest
from rufus_core.settings import ProblemSettings, Recipe, SFTStage
from rufus_core.types import Json


def problems_step(recipe: Recipe, name: str) -> Step:
    """The data of a stage. Raises ConfigError and DataError as `build_graph` does."""
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
        seed=seed_of(recipe, "data", name),
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
            config["sources"][name]["path"] = hash_of(source.path, place)
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
            config[name]["files"][benchmark] = hash_of(path, f"{where}.{name}.options.{BENCHMARKS}.{benchmark}")
            external[f"{name}/{benchmark}"] = path
    return config, external


def hash_of(path: str, place: str) -> str:
    """The SHA-256 of a file that `place` of the recipe names. Raises DataError."""
    try:
        return external_file(path).sha256
    except DataError as error:
        raise DataError(error.what, where=f"{place}.path={path}", hint="give the path of a .jsonl file") from error
