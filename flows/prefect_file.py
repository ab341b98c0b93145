"""`prefect.yaml` as typed settings, and what is wrong with it: every fault with its line.

Prefect takes a misspelt key, parameter or job variable in silence, so all of them are looked at here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, NamedTuple

from jsonschema import Draft202012Validator
from prefect import Flow
from prefect.client.schemas.schedules import CronSchedule
from prefect.flows import load_flow_from_entrypoint
from prefect.utilities.callables import parameter_schema
from pydantic import Field, ValidationError

from rufus_core.errors import ConfigError
from rufus_core.lineage.names import is_hex
from rufus_core.lineage.resolve import MIN_DIGEST_DIGITS
from rufus_core.recipe.document import Node, descend, parse
from rufus_core.recipe.load import load_recipe
from rufus_core.recipe.validate import nearest, raise_faults, validated
from rufus_core.settings import Recipe
from rufus_core.types import Frozen, Json

_TEMPLATES = "api/collections_data/views/aggregate-worker-metadata.json"  # of every type of pool, packed with Prefect
_STEP = re.compile(r"(?P<stage>.+)[@:]\d+")


class Schedule(Frozen):
    slug: str  # tells a deployment's schedules apart
    cron: str
    timezone: str
    active: bool = True
    parameters: dict[str, Json] = Field(default_factory=dict)


class WorkPool(Frozen):
    name: str
    work_queue_name: str | None = None
    job_variables: dict[str, Json] = Field(default_factory=dict)


class Deployment(Frozen):
    name: str
    entrypoint: str  # a module and the flow in it
    work_pool: WorkPool
    description: str = ""
    tags: tuple[str, ...] = ()
    parameters: dict[str, Json] = Field(default_factory=dict)
    schedules: tuple[Schedule, ...] = ()
    paused: bool = False
    concurrency_limit: int | None = None


class Definitions(Frozen):
    work_pools: dict[str, WorkPool] = Field(default_factory=dict)
    work_pool_types: dict[str, Literal["process", "kubernetes", "docker"]] = Field(default_factory=dict)
    schedules: dict[str, Schedule] = Field(default_factory=dict)


class PrefectFile(Frozen):
    """The keys that `rufus deploy` applies. Prefect knows more; building and pulling code isn't our way."""

    name: str
    build: tuple[()] = ()
    push: tuple[()] = ()
    pull: tuple[()] = ()
    definitions: Definitions = Definitions()
    deployments: tuple[Deployment, ...]


class Linted(NamedTuple):
    """A deployment of the file with its flow."""

    deployment: Deployment
    flow: Flow[Any, Any]

    @property
    def title(self) -> str:
        return f"{self.flow.name}/{self.deployment.name}"


def read_prefect_file(path: Path) -> tuple[PrefectFile, Node]:
    """The file's settings, and its tree. Raises ConfigError: missing, no YAML, an unknown key or a wrong value."""
    tree = read_yaml(path)
    return validated(tree, PrefectFile, path.name), tree


def read_yaml(path: Path) -> Node:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"can't be read: {error}", where=str(path), hint="name another one with --file") from None
    return parse(text, lambda line: f"{path}:{line}")


def lint(file: PrefectFile, tree: Node, templates: Mapping[str, Json]) -> list[Linted]:
    """The deployments with their flows. `templates` are the job templates of work pools by name.

    Raises:
        ConfigError: an entrypoint, parameter, job variable, schedule or stage that isn't there, or a name given twice.
    """
    faults: list[ConfigError] = []
    linted: list[Linted] = []
    for index, deployment in enumerate(file.deployments):
        _, node = descend(tree, ["deployments", index])
        found = list(_pool_faults(deployment, node, file, templates)) + list(_schedule_faults(deployment, node))
        try:
            flow = _flow(deployment, node)
        except ConfigError as error:
            found.append(error)
        else:
            found += list(_parameter_faults(deployment, flow, node)) or list(_deployed_recipe_faults(deployment, node))
            linted.append(Linted(deployment, flow))
            if [each.title for each in linted].count(linted[-1].title) > 1:
                found.append(ConfigError(f"{linted[-1].title} is given twice", where=node.where))
        faults += found
    raise_faults(faults)
    return linted


def default_template(type_: str) -> dict[str, Json]:
    """The job template that a work pool of this type is made with."""
    packages = json.loads((files("prefect.server") / _TEMPLATES).read_text(encoding="utf-8"))
    workers = {name: worker for package in packages.values() for name, worker in package.items()}
    template: dict[str, Json] = workers[type_]["default_base_job_configuration"]
    return template


def _flow(deployment: Deployment, node: Node) -> Flow[Any, Any]:
    where = descend(node, ["entrypoint"])[1].where
    if ":" in deployment.entrypoint:
        raise ConfigError(
            f"the entrypoint {deployment.entrypoint!r} is a path, which other machines don't have",
            where=where,
            hint="name the module: flows.recipe.rufus_recipe",
        )
    try:
        return load_flow_from_entrypoint(deployment.entrypoint, use_placeholder_flow=False)
    except Exception as error:  # importing a module may raise anything
        raise ConfigError(f"can't import {deployment.entrypoint!r}: {error}", where=where) from error


