"""The pod that carries out a job document, as closed as the work allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rufus_core.settings import KubernetesSettings, NodeSettings
from tasks.kubernetes.names import FOLDER_ANNOTATION, JOB_LABEL

CONTAINER = "job"
# Paths are arguments of the scripts, no part of their text. `exec` keeps the pid: the job itself hears SIGTERM.
_INTO_THE_LOG = ("/bin/sh", "-c", 'echo $$ >"$0/kubernetes.pid"; exec "$@" >>"$0/job.log" 2>&1')
_STOP = ("/bin/sh", "-c", 'pid=$(cat "$0/kubernetes.pid") && kill "$pid" && while kill -0 "$pid"; do sleep 0.1; done')


def logged(command: Sequence[str], folder: Path) -> list[str]:
    """The command with its output in a file of the home, where it outlives the pod."""
    return [*_INTO_THE_LOG, str(folder), *command]


def stopped_first(folder: Path) -> dict[str, Any]:
    """A hook for a container that runs the command beside others: it hears SIGTERM, and has time, before they do."""
    return {"lifecycle": {"preStop": {"exec": {"command": [*_STOP, str(folder)]}}}}


def labels(settings: KubernetesSettings, name: str) -> dict[str, str]:
    return {**settings.labels, "app.kubernetes.io/part-of": "rufus-air", JOB_LABEL: name}


def annotations(folder: Path) -> dict[str, str]:
    return {FOLDER_ANNOTATION: str(folder)}


def pod_template(
    settings: KubernetesSettings,
    name: str,
    folder: Path,
    gpus: int,
    variables: Mapping[str, str],
    command: Sequence[str] | None,
    container: str = CONTAINER,
) -> dict[str, Any]:
    """A pod template of one container. `command` None leaves it to who makes the pods (KubeRay)."""
    node = settings.gpu_node if gpus else settings.cpu_node
    spec: dict[str, Any] = {
        "restartPolicy": "Never",  # another try is ours to count
        "serviceAccountName": settings.service_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "shareProcessNamespace": True,  # a pid 1 that reaps, and lets SIGTERM end a job that has no handler
        "terminationGracePeriodSeconds": settings.grace_seconds,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": settings.run_as,
            "runAsGroup": settings.run_as,
            "fsGroup": settings.run_as,
            "fsGroupChangePolicy": "OnRootMismatch",  # or each start would walk through the whole home
            "seccompProfile": _seccomp(settings.seccomp_profile),
        },
        "containers": [_container(settings, node, gpus, variables, command, container)],
        "volumes": [
            {"name": "home", "persistentVolumeClaim": {"claimName": settings.home_claim}},
            {"name": "scratch", "emptyDir": {"sizeLimit": node.scratch}},
            {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": node.shared_memory}},
        ],
    }
    if settings.sandbox_in_pod:  # root inside is nobody outside, and a sandbox may mount a /proc of its own
        spec["hostUsers"] = False
    if node.node_selector:
        spec["nodeSelector"] = node.node_selector
    if node.tolerations:
        spec["tolerations"] = list(node.tolerations)
    if settings.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": secret} for secret in settings.image_pull_secrets]
    if settings.priority_class:
        spec["priorityClassName"] = settings.priority_class
    if settings.runtime_class:
        spec["runtimeClassName"] = settings.runtime_class
    return {"metadata": {"labels": labels(settings, name), "annotations": annotations(folder)}, "spec": spec}


def _container(
    settings: KubernetesSettings,
    node: NodeSettings,
    gpus: int,
    variables: Mapping[str, str],
    command: Sequence[str] | None,
    name: str,
) -> dict[str, Any]:
    takes = {"cpu": node.cpus, "memory": node.memory} | ({settings.gpu_resource: str(gpus)} if gpus else {})
    environment = {**variables, "HOME": "/tmp", **settings.env}  # noqa: S108 (the pod's own)
    security: dict[str, Any] = {
        "allowPrivilegeEscalation": False,
        "privileged": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    if settings.sandbox_in_pod:
        security |= {"procMount": "Unmasked", "appArmorProfile": {"type": "Unconfined"}}
    container: dict[str, Any] = {
        "name": name,
        "image": settings.image,
        "env": [{"name": key, "value": value} for key, value in sorted(environment.items())],
        "resources": {"requests": takes, "limits": takes},
        "securityContext": security,
        "terminationMessagePolicy": "FallbackToLogsOnError",  # what a job says that can't open its log
        "volumeMounts": [
            {"name": "home", "mountPath": settings.home_path},
            {"name": "scratch", "mountPath": "/tmp"},  # noqa: S108
            {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108
        ],
    }
    if command is not None:
        container["command"] = list(command)
    if settings.env_from_secrets:
        container["envFrom"] = [{"secretRef": {"name": secret}} for secret in settings.env_from_secrets]
    return container


def _seccomp(profile: str) -> dict[str, str]:
    if profile in ("RuntimeDefault", "Unconfined"):
        return {"type": profile}
    return {"type": "Localhost", "localhostProfile": profile}
