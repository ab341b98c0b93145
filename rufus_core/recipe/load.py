"""A recipe from its file, a profile's overlay and `--set` arguments, checked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from rufus_core.errors import ConfigError
from rufus_core.recipe.document import Node, descend, merge, merge_at, parse
from rufus_core.recipe.validate import nearest, raise_faults, validated
from rufus_core.settings import Recipe

DEPLOYMENTS = Path(__file__).resolve().parents[2] / "deployments"  # beside the package, in a checkout and installed
BASE = "base"  # the parent of the first stage


def load_recipe(recipe: Path | str = "rufus_air", profile: Path | str = "cpu", overrides: Sequence[str] = ()) -> Recipe:
    """The recipe under a profile (a sparse overlay), with `overrides` of the form `a.b.c=YAML` on top.

    `recipe` and `profile` are names of files in `deployments/`, or paths to YAML files. An overlay may change a stage
    but not add one.

    Raises:
        ConfigError: a file is missing or no YAML; a key, stage or value is unknown or wrong; the stages are no chain.
    """
    recipe_file, profile_file = find_document("recipes", recipe), find_document("profiles", profile)
    tree = read_document(recipe_file)
    overlay = read_document(profile_file)
    _refuse_new_stages(tree, overlay)
    tree = merge(tree, overlay)
    for argument in overrides:
        tree = _with_override(tree, argument)
    tree = merge_at(tree, ["profile"], Node(profile_file.stem, str(profile_file)))
    settings = validated(tree, Recipe, "the recipe")
    raise_faults([*_chain_faults(tree, settings), *_reference_faults(tree, settings)])
    return settings


def find_document(folder: str, name: Path | str) -> Path:
    """A file of a folder of `deployments/` by its name, or any by its path. Raises ConfigError where there is none."""
    path = Path(name)
    if isinstance(name, Path) or path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        if not path.is_file():
            what = f"{name} is a folder" if path.is_dir() else f"no file {name}"
            raise ConfigError(what, hint=f"a name of {DEPLOYMENTS / folder}, or a path to a YAML file")
        return path
    path = DEPLOYMENTS / folder / f"{name}.yaml"
    if not path.is_file():
        known = [file.stem for file in (DEPLOYMENTS / folder).glob("*.yaml")]
        raise ConfigError(
            f"no {folder.removesuffix('s')} {name!r}", where=_shown(path.parent), hint=nearest(name, known)
        )
    return path


def _shown(path: Path) -> str:
    """A path as a person at the prompt would write it."""
    full, here = path.resolve(), Path.cwd()
    return str(full.relative_to(here)) if full.is_relative_to(here) else str(path)


def read_document(file: Path) -> Node:
    """The mapping that a file holds. Raises ConfigError."""
    name = _shown(file)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"can't be read: {error}", where=name) from None
    tree = _parsed(text, name)
    if tree.value is None:
        return Node({}, f"{name}:1")
    if not isinstance(tree.value, dict):
        raise ConfigError("holds no mapping", where=name)
    return tree


@lru_cache(maxsize=8)  # the recipe takes most of a tenth of a second
def _parsed(text: str, name: str) -> Node:
    return parse(text, lambda line: f"{name}:{line}")


def override(argument: str, option: str) -> tuple[list[str], Node]:
    """The path and the value of `a.b.c=YAML`, as a command's option gives it. Raises ConfigError."""
    where = f"{option} {argument}"
    path, equals, value = argument.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError("not of the form path.to.key=VALUE", where=where)
    return keys, parse(value, lambda _: where)


def _with_override(tree: Node, argument: str) -> Node:
    keys, overlay = override(argument, "--set")
    _, stages = descend(tree, ["stages"])
    if keys[0] == "stages" and len(keys) > 1 and isinstance(stages.value, dict) and keys[1] not in stages.value:
        raise _unknown_stage(keys[1], overlay.where, stages.value)
    return merge_at(tree, keys, overlay)


def _refuse_new_stages(tree: Node, overlay: Node) -> None:
    """A misspelt stage must not become a new one; a profile that means it tags its `stages` with `!replace`."""
    taken, theirs = descend(overlay, ["stages"])
    _, ours = descend(tree, ["stages"])
    if taken and not theirs.replace and isinstance(theirs.value, dict) and isinstance(ours.value, dict):
        raise_faults(
            [_unknown_stage(name, n.where, ours.value) for name, n in theirs.value.items() if name not in ours.value]
        )


def _unknown_stage(name: str, where: str, known: dict[str, Node]) -> ConfigError:
    return ConfigError(f"no stage {name!r} in the recipe", where=where, hint=nearest(name, known))


def _chain_faults(tree: Node, recipe: Recipe) -> Iterator[ConfigError]:
    """The stages form one serial chain from `base`, in the order of the mapping (PIPE-01)."""
    expected = BASE
    for name, stage in recipe.stages.items():
        if stage.parent != expected:
            _, node = descend(tree, ["stages", name, "parent"])
            yield ConfigError(
                f"stage {name!r} has the parent {stage.parent!r}, but follows {expected!r}",
                where=node.where,
                hint="stages form one chain from 'base', in their order",
            )
        expected = name


def _reference_faults(tree: Node, recipe: Recipe) -> Iterator[ConfigError]:
    for stage_name, stage in recipe.stages.items():
        for role in ("targets", "guardrails"):
            for benchmark in getattr(stage.evaluation, role):
                if benchmark not in recipe.benchmarks:
                    _, node = descend(tree, ["stages", stage_name, "evaluation", role])
                    yield ConfigError(
                        f"stage {stage_name!r} names the benchmark {benchmark!r}, which the recipe doesn't have",
                        where=node.where,
                        hint=nearest(benchmark, recipe.benchmarks),
                    )
    for name, protocol in recipe.benchmarks.items():
        if protocol.stage is not None and protocol.stage not in recipe.stages:
            _, node = descend(tree, ["benchmarks", name, "stage"])
            yield ConfigError(
                f"benchmark {name!r} names the stage {protocol.stage!r}, which the recipe doesn't have",
                where=node.where,
                hint=nearest(protocol.stage, recipe.stages),
            )
