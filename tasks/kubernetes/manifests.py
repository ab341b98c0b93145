"""What the cluster is asked for: a Job of one pod, or a RayJob over several nodes."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rufus_core.errors import ConfigError
from rufus_core.settings import KubernetesSettings
from tasks.kubernetes.pods import annotations, labels, logged, pod_template, stopped_first

HEAD, WORKER = "ray-head", "ray-worker"
_NO_SECOND_HEAD = {"ray.io/disable-provisioned-head-restart": "true"}  # it would know nothing of the job
# The Job then says so for as long as it is there; its pod, which says it too, may be gone sooner.
_TAKEN_AWAY = {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}


def manifest(
    settings: KubernetesSettings,
    name: str,
    folder: Path,
    command: Sequence[str],
    variables: Mapping[str, str],
    nodes: int,
    gpus_per_node: int,
) -> dict[str, Any]:
    """The object that runs `command` with its output in the folder's `job.log`, at most once.

    Raises ConfigError where a plain Job is asked to span nodes.
    """
    if settings.kind == "job" and nodes > 1:
        raise ConfigError(
            f"a Kubernetes Job has one node, and this step needs {nodes}", hint="execution.kubernetes.kind=rayjob"
        )
    plain = settings.kind == "job"
    return {
        **(_job if plain else _ray_job)(
            settings, name, folder, logged(command, folder), variables, nodes, gpus_per_node
        ),
        "metadata": {
            "name": name,
            "namespace": settings.namespace,
            "labels": labels(settings, name),
            "annotations": annotations(folder) | ({} if plain else _NO_SECOND_HEAD),
        },
    }


def _job(
    settings: KubernetesSettings,
    name: str,
    folder: Path,
    command: list[str],
    variables: Mapping[str, str],
    _nodes: int,
    gpus_per_node: int,
) -> dict[str, Any]:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "spec": {
            "backoffLimit": 0,
            "completions": 1,
            "parallelism": 1,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": [_TAKEN_AWAY]},
            "ttlSecondsAfterFinished": settings.keep_seconds,
            "template": pod_template(settings, name, folder, gpus_per_node, variables, command),
        },
    }


def _ray_job(
    settings: KubernetesSettings,
    name: str,
    folder: Path,
    command: list[str],
    variables: Mapping[str, str],
    nodes: int,
    gpus_per_node: int,
) -> dict[str, Any]:
    """Its head carries out the document; ranks and engines are Ray's to place, on the head's node too."""

    def template(container: str) -> dict[str, Any]:
        return pod_template(settings, name, folder, gpus_per_node, variables, None, container)

    head, workers = template(HEAD), nodes - 1
    head["spec"]["containers"][0] |= stopped_first(folder)
    group = {"groupName": "nodes", "replicas": workers, "minReplicas": workers, "maxReplicas": workers}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "spec": {
            "entrypoint": shlex.join(command),  # Ray gives it to a shell
            "jobId": name,
            "submissionMode": "HTTPMode",  # the operator submits it: no further pod
            "backoffLimit": 0,
            "shutdownAfterJobFinishes": True,
            "rayClusterSpec": {
                "headGroupSpec": {"rayStartParams": {"dashboard-host": "0.0.0.0"}, "template": head},  # noqa: S104
                "workerGroupSpecs": [{**group, "rayStartParams": {}, "template": template(WORKER)}] if workers else [],
            },
        },
    }
