"""`infra/compose.yaml`: valid by the compose specification, open on this machine alone, and without a secret in it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec import PyCompose

from tasks.databases import MLFLOW_DATABASE
from tasks.servers import mlflow_server, prefect_server

ROOT = Path(__file__).parents[2]
FILE = ROOT / "infra/compose.yaml"
TEXT = FILE.read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]

services = pytest.mark.parametrize("name", SERVICES)


def variables() -> set[str]:
    lines = (ROOT / "infra/services.example.env").read_text().splitlines()
    return {line.split("=")[0] for line in lines if line and not line.startswith("#")}


def test_the_specification_accepts_it() -> None:
    PyCompose.from_json(json.dumps(COMPOSE)).validate()


def test_the_specification_refuses_what_is_misspelt() -> None:
    broken = {**COMPOSE, "services": {**SERVICES, "worker": {**SERVICES["worker"], "helthcheck": {}}}}
    with pytest.raises(ValueError, match="helthcheck"):
        PyCompose.from_json(json.dumps(broken))


def test_every_network_and_volume_is_used() -> None:
    assert {net for service in SERVICES.values() for net in service["networks"]} == set(COMPOSE["networks"])
    named = {volume.split(":")[0] for service in SERVICES.values() for volume in service["volumes"]}
    assert {volume for volume in named if not volume.startswith(".")} == set(COMPOSE["volumes"])


@services
def test_files_that_are_mounted_exist_and_are_read_only(name: str) -> None:
    for volume in SERVICES[name]["volumes"]:
        source, _, rest = volume.partition(":")
        if source.startswith("."):
            assert (FILE.parent / source).is_file()
            assert rest.endswith(":ro")


@services
def test_ports_are_open_on_this_machine_alone(name: str) -> None:
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].get("ports", []))


@services
def test_an_image_has_a_stated_version(name: str) -> None:
    assert re.search(r":(RELEASE\.)?\d[\w.-]+$", SERVICES[name]["image"])


@services
def test_a_service_has_least_rights_and_bounds(name: str) -> None:
    service = SERVICES[name]
    assert int(service["user"].split(":")[0]) > 0
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert {"mem_limit", "pids_limit", "logging"} <= service.keys()
    assert not {"privileged", "cap_add", "devices", "pid", "network_mode"} & service.keys()


@services
def test_a_service_is_asked_whether_it_is_well(name: str) -> None:
    health = SERVICES[name]["healthcheck"]
    assert health["test"][0] == "CMD"
    assert {"interval", "timeout", "retries"} <= health.keys()
    for other, condition in SERVICES[name].get("depends_on", {}).items():
        assert condition == {"condition": "service_healthy"}
        assert "healthcheck" in SERVICES[other]


def test_only_prefect_and_mlflow_reach_the_databases() -> None:
    inside = {name for name, service in SERVICES.items() if "databases" in service["networks"]}
    assert inside == {"postgres", "prefect", "mlflow"}
    assert COMPOSE["networks"]["databases"]["internal"]


def test_secrets_come_from_the_env_file_and_are_asked_for() -> None:
    used = re.findall(r"\$\{(\w+)([^}]*)\}", TEXT)
    assert {name for name, _ in used} == variables()
    assert all(rest.startswith(":?") for _, rest in used)
    for service in SERVICES.values():
        for key, value in service["environment"].items():
            if re.search(r"PASSWORD|SECRET|AUTH_STRING|KEY_ID|_USER$", key) and key != "POSTGRES_USER":
                assert value.startswith("${"), key


def test_the_example_holds_no_secret() -> None:
    lines = (ROOT / "infra/services.example.env").read_text().splitlines()
    assert all(line.startswith("#") or line.endswith("=") for line in lines)
    assert "infra/services.env" in (ROOT / ".gitignore").read_text().splitlines()
    assert "infra/services.env" in (ROOT / ".dockerignore").read_text().splitlines()


def test_the_servers_are_set_up_as_those_that_rufus_starts(tmp_path: Path) -> None:
    prefect, mlflow = prefect_server(tmp_path, 4200), mlflow_server(tmp_path, 5000)
    lease = "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE"
    assert SERVICES["prefect"]["environment"][lease] == prefect.env[lease]
    assert prefect.health in SERVICES["prefect"]["healthcheck"]["test"][-1]
    database = {MLFLOW_DATABASE: SERVICES["mlflow"]["environment"][MLFLOW_DATABASE]}  # there a file of the home
    assert (mlflow.env | database).items() <= SERVICES["mlflow"]["environment"].items()
    assert mlflow.health in SERVICES["mlflow"]["healthcheck"]["test"][-1]


def test_our_image_is_one_version() -> None:
    ours = {service["image"] for service in SERVICES.values() if service["image"].startswith("rufus")}
    pools = yaml.safe_load((ROOT / "prefect.yaml").read_text())["definitions"]["work_pools"]
    assert ours == {pools["kubernetes"]["job_variables"]["image"]}
