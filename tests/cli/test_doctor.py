"""`rufus doctor` and `rufus ui`."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import typer

from rufus_core.cli.doctor import doctor
from rufus_core.cli.ui import ui
from rufus_core.errors import ConfigError, PortInUse
from rufus_core.ports.orchestration import Check
from tasks.servers import free_port
from tests.sandbox.e2b.running import API_KEY, e2b_server


def checks(capsys: pytest.CaptureFixture[str], home: Path) -> dict[str, dict[str, object]]:
    doctor(home=home, json_=True)
    return {row["name"]: row for row in json.loads(capsys.readouterr().out)}


def test_doctor_tells_versions_and_what_is_optional(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = checks(capsys, tmp_path)
    assert found["Prefect"]["detail"] == "3.9.1"
    assert found["MLflow"]["detail"] == "3.17.2"
    assert found["torch"]["ok"]
    assert found["sandbox"]["required"]
    assert not found["sglang"]["required"]
    assert {"Python", "git", "disk", "memory", "Prefect's page", "MLflow's page"} <= set(found)


def test_doctor_fails_on_what_is_required_and_says_how_to_get_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "rufus_core.cli.doctor._sandbox", lambda: Check("sandbox", False, "no namespaces", hint="ask the kernel")
    )
    with pytest.raises(typer.Exit) as stopped:
        doctor(home=tmp_path, json_=False)
    assert stopped.value.exit_code == 1
    assert "missing  sandbox         no namespaces  (ask the kernel)" in capsys.readouterr().out


def test_doctor_checks_where_a_profile_places_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with e2b_server() as server:
        placed = ["execution={sandbox: e2b, sandbox_template: python}", f"execution.sandbox_url={server.url}"]
        doctor(set_=placed, home=tmp_path, json_=True)
        (sandbox,) = [row for row in json.loads(capsys.readouterr().out) if row["name"] == "sandbox"]
        assert (sandbox["ok"], sandbox["detail"]) == (True, f"E2B at {server.url}, template 'python'")
        for key, template, told in (("e2b_ff", "python", "E2B_API_KEY"), (API_KEY, "nope", "no template 'nope'")):
            monkeypatch.setenv("E2B_API_KEY", key)
            with pytest.raises(typer.Exit):
                doctor(set_=[*placed, f"execution.sandbox_template={template}"], home=tmp_path)
            assert told in capsys.readouterr().out


def test_microvms_without_a_template_are_refused_with_the_recipe(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs a sandbox_template"):
        doctor(set_=["execution.sandbox=e2b"], home=tmp_path)


@pytest.mark.parametrize("option", ["--prefect-port", "--mlflow-port"])
def test_a_taken_port_is_named_with_its_option(tmp_path: Path, option: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ports = {"prefect_port": free_port(), "mlflow_port": free_port(), option[2:].replace("-", "_"): port}
        with pytest.raises(PortInUse, match=rf"port {port} is taken .*{option}"):
            ui(home=tmp_path, **ports)
    assert not (tmp_path / "prefect").exists()


def test_ui_serves_both_pages_and_stops_both_on_ctrl_c(tmp_path: Path) -> None:
    ports = {"--prefect-port": free_port(), "--mlflow-port": free_port()}
    code = "import sys, typer; from rufus_core.cli.ui import ui; typer.run(ui)"
    arguments = [str(each) for pair in ports.items() for each in pair]
    command = [sys.executable, "-c", code, "--home", str(tmp_path), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(4)]
        assert lines[3] == "Ctrl-C stops both.\n", lines
        for line, port in zip(lines[1:3], ports.values(), strict=True):
            address = line.rsplit(" ", 1)[1].strip()
            assert address == f"http://127.0.0.1:{port}"
            assert httpx.get(address, follow_redirects=True).status_code == 200
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == "Stopped.\n"
        assert process.wait() == 0
    for port in ports.values():
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"http://127.0.0.1:{port}")
