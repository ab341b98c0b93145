"""`rufus deploy`: makes a Prefect server hold what the files say, and nothing else of ours."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate, WorkPoolCreate
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import CronSchedule
from prefect.events.schemas.automations import Automation, AutomationCore
from prefect.exceptions import ObjectNotFound
from prefect.utilities.callables import parameter_schema
from pydantic import ValidationError

from flows.limits import limit_name
from flows.prefect_file import Linted, PrefectFile, Schedule, default_template, lint, read_prefect_file, read_yaml
from rufus_core.errors import ConfigError, InfrastructureError
from rufus_core.ports.orchestration import Deployed
from rufus_core.recipe.document import plain
from rufus_core.recipe.validate import nearest, validated
from rufus_core.types import Frozen, Json

TAG = "rufus-air"  # on everything of ours, so that nothing else is ever removed


class LimitsFile(Frozen):
    gpus: dict[str, int]


class Wanted:
    """What the files say, checked. Raises ConfigError with every fault's file and line."""

    def __init__(self, path: Path, templates: Mapping[str, Json]) -> None:
        self.file, tree = read_prefect_file(path)
        types = self.file.definitions.work_pool_types
        known = {name: default_template(type_) for name, type_ in types.items()} | dict(templates)
        self.deployments = lint(self.file, tree, known)
        beside = path.parent / "deployments"
        self.automations = _automations(beside / "automations.yaml")
        limits = validated(read_yaml(beside / "limits.yaml"), LimitsFile, "limits.yaml")
        self.limits = {limit_name(profile): number for profile, number in limits.gpus.items()}


def check(path: Path, names: Collection[str] = ()) -> list[Deployed]:
    """Check the files alone, all of them; told are the deployments of `names`. Raises ConfigError as `deploy` does."""
    wanted = Wanted(path, {})
    _refuse_unknown(names, wanted.deployments)
    chosen = [each for each in wanted.deployments if not names or each.deployment.name in names]
    return [Deployed("deployment", each.title, "checked") for each in chosen]


def deploy(path: Path, names: Collection[str]) -> list[Deployed]:
    """Deploy what the files say, or of the deployments only those of `names`, and read it back.

    Pools, limits and automations, which every deployment needs, are put there with names too. Without names,
    deployments and automations of ours that are no longer in the files are removed.

    Raises:
        ConfigError: a fault in the files, or a name that they don't have.
        InfrastructureError: the server holds something else afterwards.
    """
    with get_client(sync_client=True) as client:
        wanted = Wanted(path, {pool.name: pool.base_job_template for pool in client.read_work_pools()})
        _refuse_unknown(names, wanted.deployments)
        done = list(_apply(client, wanted, names))
        left = [each for each in _apply(client, wanted, names, dry=True) if each.action != "unchanged"]
    if left:
        what = ", ".join(f"{each.kind} {each.name} ({each.action})" for each in left)
        raise InfrastructureError(f"the server doesn't hold what was deployed: {what}", hint="rufus deploy")
    return done


def _apply(client: SyncPrefectClient, wanted: Wanted, names: Collection[str], dry: bool = False) -> Iterator[Deployed]:
    """What is changed to get what is wanted; with `dry`, what would be."""
    yield from _pools(client, wanted.file, dry)
    yield from _limits(client, wanted.limits, dry)
    ours = DeploymentFilter(tags=DeploymentFilterTags(all_=[TAG]))
    stale = {deployment.id: deployment for deployment in client.read_deployments(deployment_filter=ours)}
    for each in wanted.deployments:
        found = _deployment(client, each.title)
        if found is not None:
            stale.pop(found.id, None)
        if not names or each.deployment.name in names:
            yield _deploy_one(client, each, found, dry)
    for deployment in () if names else stale.values():
        if not dry:
            client.delete_deployment(deployment.id)
        yield Deployed("deployment", f"{client.read_flow(deployment.flow_id).name}/{deployment.name}", "removed")
    yield from _automate(client, wanted.automations, dry, remove=not names)


def _pools(client: SyncPrefectClient, file: PrefectFile, dry: bool) -> Iterator[Deployed]:
    for name, type_ in file.definitions.work_pool_types.items():
        try:
            found = client.read_work_pool(name)
        except ObjectNotFound:
            if not dry:
                template = default_template(type_)
                client.create_work_pool(WorkPoolCreate(name=name, type=type_, base_job_template=template))
            yield Deployed("work pool", name, "created")
            continue
        if found.type != type_:
            hint = f"prefect work-pool delete {name}, or another name in prefect.yaml"
            raise ConfigError(f"the server's work pool {name} is of type {found.type}, not {type_}", hint=hint)
        yield Deployed("work pool", name, "unchanged")


