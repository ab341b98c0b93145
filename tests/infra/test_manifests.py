"""Kubernetes manifests against the published schemas, and against what they refer to."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from rufus_core.recipe.load import load_recipe
from tests.infra.manifests import FILES, FOLDER, Manifest, documents, name_of, pod_templates, selects, written

ROOT = Path(__file__).parents[2]
VERSION = "1.32"  # of the API, the oldest that the manifests are for
OVERLAYS = sorted(folder.name for folder in (FOLDER / "overlays").iterdir())
MANIFESTS = written()
README = (ROOT / "infra/README.md").read_text()

manifests = pytest.mark.parametrize("manifest", MANIFESTS, ids=name_of)


def of_kinds(*kinds: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("manifest", [m for m in MANIFESTS if m["kind"] in kinds], ids=name_of)


WORKLOADS = ("Deployment", "StatefulSet", "RayCluster")


def check(manifest: Manifest) -> None:
    """Against the published schema; of a RayCluster, which has none there, its pods and the fields we use."""
    if manifest["kind"] == "RayCluster":
        check_ray(manifest)
    else:
        kubernetes_validate.validate(manifest, VERSION, strict=True)


def check_ray(manifest: Manifest) -> None:
    spec = manifest["spec"]
    assert manifest["apiVersion"] == "ray.io/v1"
    assert spec.keys() == {"rayVersion", "headGroupSpec", "workerGroupSpecs"}
    assert spec["headGroupSpec"].keys() == {"rayStartParams", "template"}
    for group in spec["workerGroupSpecs"]:
        assert group.keys() == {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}
        assert 0 < group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
    for template in pod_templates(manifest):
        pod = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "ray"}, "template": template}
        kubernetes_validate.validate(pod, VERSION, strict=True)


@manifests
def test_the_published_schema_accepts_it(manifest: Manifest) -> None:
    check(manifest)


def test_the_published_schema_refuses_what_is_misspelt() -> None:
    worker = next(manifest for manifest in MANIFESTS if manifest["kind"] == "Deployment")
    broken = {**worker, "spec": {**worker["spec"], "replica": 2}}
    with pytest.raises(kubernetes_validate.ValidationError, match="replica"):
        check(broken)


def test_every_file_is_named_by_its_kustomization() -> None:
    for file in FOLDER.rglob("kustomization.yaml"):
        named = yaml.safe_load(file.read_text())["resources"]
        assert all((file.parent / entry).exists() for entry in named)
        if file.parent.name not in OVERLAYS:
            assert {*named, file.name} == {path.name for path in FILES if path.parent == file.parent}


def rendered(overlay: str) -> list[Manifest]:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl isn't installed, so overlays aren't put together")
    command = ["kubectl", "kustomize", str(FOLDER / "overlays" / overlay)]
    return documents(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_is_valid_and_names_nothing_twice(overlay: str) -> None:
    found = rendered(overlay)
    for manifest in found:
        check(manifest)
    names = [name_of(manifest) for manifest in found]
    assert len(set(names)) == len(names)


def test_the_cluster_has_the_gpus_that_runs_share() -> None:
    found = {name_of(manifest): manifest for manifest in rendered("h200")}
    gpus = yaml.safe_load((ROOT / "deployments/limits.yaml").read_text())["gpus"]["h200"]
    assert int(found["ResourceQuota/rufus-jobs/jobs"]["spec"]["hard"]["requests.nvidia.com/gpu"]) == gpus
    group = found["RayCluster/rufus-jobs/rufus"]["spec"]["workerGroupSpecs"][0]
    on_a_node = group["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
    assert group["maxReplicas"] * int(on_a_node) == gpus


def test_ray_is_the_locked_version() -> None:
    lock = (ROOT / "requirements.lock").read_text().splitlines()
    cluster = next(manifest for manifest in MANIFESTS if manifest["kind"] == "RayCluster")
    assert f"ray=={cluster['spec']['rayVersion']}" in lock


def test_prefects_images_are_the_locked_version() -> None:
    lock = (ROOT / "requirements.lock").read_text().splitlines()
    images = {c["image"] for m in MANIFESTS for t in pod_templates(m) for c in t["spec"]["containers"]}
    prefect = [image.split(":")[1].split("-")[0] for image in images if "/prefect:" in image]
    assert [f"prefect=={version}" in lock for version in prefect] == [True]


# What refers to what.


def labels_of_pods(namespace: str) -> list[dict[str, str]]:
    found = [(m, t) for m in MANIFESTS if m["metadata"].get("namespace") == namespace for t in pod_templates(m)]
    return [template.get("metadata", {}).get("labels", {}) for _, template in found]


@of_kinds("Service", "Deployment", "StatefulSet", "PodDisruptionBudget", "NetworkPolicy")
def test_every_selector_finds_a_pod(manifest: Manifest) -> None:
    spec, namespace = manifest["spec"], manifest["metadata"]["namespace"]
    match manifest["kind"]:
        case "Service":
            selector = {"matchLabels": spec["selector"]}
        case "NetworkPolicy":
            selector = spec["podSelector"]
        case _:
            selector = spec["selector"]
    assert not selector or any(selects(selector, labels) for labels in labels_of_pods(namespace))


@of_kinds("Service")
def test_a_service_asks_for_a_port_that_is_open(manifest: Manifest) -> None:
    selector = {"matchLabels": manifest["spec"]["selector"]}
    pods = [
        t
        for m in MANIFESTS
        if m["metadata"].get("namespace") == manifest["metadata"]["namespace"]
        for t in pod_templates(m)
    ]
    chosen = [pod for pod in pods if selects(selector, pod.get("metadata", {}).get("labels", {}))]
    for port in manifest["spec"]["ports"]:
        opened = [p["containerPort"] for pod in chosen for c in pod["spec"]["containers"] for p in c["ports"]]
        assert port.get("targetPort", port["port"]) in opened


def exists(kind: str, namespace: str, name: str) -> bool:
    return f"{kind}/{namespace}/{name}" in {name_of(manifest) for manifest in MANIFESTS}


def secrets_of(pod: dict[str, Any]) -> set[tuple[str, str]]:
    """Names and keys of the secrets that a pod's containers read."""
    found = set()
    for container in pod["containers"]:
        for variable in container.get("env", []):
            if reference := variable.get("valueFrom", {}).get("secretKeyRef"):
                found.add((reference["name"], reference["key"]))
    return found


