"""`rufus deploy`: faults of the files, and what a real server holds afterwards."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from rufus_core.cli.deploy import deploy
from rufus_core.errors import ConfigError, InfrastructureError
from tasks import servers

ROOT = Path(__file__).parents[2]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A copy of the project's own files, which a test may change."""
    shutil.copy(ROOT / "prefect.yaml", tmp_path)
    shutil.copytree(ROOT / "deployments", tmp_path / "deployments")
    return tmp_path / "prefect.yaml"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with servers.prefect_server(tmp_path_factory.mktemp("home"), servers.free_port()) as running:
        running.ready()
        yield f"{running.url}/api"


@pytest.fixture
def run(file: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, str]]:
    """Deploys the file; the action by name."""

    def go(*names: str, check: bool = False) -> dict[str, str]:
        deploy(list(names), check, file, json_=True)
        return {each["name"]: each["action"] for each in json.loads(capsys.readouterr().out)}

    return go


def change(file: Path, old: str, new: str) -> int:
    """Replace the only occurrence of `old`; its line."""
    text = file.read_text()
    assert text.count(old) == 1, old
    file.write_text(text.replace(old, new))
    return text[: text.index(old)].count("\n") + 1


def test_the_projects_own_file_has_no_fault_and_both_pools(run: Callable[..., dict[str, str]]) -> None:
    checked = run(check=True)
    assert set(checked.values()) == {"checked"}
    flows = ("rufus-recipe/", "rufus-stage/stage-", "rufus-data/data-", "rufus-evals/evals-")
    assert set(checked) == {f"{flow}{profile}" for flow in flows for profile in ("cpu", "h200")}


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("description: The whole recipe on the worker's", "descripton: x", "unknown key 'descripton' .*'description'"),
        ("finished_job_ttl: 86400", "finished_job_tll: 86400", "no variable 'finished_job_tll' .*'finished_job_ttl'"),
        ("finished_job_ttl: 86400", "finished_job_ttl: soon", "finished_job_ttl: 'soon' is not of type 'integer'"),
        ("image_pull_policy: IfNotPresent", "image_pull_policy: Some", "image_pull_policy: 'Some' is not one of"),
        ("profile: cpu, stage: sft", "profile: cpu, stge: sft", "rufus-stage has no parameter 'stge' .*'stage'"),
        ("profile: cpu, stage: sft", "profile: cpu, stage: 3", "stage: 3 is not of type 'string'"),
        ("profile: cpu, stage: sft", "profile: cpu, stage: sfft", "no stage 'sfft' .*'sft'"),
        ("profile: cpu, stage: sft", "profile: cpuu, stage: sft", "recipe can't be loaded: .*no profile 'cpuu'"),
        ("cpu, time_zone: *zone}", "cpu, time_zone: *zone, benchmarks: 5}", "benchmarks: 5 is not of type 'array'"),
        ("cpu, time_zone: *zone}", "cpu, time_zone: *zone, overrides: [5]}", "overrides: .*5 is not of type 'string'"),
        (
            "cpu, time_zone: *zone}\n    schedules: [*nightly]",
            "cpu, time_zone: *zone}\n    schedules: [{slug: a, cron: 1 2 * * *, timezone: UTC,"
            " parameters: {checkpoints: [sftt]}}]",
            "no checkpoint 'sftt' .*'sft'",
        ),
        ("cpu, time_zone: *zone}", "cpu, time_zone: *zone, checkpoints: [abc]}", "no checkpoint 'abc'"),
        ("cpu, time_zone: *zone}", "cpu, time_zone: *zone, checkpoints: [sft@x]}", "no checkpoint 'sft@x'"),
        ("  - name: cpu", "  - name: cpu\n    paused: 3", "paused: input should be a valid boolean"),
        ("timezone: &zone Europe/Berlin", "timezone: &zone Europe/Bonn", "timezone 'Europe/Bonn'"),
        ('cron: &at "30 2 * * *"', 'cron: &at "99 2 * * *"', "cron '99 2"),
        ("{rufus-local: process,", "{rufus-locl: process,", "type the work pool 'rufus-local' is .*'rufus-locl'"),
    ],
)
def test_a_fault_is_told_with_its_line_and_what_was_meant(
    file: Path, run: Callable[..., dict[str, str]], old: str, new: str, told: str
) -> None:
    line = change(file, old, new)
    with pytest.raises(ConfigError, match=told) as error:
        run(check=True)
    if "{rufus" not in old:  # told where the pool is used
        assert f"{file}:{line + new.count(chr(10))}" in str(error.value)