def _limits(client: SyncPrefectClient, limits: Mapping[str, int], dry: bool) -> Iterator[Deployed]:
    for name, number in limits.items():
        try:
            found = client.read_global_concurrency_limit_by_name(name).limit
        except ObjectNotFound:
            found = None
        if found != number and not dry:
            client.upsert_global_concurrency_limit_by_name(name, number)
        yield Deployed("limit", name, _action(found, number))


def _deploy_one(client: SyncPrefectClient, each: Linted, found: DeploymentResponse | None, dry: bool) -> Deployed:
    wanted = _wanted(each)
    held = None if found is None else _held(found)
    if held != wanted and not dry:
        schedules = [_schedule(schedule) for schedule in each.deployment.schedules]
        client.create_deployment(
            **{**wanted, "schedules": schedules},
            flow_id=client.create_flow_from_name(each.flow.name),
            name=each.deployment.name,
        )
    return Deployed("deployment", each.title, _action(held, wanted))


def _wanted(each: Linted) -> dict[str, Any]:
    """What a deployment is to be, in the words of Prefect's client."""
    deployment = each.deployment
    return {
        "entrypoint": deployment.entrypoint,
        "description": deployment.description,
        "tags": sorted({TAG, *deployment.tags}),
        "parameters": deployment.parameters,
        "parameter_openapi_schema": parameter_schema(each.flow).model_dump(),
        "enforce_parameter_schema": True,
        "schedules": [schedule.model_dump() for schedule in deployment.schedules],
        "work_pool_name": deployment.work_pool.name,
        "work_queue_name": deployment.work_pool.work_queue_name or "default",
        "job_variables": deployment.work_pool.job_variables,
        "concurrency_limit": deployment.concurrency_limit,
        "paused": deployment.paused,
        "pull_steps": [],
    }


def _held(found: DeploymentResponse) -> dict[str, Any]:
    """What a deployment is, in the same words."""
    limit = found.global_concurrency_limit
    return {
        "entrypoint": found.entrypoint,
        "description": found.description or "",
        "tags": sorted(found.tags),
        "parameters": found.parameters,
        "parameter_openapi_schema": found.parameter_openapi_schema,
        "enforce_parameter_schema": found.enforce_parameter_schema,
        "schedules": [
            {
                "slug": each.slug,
                "cron": getattr(each.schedule, "cron", None),
                "timezone": getattr(each.schedule, "timezone", None),
                "active": each.active,
                "parameters": each.parameters,
            }
            for each in sorted(found.schedules, key=lambda each: each.slug or "")
        ],
        "work_pool_name": found.work_pool_name,
        "work_queue_name": found.work_queue_name,
        "job_variables": found.job_variables,
        "concurrency_limit": limit.limit if limit else None,
        "paused": found.paused,
        "pull_steps": found.pull_steps or [],
    }


def _schedule(schedule: Schedule) -> DeploymentScheduleCreate:
    return DeploymentScheduleCreate(
        schedule=CronSchedule(cron=schedule.cron, timezone=schedule.timezone),
        active=schedule.active,
        parameters=schedule.parameters,
        slug=schedule.slug,
    )


def _automate(client: SyncPrefectClient, wanted: list[AutomationCore], dry: bool, remove: bool) -> Iterator[Deployed]:
    held = {each.name: each for each in client.read_automations() if TAG in each.tags}
    for each in wanted:
        found = held.pop(each.name, None)
        action = _action(_core(found), each)
        if action != "unchanged" and not dry:
            if found is None:
                client.create_automation(each)
            else:
                client.update_automation(found.id, each)
        yield Deployed("automation", each.name, action)
    for name, found in held.items() if remove else ():
        if not dry:
            client.delete_automation(found.id)
        yield Deployed("automation", name, "removed")


def _core(automation: Automation | None) -> AutomationCore | None:
    """An automation without what the server adds."""
    if automation is None:
        return None
    return AutomationCore.model_validate(automation.model_dump(include=set(AutomationCore.model_fields)))


def _automations(path: Path) -> list[AutomationCore]:
    listed = plain(read_yaml(path))
    try:
        return [AutomationCore.model_validate({**each, "tags": [TAG]}) for each in listed["automations"]]
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}", where=str(path)) from None


def _deployment(client: SyncPrefectClient, title: str) -> DeploymentResponse | None:
    try:
        return client.read_deployment_by_name(title)
    except ObjectNotFound:
        return None


def _action(held: object, wanted: object) -> str:
    if held is None:
        return "created"
    return "unchanged" if held == wanted else "updated"


def _refuse_unknown(names: Collection[str], deployments: list[Linted]) -> None:
    known = [each.deployment.name for each in deployments]
    for name in names:
        if name not in known:
            raise ConfigError(f"there is no deployment {name!r}", hint=nearest(name, known))
