"""What the manifests let anybody do: pods, accounts, networks, quotas."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from tests.infra.manifests import FOLDER, Manifest, name_of, pod_templates, reaches, written

MANIFESTS = written()
POLICIES = [manifest for manifest in MANIFESTS if manifest["kind"] == "NetworkPolicy"]
NAMESPACES = [manifest["metadata"]["name"] for manifest in MANIFESTS if manifest["kind"] == "Namespace"]
CALL_KUBERNETES = {"rufus-worker", "sandbox-control"}  # workloads whose work it is to start pods


def pool_job() -> Manifest:
    """The Job of a flow run, as the work pool makes it with nothing but defaults."""
    pool = json.loads((FOLDER / "work-pool.json").read_text())
    values = {name: schema.get("default") for name, schema in pool["variables"]["properties"].items()}
    values |= {"name": "run", "labels": {}, "annotations": {}, "env": [], "command": ["prefect", "flow-run", "execute"]}

    def filled(node: object) -> object:
        if isinstance(node, dict):
            return {key: filled(value) for key, value in node.items()}
        if isinstance(node, list):
            return [filled(value) for value in node]
        if isinstance(node, str) and (found := re.fullmatch(r"\{\{ (\w+) \}\}", node)):
            return values[found[1]]
        return re.sub(r"\{\{ (\w+) \}\}", lambda found: str(values[found[1]]), node) if isinstance(node, str) else node

    job = filled(pool["job_configuration"]["job_manifest"])
    assert isinstance(job, dict)
    return job


WORKLOADS = [manifest for manifest in [*MANIFESTS, pool_job()] if any(pod_templates(manifest))]
workloads = pytest.mark.parametrize(
    "manifest", WORKLOADS, ids=lambda manifest: manifest["metadata"].get("name", "flow-run")
)


@workloads
def test_an_image_has_a_stated_version(manifest: Manifest) -> None:
    images = [c["image"] for template in pod_templates(manifest) for c in template["spec"]["containers"]]
    assert all(re.search(r":\d[\w.-]+$", image) for image in images)


@workloads
def test_a_container_says_what_it_takes(manifest: Manifest) -> None:
    for template in pod_templates(manifest):
        for container in template["spec"]["containers"]:
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
            assert {"cpu", "memory"} <= container["resources"]["limits"].keys()
        assert all("sizeLimit" in v["emptyDir"] for v in template["spec"]["volumes"] if "emptyDir" in v)


@workloads
def test_a_pod_is_nobody_special_and_writes_nowhere_but_in_its_volumes(manifest: Manifest) -> None:
    for template in pod_templates(manifest):
        pod = template["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not pod.keys() & {"hostNetwork", "hostPID", "hostIPC"}
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"]
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context["allowPrivilegeEscalation"] is False
            assert "privileged" not in context


@workloads
def test_only_who_starts_pods_has_a_token(manifest: Manifest) -> None:
    starts_pods = manifest["kind"] == "Job" or manifest["metadata"]["name"] in CALL_KUBERNETES
    for template in pod_templates(manifest):
        assert template["spec"]["automountServiceAccountToken"] is starts_pods
        labels = template.get("metadata", {}).get("labels", {})
        in_jobs = manifest["metadata"]["namespace"] == "rufus-jobs"
        assert (labels.get("rufus/calls-kubernetes") == "true") is (starts_pods and in_jobs)


SERVICES = [manifest for manifest in MANIFESTS if manifest["kind"] in {"Deployment", "StatefulSet"}]


@pytest.mark.parametrize("manifest", SERVICES, ids=name_of)
def test_a_service_that_stands_is_asked_whether_it_is_well(manifest: Manifest) -> None:
    for template in pod_templates(manifest):
        assert all("livenessProbe" in container for container in template["spec"]["containers"])
    budget = f"PodDisruptionBudget/{manifest['metadata']['namespace']}/{manifest['metadata']['name']}"
    assert budget in {name_of(other) for other in MANIFESTS}


def test_the_work_pool_makes_a_job_that_the_schema_accepts() -> None:
    kubernetes_validate.validate(pool_job(), "1.32", strict=True)


def test_the_work_pool_takes_what_deployments_say() -> None:
    pool = json.loads((FOLDER / "work-pool.json").read_text())
    deployed = yaml.safe_load((Path(__file__).parents[2] / "prefect.yaml").read_text())["definitions"]["work_pools"]
    assert deployed["kubernetes"]["job_variables"].keys() <= pool["variables"]["properties"].keys()
    job = pool_job()
    assert job["spec"]["backoffLimit"] == 0
    pod = job["spec"]["template"]["spec"]
    mounts = pod["containers"][0]["volumeMounts"]
    assert deployed["kubernetes"]["job_variables"]["env"]["RUFUS_HOME"] in [mount["mountPath"] for mount in mounts]


# Accounts.


def test_rights_are_within_a_namespace_and_to_jobs_pods_and_logs_alone() -> None:
    assert not [manifest for manifest in MANIFESTS if manifest["kind"].startswith("ClusterRole")]
    allowed = {"jobs", "rayjobs", "pods", "pods/log"}
    for role in (manifest for manifest in MANIFESTS if manifest["kind"] == "Role"):
        for rule in role["rules"]:
            assert set(rule["resources"]) <= allowed
            assert "*" not in [*rule["verbs"], *rule["apiGroups"], *rule["resources"]]
            assert not {"update", "patch", "deletecollection"} & set(rule["verbs"])
    in_jobs = [m for m in MANIFESTS if m["kind"] == "Role" and m["metadata"]["namespace"] == "rufus-jobs"]
    for rule in (rule for role in in_jobs for rule in role["rules"]):
        if "pods" in rule["resources"]:
            assert set(rule["verbs"]) == {"get", "list", "watch"}


def test_no_account_of_a_namespace_hands_out_tokens() -> None:
    accounts = [manifest for manifest in MANIFESTS if manifest["kind"] == "ServiceAccount"]
    assert all(account["automountServiceAccountToken"] is False for account in accounts)


# Networks: who reaches whom.


def pod(namespace: str, name: str = "anything", **labels: str) -> Manifest:
    return {"namespace": namespace, "labels": {"app.kubernetes.io/name": name, **labels}}


POSTGRES, PREFECT, MLFLOW = pod("rufus", "postgres"), pod("rufus", "prefect"), pod("rufus", "mlflow")
CONTROL = pod("rufus-sandbox-control", "sandbox-control")
SANDBOX, TRAINER = pod("rufus-sandboxes"), pod("rufus-jobs")
RUN = pod("rufus-jobs", **{"rufus/calls-kubernetes": "true"})
DNS = {"namespace": "kube-system", "labels": {"k8s-app": "kube-dns"}}
STRANGER = pod("default")
METADATA, API_SERVER, WORLD = "169.254.169.254", "10.96.0.1", "93.184.216.34"


@pytest.mark.parametrize("target", [METADATA, API_SERVER, WORLD])
def test_a_sandbox_reaches_no_address(target: str) -> None:
    assert not any(reaches(POLICIES, SANDBOX, target, port) for port in (80, 443, 6443))


def test_a_sandbox_reaches_no_pod_not_even_its_like() -> None:
    others = (POSTGRES, PREFECT, MLFLOW, CONTROL, TRAINER, RUN, SANDBOX, DNS, STRANGER)
    for target, port in product(others, (53, 80, 443, 3000, 4200, 5000, 5432, 8265, 49983)):
        assert not reaches(POLICIES, SANDBOX, target, port)
        assert not reaches(POLICIES, SANDBOX, target, port, "UDP")


def test_a_sandbox_hears_commands_of_its_control_plane_alone() -> None:
    assert reaches(POLICIES, CONTROL, SANDBOX, 49983)
    assert not reaches(POLICIES, CONTROL, SANDBOX, 22)
    assert not any(reaches(POLICIES, source, SANDBOX, 49983) for source in (TRAINER, RUN, PREFECT, STRANGER))


def test_the_database_hears_prefect_and_mlflow_alone() -> None:
    assert reaches(POLICIES, PREFECT, POSTGRES, 5432)
    assert reaches(POLICIES, MLFLOW, POSTGRES, 5432)
    assert not any(reaches(POLICIES, source, POSTGRES, 5432) for source in (TRAINER, RUN, CONTROL, STRANGER))


def test_runs_reach_services_sandboxes_door_and_the_world_by_https() -> None:
    for source in (TRAINER, RUN):
        assert reaches(POLICIES, source, PREFECT, 4200)
        assert reaches(POLICIES, source, MLFLOW, 5000)
        assert reaches(POLICIES, source, CONTROL, 3000)
        assert reaches(POLICIES, source, TRAINER, 29500)
        assert reaches(POLICIES, source, DNS, 53, "UDP")
        assert reaches(POLICIES, source, WORLD, 443)
        assert not reaches(POLICIES, source, WORLD, 80)
        assert not reaches(POLICIES, source, METADATA, 80)


def test_only_who_starts_jobs_reaches_the_api_server() -> None:
    assert reaches(POLICIES, RUN, API_SERVER, 443)
    assert reaches(POLICIES, CONTROL, API_SERVER, 443)
    assert not any(reaches(POLICIES, source, API_SERVER, 443) for source in (TRAINER, PREFECT, MLFLOW, POSTGRES))


def test_strangers_reach_nothing_of_ours() -> None:
    for target, port in ((PREFECT, 4200), (MLFLOW, 5000), (CONTROL, 3000), (TRAINER, 8265), (RUN, 8080)):
        assert not reaches(POLICIES, STRANGER, target, port)


def test_services_call_nobody_outside() -> None:
    assert not any(reaches(POLICIES, source, WORLD, 443) for source in (POSTGRES, PREFECT, MLFLOW))


# Namespaces.


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_a_namespace_is_bounded_and_held_to_a_standard(namespace: str) -> None:
    found = next(m for m in MANIFESTS if m["kind"] == "Namespace" and m["metadata"]["name"] == namespace)
    level = found["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
    assert level == ("baseline" if namespace == "rufus-jobs" else "restricted")
    kinds = {m["kind"] for m in MANIFESTS if m["metadata"].get("namespace") == namespace}
    assert {"ResourceQuota", "NetworkPolicy"} <= kinds
    denied = next(m for m in POLICIES if m["metadata"] == {"name": "deny", "namespace": namespace})
    assert denied["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}


def test_a_sandbox_gets_no_gpu_no_disk_no_secret() -> None:
    quota = next(m for m in MANIFESTS if m["kind"] == "ResourceQuota" and m["metadata"]["name"] == "sandboxes")
    hard = quota["spec"]["hard"]
    nothing = ("requests.nvidia.com/gpu", "persistentvolumeclaims", "secrets", "services")
    assert {hard[name] for name in nothing} == {"0"}
    assert hard["pods"] == "10000"  # COST-02


def test_a_flow_run_finds_its_account_home_services_and_secret() -> None:
    names = {name_of(manifest): manifest for manifest in MANIFESTS}
    job = pool_job()
    space, pod = job["metadata"]["namespace"], job["spec"]["template"]["spec"]
    assert f"ServiceAccount/{space}/{pod['serviceAccountName']}" in names
    assert f"PersistentVolumeClaim/{space}/{pod['volumes'][0]['persistentVolumeClaim']['claimName']}" in names
    config, secret = pod["containers"][0]["envFrom"]
    data = names[f"ConfigMap/{space}/{config['configMapRef']['name']}"]["data"]
    assert data["RUFUS_HOME"] == pod["containers"][0]["volumeMounts"][0]["mountPath"]
    service, _, port = data["MLFLOW_TRACKING_URI"].removeprefix("http://").partition(":")
    name, of, _ = service.split(".")
    assert int(port) in [entry["port"] for entry in names[f"Service/{of}/{name}"]["spec"]["ports"]]
    environment = names["Deployment/rufus/mlflow"]["spec"]["template"]["spec"]["containers"][0]["env"]
    hosts = next(entry["value"] for entry in environment if entry["name"] == "MLFLOW_SERVER_ALLOWED_HOSTS")
    assert f"{service}:{port}" in hosts.split(",")
    readme = (Path(__file__).parents[2] / "infra/README.md").read_text()
    assert f"| `{space}` | `{secret['secretRef']['name']}` |" in readme