@of_kinds(*WORKLOADS)
def test_what_a_pod_names_is_there_or_told_of(manifest: Manifest) -> None:
    namespace = manifest["metadata"].get("namespace", "")
    for template in pod_templates(manifest):
        pod = template["spec"]
        if account := pod.get("serviceAccountName"):
            assert exists("ServiceAccount", namespace, account)
        own = {claim["metadata"]["name"] for claim in manifest["spec"].get("volumeClaimTemplates", [])}
        volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
        for volume in volumes.values():
            if claim := volume.get("persistentVolumeClaim"):
                assert exists("PersistentVolumeClaim", namespace, claim["claimName"])
            if config := volume.get("configMap"):
                assert exists("ConfigMap", namespace, config["name"])
            assert not volume.keys() & {"hostPath", "secret"}
        for container in pod["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes.keys() | own
        for name, key in secrets_of(pod):  # a secret is no manifest: infra/README.md says how it is made
            assert f"| `{namespace}` | `{name}` | `{key}` |" in README


def test_every_secret_that_is_told_of_is_read() -> None:
    told = set(re.findall(r"^\| `([\w-]+)` \| `([\w-]+)` \| `(\w+)` \|", README, re.MULTILINE))
    read = {
        (manifest["metadata"]["namespace"], *secret)
        for manifest in MANIFESTS
        for template in pod_templates(manifest)
        for secret in secrets_of(template["spec"])
    }
    assert told == read


def test_the_cluster_profile_names_what_is_there() -> None:
    cluster = load_recipe(profile="h200").execution.kubernetes
    assert cluster is not None
    assert exists("PersistentVolumeClaim", cluster.namespace, cluster.home_claim)
    assert exists("ServiceAccount", cluster.namespace, cluster.service_account)
    assert all(f"| `{cluster.namespace}` | `{secret}` |" in README for secret in cluster.env_from_secrets)
    runs = next(m for m in MANIFESTS if name_of(m) == f"ConfigMap/{cluster.namespace}/rufus-runs")
    assert runs["data"]["RUFUS_HOME"] == cluster.home_path
    containers = [
        c for m in MANIFESTS if m["kind"] == "RayCluster" for t in pod_templates(m) for c in t["spec"]["containers"]
    ]
    assert {container["image"] for container in containers} == {cluster.image}
    assert f"\nUSER {cluster.run_as}:{cluster.run_as}\n" in (ROOT / "infra/images/gpu.Containerfile").read_text()


@of_kinds("RoleBinding")
def test_a_role_is_bound_within_what_is_there(manifest: Manifest) -> None:
    assert manifest["roleRef"]["kind"] == "Role"
    assert exists("Role", manifest["metadata"]["namespace"], manifest["roleRef"]["name"])
    assert all(exists("ServiceAccount", who["namespace"], who["name"]) for who in manifest["subjects"])


@manifests
def test_its_namespace_is_there(manifest: Manifest) -> None:
    namespace = manifest["metadata"].get("namespace")
    assert namespace is None or exists("Namespace", "", namespace)