@pytest.mark.parametrize(
    ("entrypoint", "told"),
    [
        ("flows.data.rufus_dta", "can't import 'flows.data.rufus_dta'"),
        ("flows/data.py:rufus_data", "is a path, which other machines don't have"),
        ("flows.data.data_graph", "not a flow"),
    ],
)
def test_an_entrypoint_is_a_flow_that_can_be_imported(
    file: Path, run: Callable[..., dict[str, str]], entrypoint: str, told: str
) -> None:
    text = file.read_text().replace("flows.data.rufus_data", entrypoint, 1)
    file.write_text(text)
    line = text[: text.index(entrypoint)].count("\n") + 1
    with pytest.raises(ConfigError, match=told) as error:
        run(check=True)
    assert f"{file}:{line}: " in str(error.value)


@pytest.mark.parametrize(
    "checkpoint", ["sft", "sft@3", "'sft:3'", "0123abc", "stages/sft/train", "rufus-air", "rufus-air@sft"]
)
def test_a_checkpoint_is_named_as_everywhere(file: Path, run: Callable[..., dict[str, str]], checkpoint: str) -> None:
    change(file, "profile: cpu, time_zone: *zone}", f"profile: cpu, time_zone: *zone, checkpoints: [{checkpoint}]}}")
    assert set(run(check=True).values()) == {"checked"}


def test_several_faults_are_told_at_once(file: Path, run: Callable[..., dict[str, str]]) -> None:
    change(file, "finished_job_ttl: 86400", "finished_job_tll: 86400")
    change(file, "profile: cpu, stage: sft", "profile: cpu, stage: sfft")
    with pytest.raises(ConfigError, match=r"(?s)5 faults .*sfft.*finished_job_tll"):  # four deployments use that pool
        run(check=True)


def test_without_a_server_it_says_what_to_set(
    run: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    with pytest.raises(ConfigError, match=r"PREFECT_API_URL: .* \(export PREFECT_API_URL="):
        run()


def test_deploying_holds_the_server_to_the_files_and_touches_nothing_of_others(
    file: Path, run: Callable[..., dict[str, str]], server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", server)
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with temporary_settings({PREFECT_API_URL: server}):
        one = run("cpu")
        assert set(one.values()) == {"created"}
        assert "rufus: dead flow runs are crashed" in one  # which every deployment needs
        assert {name for name in one if name.startswith("rufus-") and "/" in name} == {"rufus-recipe/cpu"}
        assert run()["rufus-evals/evals-cpu"] == "created"
        before = held(server)
        (nightly,) = before["rufus-evals/evals-cpu"]["schedules"]
        assert (nightly["schedule"]["cron"], nightly["schedule"]["timezone"]) == ("30 2 * * *", "Europe/Berlin")
        assert before["rufus-recipe/cpu"]["global_concurrency_limit"]["limit"] == 1
        assert not any(str(ROOT) in json.dumps(each) for each in before.values())

        assert set(run().values()) == {"unchanged"}
        assert held(server) == before

        theirs = {"name": "theirs", "flow_id": before["rufus-recipe/cpu"]["flow_id"], "tags": ["recipe"]}
        httpx.post(f"{server}/deployments/", json=theirs).raise_for_status()
        text = file.read_text()
        start, end = text.index("  - name: data-cpu"), text.index("  - name: evals-cpu")
        file.write_text((text[:start] + text[end:]).replace("    schedules: [*nightly]\n", "", 1))
        with pytest.raises(ConfigError, match=r"no deployment 'cpuu' .*'cpu'"):
            run("cpuu")
        assert set(run("cpu").values()) == {"unchanged"}
        changed = {name: action for name, action in run().items() if action != "unchanged"}
        assert changed == {"rufus-evals/evals-cpu": "updated", "rufus-data/data-cpu": "removed"}
        after = held(server)
        assert after["rufus-evals/evals-cpu"]["schedules"] == []
        assert after.keys() == (before.keys() - {"rufus-data/data-cpu"}) | {"rufus-recipe/theirs"}
        planned = httpx.post(f"{server}/flow_runs/filter", json={}).json()
        assert before["rufus-evals/evals-cpu"]["id"] not in {each["deployment_id"] for each in planned}


def test_a_server_that_does_not_answer_is_told_with_its_address(
    file: Path, run: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"http://127.0.0.1:{servers.free_port()}/api"
    monkeypatch.setenv("PREFECT_API_URL", url)
    with pytest.raises(InfrastructureError, match="no Prefect server answers there") as error:
        run()
    assert error.value.where == f"PREFECT_API_URL={url}"
    with pytest.raises(ConfigError, match="no deployment 'cpuu'"):
        run("cpuu", check=True)
    assert set(run("cpu", check=True)) == {"rufus-recipe/cpu"}


def held(server: str) -> dict[str, Any]:
    """The server's deployments by their full name."""
    flows = {each["id"]: each["name"] for each in httpx.post(f"{server}/flows/filter", json={}).json()}
    deployments = httpx.post(f"{server}/deployments/filter", json={}).json()
    volatile = ("status", "last_polled")  # a worker's, and the scheduler's
    return {
        f"{flows[each['flow_id']]}/{each['name']}": {key: value for key, value in each.items() if key not in volatile}
        for each in deployments
    }
