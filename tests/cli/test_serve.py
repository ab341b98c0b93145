"""`rufus serve` and `rufus chat` as a user types them."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import torch
from typer.testing import CliRunner

from rufus_core.cli.main import app
from rufus_core.errors import ConfigError, LineageError, PortInUse
from rufus_core.rollout.policy import Policy
from rufus_core.settings import PolicyShape
from rufus_core.training.base_policy import make_policy
from tests.rollout.server.process import ServerProcess

ROOT = Path(__file__).parents[2]
LONG = {"max_new_tokens": 120, "ignore_eos": True}


@pytest.fixture(scope="module")
def checkpoint(tiny_policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policies") / "tiny"
    tiny_policy.save(folder)
    return folder


@pytest.fixture(scope="module")
def server(checkpoint: Path):  # type: ignore[no-untyped-def]
    with ServerProcess(checkpoint, "--max-requests", "4") as process:
        yield process


def rufus(*words: object) -> None:
    CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)


def test_the_documented_curl_commands_work(server: ServerProcess) -> None:
    page = (ROOT / "docs/serving.md").read_text()
    block = page.partition("<!-- curl -->\n```\n")[2].partition("```")[0]
    for command in re.findall(r"^curl .*?(?=^curl |\Z)", block, re.MULTILINE | re.DOTALL):
        words = [word.replace("$URL", server.url) for word in shlex.split(command)]
        done = subprocess.run([words[0], "-sS", "--fail-with-body", *words[1:]], capture_output=True, text=True)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        assert done.stdout


def test_a_full_queue_says_when_to_come_again(server: ServerProcess) -> None:
    httpx.post(f"{server.url}/pause_generation", json={"mode": "in_place"})
    body = {"input_ids": [[5]] * 4, "stream": True, "sampling_params": {"max_new_tokens": 2}}
    with httpx.stream("POST", f"{server.url}/generate", json=body) as held:
        refused = httpx.post(f"{server.url}/generate", json={"input_ids": [5]})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        httpx.post(f"{server.url}/continue_generation")
        held.read()
    assert httpx.post(f"{server.url}/generate", json={"input_ids": [5]}).status_code == 200
    server.assert_quiet()


def test_mistakes_are_told_in_one_line(server: ServerProcess, checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(PortInUse, match="taken by another program"):
        rufus("serve", checkpoint, "--port", server.url.rpartition(":")[2])
    with pytest.raises(ConfigError, match="other machines could reach"):
        rufus("serve", checkpoint, "--host", "0.0.0.0")
    for command in ("serve", "chat"):
        with pytest.raises(LineageError, match="can't find 'nothing'"):
            rufus(command, "nothing", "--home", tmp_path)
        with pytest.raises(LineageError, match=r"no config\.json"):
            rufus(command, tmp_path, "--home", tmp_path)


def test_a_key_is_asked_for_and_stopping_gives_what_there_is(checkpoint: Path) -> None:
    with ServerProcess(checkpoint, "--api-key", "secret") as process:
        assert httpx.get(f"{process.url}/model_info").status_code == 401
        assert httpx.get(f"{process.url}/health").status_code == 200
        client = httpx.Client(base_url=process.url, headers={"Authorization": "Bearer secret"}, timeout=60.0)
        assert client.get("/model_info").status_code == 200
        client.post("/pause_generation", json={"mode": "in_place"})
        response = client.send(
            client.build_request("POST", "/generate", json={"input_ids": [5], "stream": True, "sampling_params": LONG}),
            stream=True,
        )
        process.interrupt()
        *_, last, done = [line for line in response.iter_lines() if line]
        assert done == "data: [DONE]"
        assert json.loads(last.removeprefix("data: "))["meta_info"]["finish_reason"]["type"] == "abort"
        client.close()


def chat(checkpoint: Path, typed: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rufus_core.cli.main", "chat", str(checkpoint), *options]
    return subprocess.run(command, input=typed, capture_output=True, text=True, timeout=120)


def test_chat_answers_piped_lines_and_obeys_commands(checkpoint: Path) -> None:
    lines = ["/set max_tokens 6", "hello", "/reset", "hello", "/settings", "/system be red", "/set heat 1", "/what"]
    done = chat(checkpoint, "\n".join(lines), "--seed", "3")
    assert done.returncode == 1  # two commands were wrong
    first, second, *settings = done.stdout.splitlines()
    assert first == second != ""
    assert settings == ["temperature 0.7", "top_p 1.0", "top_k -1", "max_tokens 6", "seed 3"]
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["error"] * 2
    assert "heat" in done.stderr
    assert "/what" in done.stderr


def endless_policy() -> Policy:
    """It never ends a turn, and its context holds many seconds of talk."""
    shape = PolicyShape(
        hidden_size=32, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=16, intermediate_size=32,
        expert_intermediate_size=16, num_experts=4, experts_per_token=2, context_tokens=16384,
    )  # fmt: skip
    policy = make_policy(shape, ["hello", "world"], seed=9)
    with torch.no_grad():
        policy.model.lm_head.weight.mul_(8)
        policy.model.lm_head.weight[list(policy.chat.stop_token_ids)] = 0.0
    return policy


def test_ctrl_c_stops_the_answer_and_ctrl_d_leaves(tmp_path: Path) -> None:
    endless_policy().save(tmp_path / "endless")
    keyboard, screen = pty.openpty()
    command = [sys.executable, "-m", "rufus_core.cli.main", "chat", str(tmp_path / "endless"), "--temperature", "0"]
    process = subprocess.Popen(command, preexec_fn=lambda: os.login_tty(screen), env={**os.environ, "TERM": "dumb"})
    os.close(screen)
    shown = ""

    def until(text: str) -> None:
        nonlocal shown
        while text not in shown:
            shown += os.read(keyboard, 1024).decode(errors="replace")
        shown = shown.partition(text)[2]

    until("> ")
    os.write(keyboard, b"hello\n")
    until("hello")
    while len(shown) < 100:  # it talks
        shown += os.read(keyboard, 1024).decode(errors="replace")
    os.write(keyboard, b"\x03")
    until("[stopped]")
    until("> ")
    os.write(keyboard, b"\x04")
    assert process.wait(60) == 0
    os.close(keyboard)