def _parameter_faults(deployment: Deployment, flow: Flow[Any, Any], node: Node) -> Iterator[ConfigError]:
    schema = parameter_schema(flow).model_dump()
    _, place = descend(node, ["parameters"])
    yield from _schema_faults(deployment.parameters, schema, place, f"{flow.name} has no parameter")
    for index, schedule in enumerate(deployment.schedules):
        _, own = descend(node, ["schedules", index, "parameters"])
        yield from _schema_faults(schedule.parameters, schema, own, f"{flow.name} has no parameter")
        missing = set(schema.get("required", ())) - set(deployment.parameters) - set(schedule.parameters)
        for name in sorted(missing):
            yield ConfigError(f"{flow.name} needs the parameter {name!r} to run by a schedule", where=place.where)


def _pool_faults(
    deployment: Deployment, node: Node, file: PrefectFile, templates: Mapping[str, Json]
) -> Iterator[ConfigError]:
    pool = deployment.work_pool
    _, place = descend(node, ["work_pool"])
    if pool.name not in templates:
        known = nearest(pool.name, [*templates, *file.definitions.work_pool_types])
        yield ConfigError(f"nothing says of which type the work pool {pool.name!r} is", where=place.where, hint=known)
        return
    _, variables = descend(place, ["job_variables"])
    yield from _schema_faults(
        pool.job_variables, templates[pool.name]["variables"], variables, f"jobs of {pool.name} have no variable"
    )


def _schema_faults(
    values: Mapping[str, Json], schema: Mapping[str, Json], node: Node, lead: str
) -> Iterator[ConfigError]:
    """Names that a JSON schema doesn't have, and values that it refuses."""
    known = schema.get("properties", {})
    for name in values:
        if name not in known:
            yield ConfigError(f"{lead} {name!r}", where=descend(node, [name])[1].where, hint=nearest(name, known))
    for fault in Draft202012Validator({**schema, "required": []}).iter_errors(dict(values)):
        name = ".".join(map(str, fault.absolute_path))
        reason = fault.message if len(fault.message) < 100 else f"not {fault.validator_value!r}"
        yield ConfigError(f"{name}: {_reason(fault, reason)}", where=descend(node, list(fault.absolute_path))[1].where)


def _reason(fault: Any, message: str) -> str:
    """Of a value that may be of several types: what each of them says."""
    return "; ".join(dict.fromkeys(each.message for each in fault.context)) or message


def _schedule_faults(deployment: Deployment, node: Node) -> Iterator[ConfigError]:
    for index, schedule in enumerate(deployment.schedules):
        _, place = descend(node, ["schedules", index])
        for key in ("timezone", "cron"):
            given = {"cron": schedule.cron if key == "cron" else "0 0 * * *"}
            try:
                CronSchedule(**given, timezone=schedule.timezone if key == "timezone" else "UTC")
            except ValidationError as error:
                reason = error.errors()[0]["msg"].removeprefix("Value error, ")
                yield ConfigError(f"{key} {getattr(schedule, key)!r}: {reason}", where=descend(place, [key])[1].where)


def _deployed_recipe_faults(deployment: Deployment, node: Node) -> Iterator[ConfigError]:
    """What is wrong with the deployment's parameters, and with what each schedule puts over them."""
    yield from _recipe_faults(deployment.parameters, deployment.parameters, descend(node, ["parameters"])[1])
    for index, schedule in enumerate(deployment.schedules):
        if own := schedule.parameters:
            _, place = descend(node, ["schedules", index, "parameters"])
            yield from _recipe_faults(own, {**deployment.parameters, **own}, place)


def _recipe_faults(given: Mapping[str, Json], whole: Mapping[str, Json], place: Node) -> Iterator[ConfigError]:
    """Stages, checkpoints and benchmarks in `given` that the recipe of the `whole` parameters doesn't have."""
    try:
        recipe = load_recipe(
            whole.get("recipe", "rufus_air"), whole.get("profile", "cpu"), whole.get("overrides") or ()
        )
    except ConfigError as error:
        yield ConfigError(f"its recipe can't be loaded: {error}", where=place.where)
        return
    stages = ["base", *recipe.stages]
    for key in ("stage", "until"):
        name = given.get(key)
        if isinstance(name, str) and name not in stages:
            where = descend(place, [key])[1].where
            yield ConfigError(f"the recipe has no stage {name!r}", where=where, hint=nearest(name, stages))
    for index, name in enumerate(given.get("benchmarks") or []):
        if name not in recipe.benchmarks:
            where = descend(place, ["benchmarks", index])[1].where
            yield ConfigError(
                f"the recipe has no benchmark {name!r}", where=where, hint=nearest(name, recipe.benchmarks)
            )
    for index, name in enumerate(given.get("checkpoints") or []):
        if not _may_be_a_checkpoint(name, recipe):
            where = descend(place, ["checkpoints", index])[1].where
            yield ConfigError(f"the recipe has no checkpoint {name!r}", where=where, hint=nearest(name, stages))


def _may_be_a_checkpoint(text: str, recipe: Recipe) -> bool:
    """Whether `rufus eval` could take it: a stage, a step of one, an alias, digits of a digest, a name or an id."""
    step = _STEP.fullmatch(text)
    names = ("base", *recipe.stages, recipe.registered, *(f"{recipe.registered}@{stage}" for stage in recipe.stages))
    is_digest = is_hex(text) and MIN_DIGEST_DIGITS <= len(text) <= 64
    return text in names or "/" in text or is_digest or (step is not None and step["stage"] in recipe.stages)
