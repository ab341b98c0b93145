"""What the cluster is asked for, against Kubernetes' published schemas; of KubeRay's, the fields that are used."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rufus_core.errors import ConfigError
from rufus_core.settings import ExecutionSettings, KubernetesSettings
from tasks.kubernetes.manifests import manifest
from tasks.kubernetes.names import object_name

FOLDER = Path("/rufus/home/jobs/stages.sft.train.0123456789ab")
REQUIRED = {"image": "registry.example/rufus-air:1", "home_claim": "home", "home_path": "/rufus"}
CHANGES: list[dict[str, Any]] = [
    {},
    {
        "sandbox_in_pod": True,
        "seccomp_profile": "profiles/bubblewrap.json",
        "env_from_secrets": ["stores"],
        "env": {"S3_ENDPOINT": "http://s3"},
        "image_pull_secrets": ["registry"],
        "priority_class": "training",
        "runtime_class": "nvidia",
        "labels": {"kueue.x-k8s.io/queue-name": "post-training"},
        "gpu_node": {
            "cpus": 96,
            "memory": "1500Gi",
            "node_selector": {"gpu": "h200"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        },
    },
]


class Exact(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Group(Exact):
    """Names and types as in `HeadGroupSpec` and `WorkerGroupSpec` of ray.io/v1, of what is used."""

    ray_start_params: dict[str, str] = Field(alias="rayStartParams")
    template: dict[str, Any]


class Workers(Group):
    group_name: str = Field(alias="groupName")
    replicas: int
    min_replicas: int = Field(alias="minReplicas")
    max_replicas: int = Field(alias="maxReplicas")


class RayCluster(Exact):
    head: Group = Field(alias="headGroupSpec")
    workers: list[Workers] = Field(alias="workerGroupSpecs")


class RayJobSpec(Exact):
    """As in `RayJobSpec` of ray.io/v1."""

    entrypoint: str
    job_id: str = Field(alias="jobId")
    submission_mode: str = Field(alias="submissionMode", pattern="^HTTPMode$")
    backoff_limit: int = Field(alias="backoffLimit")
    shutdown: bool = Field(alias="shutdownAfterJobFinishes")
    cluster: RayCluster = Field(alias="rayClusterSpec")


def made(kind: str, nodes: int = 1, gpus: int = 8, folder: Path = FOLDER, **changes: Any) -> dict[str, Any]:
    settings = KubernetesSettings.model_validate({**REQUIRED, "kind": kind, **changes})
    command = ["python", "-m", "rufus_core.jobs", str(folder / "document.json")]
    return manifest(settings, object_name(folder, 1), folder, command, {"OMP_NUM_THREADS": "4"}, nodes, gpus)


def valid(thing: dict[str, Any]) -> None:
    kubernetes_validate.validate(thing, "1.37", strict=True)


def templates(thing: dict[str, Any]) -> list[dict[str, Any]]:
    if thing["kind"] == "Job":
        return [thing["spec"]["template"]]
    cluster = thing["spec"]["rayClusterSpec"]
    return [group["template"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]


@pytest.mark.parametrize("changes", CHANGES)
@pytest.mark.parametrize("gpus", [0, 8])
def test_a_job_is_valid_against_the_published_schema(changes: dict[str, Any], gpus: int) -> None:
    valid(made("job", gpus=gpus, **changes))


@pytest.mark.parametrize("changes", CHANGES)
def test_a_ray_job_says_what_kuberay_knows_and_its_pods_are_valid(changes: dict[str, Any]) -> None:
    thing = made("rayjob", nodes=8, **changes)
    spec = RayJobSpec.model_validate(thing["spec"])
    assert [group.replicas for group in spec.cluster.workers] == [7]
    assert spec.job_id == thing["metadata"]["name"]
    for template in templates(thing):
        valid({"apiVersion": "v1", "kind": "Pod", **template})


def test_the_schema_tells_a_wrong_field() -> None:
    thing = made("job")
    thing["spec"]["template"]["spec"]["restartPolicys"] = "Never"
    with pytest.raises(kubernetes_validate.ValidationError):
        valid(thing)
    with pytest.raises(ValidationError):
        RayJobSpec.model_validate({**made("rayjob")["spec"], "entryPoint": ""})


@pytest.mark.parametrize("kind", ["job", "rayjob"])
def test_pods_are_closed(kind: str) -> None:
    for template in templates(made(kind, nodes=1 if kind == "job" else 2)):
        spec = template["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["restartPolicy"] == "Never"
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = spec["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "privileged": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"] == container["resources"]["requests"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"
        assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/rufus", "/tmp", "/dev/shm"}


def test_the_cluster_makes_no_tries_of_its_own() -> None:
    assert made("job")["spec"]["backoffLimit"] == made("rayjob")["spec"]["backoffLimit"] == 0


def test_a_folder_of_any_name_is_one_argument_of_the_command() -> None:
    folder = Path("/rufus/home/jobs/it's $(here); x")
    job = made("job", folder=folder)["spec"]["template"]["spec"]["containers"][0]["command"]
    assert job[3:] == [str(folder), "python", "-m", "rufus_core.jobs", str(folder / "document.json")]
    assert "here" not in job[2]
    assert shlex.split(made("rayjob", folder=folder)["spec"]["entrypoint"]) == job


def test_a_job_over_several_nodes_has_to_be_a_ray_job() -> None:
    with pytest.raises(ConfigError, match=r"needs 2 \(execution.kubernetes.kind=rayjob\)"):
        made("job", nodes=2)


def test_bubblewrap_in_a_pod_needs_a_profile() -> None:
    with pytest.raises(ValidationError, match="seccomp_profile that permits"):
        KubernetesSettings.model_validate({**REQUIRED, "sandbox_in_pod": True})


def test_the_launcher_needs_to_know_its_cluster() -> None:
    with pytest.raises(ValidationError, match="image, home_claim, home_path"):
        ExecutionSettings(launcher="kubernetes")


@given(name=st.text(min_size=1).filter(lambda text: "/" not in text), attempt=st.integers(1, 10**6))
def test_a_name_is_a_label_that_kuberay_takes_and_is_of_one_folder(name: str, attempt: int) -> None:
    label = object_name(Path("/home/jobs") / name, attempt)
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", label)
    assert len(label) <= 47
    assert label == object_name(Path("/home/jobs") / name, attempt)
    assert (
        len({label, object_name(Path("/other/jobs") / name, attempt), object_name(Path("/home/jobs") / name, 0)}) == 3
    )
