"""Coding Agent: a terminal in a sandbox of its own, scored by the task's tests on its final state (CA-E1, CA-R1..3)."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from rufus_core.data.harbor import EXECUTE_COMMAND, check_path, check_workdir
from rufus_core.errors import InfrastructureError
from rufus_core.sandbox.isolation import compile_runner, require
from rufus_core.sandbox.process import Sandbox
from rufus_core.settings import ToolSettings
from rufus_core.types import Episode, Json, Problem, ToolCall, ToolResult, ToolSchema, Verdict

VERIFIER_TIMEOUT_SECONDS = 300.0
_UPLOAD_SECONDS = 60.0
_GRACE_SECONDS = 10.0  # beyond the command's own deadline, which the supervisor keeps
_BYTES_PER_TOKEN = 16  # a generous bound; the agent loop cuts results to tokens (GYM-24)
_REWARD_FILES = ("reward.txt", "reward.json")


class TerminalGym:
    """Opens terminals. Each has one sandbox for its whole life: files and processes persist over commands (GYM-18).

    Where nothing can be isolated it raises SandboxUnavailable, unless `allow_unisolated`: then commands run as the
    user.
    """

    def __init__(
        self,
        tools: ToolSettings,
        *,
        memory_bytes: int = 1 << 30,
        max_processes: int = 64,
        allow_unisolated: bool = False,
    ) -> None:
        self.isolation = require(allow_unisolated)
        self._tools, self._memory_bytes, self._max_processes = tools, memory_bytes, max_processes
        self._folder = tempfile.TemporaryDirectory(prefix="rufus-runner-")
        self._runner = compile_runner(Path(self._folder.name))
        self._spawner = ThreadPoolExecutor(1)  # sandboxes end with the thread that started them

    def open(self, problem: Problem) -> Terminal:
        """Boot a sandbox with the problem's files. Raises InfrastructureError, HarborError for an unsafe path."""
        truth = problem.ground_truth
        workdir = check_workdir(truth["workdir"])
        writable = (workdir, "/tmp", "/logs", "/tests")  # noqa: S108 - inside the sandbox
        boot = self._spawner.submit(
            Sandbox, self.isolation, self._runner, writable, self._max_processes, self._memory_bytes, session=True
        )
        terminal = Terminal(boot.result(), truth, self._tools)
        terminal.start()
        return terminal

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._spawner.shutdown()
        self._folder.cleanup()


class Terminal:
    """One episode's terminal."""

    tools: Sequence[ToolSchema] = (EXECUTE_COMMAND,)

    def __init__(self, sandbox: Sandbox, truth: dict[str, Json], settings: ToolSettings) -> None:
        self._sandbox, self._truth, self._settings = sandbox, truth, settings

    def start(self) -> None:
        try:
            if reason := self._upload(self._truth["workdir"], self._truth["files"]):
                raise InfrastructureError(f"the task's files can't be written: {reason}")
        except BaseException:
            self.cleanup()
            raise

    def call(self, call: ToolCall) -> ToolResult:
        """Run a command once; it is never sent again (GYM-23). Raises InfrastructureError if the sandbox is dead."""
        command = call.arguments.get("command")
        if call.name != EXECUTE_COMMAND.name or not isinstance(command, str):
            return ToolResult("error: call execute_command with a command", failed=True)
        timeout = self._settings.command_timeout_seconds
        status, exit_code, stdout, stderr = self._shell(command, timeout)
        if status == "timeout":
            return ToolResult(_observation(stdout, stderr, f"error: stopped after {timeout:g} seconds"), failed=True)
        if status != "exited":
            return ToolResult(_observation(stdout, stderr, f"error: stopped, {status} reached"), failed=True)
        return ToolResult(_observation(stdout, stderr, f"exit {exit_code}"))

    def score(self, episode: Episode) -> Verdict:  # noqa: ARG002 - the sandbox's state is what counts
        """Upload the tests and run them on the final state (CA-R1).

        They pass iff `test.sh` ends with 0, or, if it writes Harbor's reward file, iff that says 1. Raises
        InfrastructureError when they don't end in time or the sandbox is dead: the episode is aborted (CA-R3).
        """
        tests: dict[str, str] = self._truth["tests"]
        reason = self._upload("/logs", {"verifier/": ""}) or self._upload("/tests", tests)
        if reason:
            return Verdict.binary(False, f"the tests can't be placed: {reason}")
        timeout = float(self._truth.get("verifier_timeout_seconds", VERIFIER_TIMEOUT_SECONDS))
        status, exit_code, stdout, stderr = self._shell(self._test_command(tests["test.sh"]), timeout)
        if status == "timeout":
            raise InfrastructureError(f"the verifier did not end within {timeout:g} seconds")
        if status != "exited":
            return Verdict.binary(False, f"the tests were stopped: {status}")
        if any(name in text for name in _REWARD_FILES for text in tests.values()):
            return self._written_reward()
        tail = _observation(stdout, stderr, f"exit {exit_code}")[-200:]
        return Verdict.binary(exit_code == 0, "" if exit_code == 0 else tail)

    def cleanup(self) -> None:
        """Destroy the sandbox. Calling it again does no harm."""
        self._sandbox.close()

    def _test_command(self, script: str) -> str:
        shell = "bash" if "bash" in script.partition("\n")[0] else "sh"
        return f"{shell} {self._sandbox.root}/tests/test.sh"

    def _written_reward(self) -> Verdict:
        for name in _REWARD_FILES:
            answer = self._sandbox.request([b"read", f"/logs/verifier/{name}".encode(), b"4096"], _UPLOAD_SECONDS)
            if answer[0] == b"ok":
                value = _parse_reward(answer[1])
                if value is None:
                    return Verdict.binary(False, f"{name} holds no finite number")
                return Verdict.scored(value, value >= 1.0)
        return Verdict.binary(False, "the tests wrote no reward")

    def _shell(self, command: str, timeout: float) -> tuple[str, int, str, str]:
        limit = max(self._settings.result_tokens * _BYTES_PER_TOKEN, 4096)
        request = [b"shell", str(timeout).encode(), str(limit).encode(), command.encode("utf-8", "replace")]
        status, exit_code, stdout, stderr = self._sandbox.request(request, timeout + _GRACE_SECONDS)
        return status.decode(), int(exit_code), stdout.decode(errors="replace"), stderr.decode(errors="replace")

    def _upload(self, folder: str, files: dict[str, str]) -> str:
        """Replace a folder's content; returns why that failed, or an empty text."""
        request = [b"upload", folder.encode()]
        for path, text in files.items():
            check_path(path.removesuffix("/"))
            request += [path.encode(), text.encode()]
        answer = self._sandbox.request(request, _UPLOAD_SECONDS)
        return "" if answer[0] == b"ok" else answer[1].decode(errors="replace")


def _observation(stdout: str, stderr: str, outcome: str) -> str:
    """Standard output, standard error and the outcome, leaving out what is empty."""
    error = f"stderr: {stderr.strip()}" if stderr.strip() else ""
    return "\n".join(part for part in (stdout.rstrip(), error, outcome) if part)


def _parse_reward(data: bytes) -> float | None:
    """A number, or a JSON object with `reward` or with a single entry."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if isinstance(value, dict):
        value = value.get("reward", next(iter(value.values())) if len(value) == 1 else None)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) <= 1e6 and math.isfinite(value) else None
