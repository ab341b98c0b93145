"""Coding Agent: a terminal in a sandbox of its own, scored by the task's tests on its final state (CA-E1, CA-R1..3)."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Self

from rufus_core.data.harbor import EXECUTE_COMMAND, TerminalTruth, read_terminal
from rufus_core.errors import InfrastructureError, OutcomeUnknown
from rufus_core.ports.sessions import CommandResult, PreparedTree, SandboxSession, SandboxSessions
from rufus_core.settings import ToolSettings
from rufus_core.types import Episode, Problem, ToolCall, ToolResult, ToolSchema, Verdict

_BYTES_PER_TOKEN = 16  # a generous bound; the agent loop cuts results to tokens (GYM-24)
_REWARD_FILES = ("reward.txt", "reward.json")
_REWARD_BYTES = 4096


class TerminalGym:
    """Opens terminals. Each has one sandbox for its whole life: files and processes persist over commands (GYM-18).

    It closes the sessions that it was given.
    """

    def __init__(self, tools: ToolSettings, sessions: SandboxSessions) -> None:
        self._tools, self._sessions = tools, sessions

    def open(self, problem: Problem) -> Terminal:
        """Begin with the problem's files. Raises InfrastructureError, HarborError where they can't be used."""
        truth = read_terminal(problem.ground_truth)
        tree = PreparedTree(truth.workdir, truth.files, truth.template)
        return Terminal(self._sessions.open(tree), truth, self._tools)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._sessions.close()


class Terminal:
    """One episode's terminal."""

    tools: Sequence[ToolSchema] = (EXECUTE_COMMAND,)

    def __init__(self, session: SandboxSession, truth: TerminalTruth, settings: ToolSettings) -> None:
        self._session, self._truth, self._settings = session, truth, settings
        self._output_bytes = max(settings.result_tokens * _BYTES_PER_TOKEN, 4096)

    def call(self, call: ToolCall) -> ToolResult:
        """Run a command once; it is never sent again (GYM-23). Raises InfrastructureError if the sandbox is dead."""
        command = call.arguments.get("command")
        if call.name != EXECUTE_COMMAND.name or not isinstance(command, str):
            return ToolResult("error: call execute_command with a command", failed=True)
        timeout = self._settings.command_timeout_seconds
        try:
            done = self._session.run(command, timeout, self._output_bytes)
        except OutcomeUnknown as error:
            return ToolResult(f"error: the command may have run, its outcome is unknown: {error.what}", failed=True)
        if done.status == "timeout":
            return ToolResult(_observation(done, f"error: stopped after {timeout:g} seconds"), failed=True)
        if done.status != "exited":
            return ToolResult(_observation(done, f"error: stopped, {done.status} reached"), failed=True)
        return ToolResult(_observation(done, f"exit {done.exit_code}"))

    def score(self, episode: Episode) -> Verdict:  # noqa: ARG002 - the sandbox's state is what counts
        """Upload the tests and run them on the final state (CA-R1).

        They pass iff `test.sh` ends with 0, or, if it writes Harbor's reward file, iff that says 1. Tests that were
        changed while they ran, as by a process that the policy left behind, say nothing: they don't pass. Raises
        InfrastructureError when they don't end in time or the sandbox is dead: the episode is aborted (CA-R3).
        """
        tests = self._truth.tests
        reason = self._session.upload("/logs", {"verifier/": ""}) or self._session.upload("/tests", tests)
        if reason:
            return Verdict.binary(False, f"the tests can't be placed: {reason}")
        timeout = self._truth.verifier_timeout_seconds
        done = self._session.run(self._test_command(tests["test.sh"]), timeout, self._output_bytes)
        if done.status == "timeout":
            raise InfrastructureError(f"the verifier did not end within {timeout:g} seconds")
        if done.status != "exited":
            return Verdict.binary(False, f"the tests were stopped: {done.status}")
        verdict = self._said(done)
        if verdict.passed and (changed := self._changed_test()):
            return Verdict.binary(False, f"the tests were changed while they ran: {changed}")
        return verdict

    def cleanup(self) -> None:
        """Destroy the sandbox. Calling it again does no harm."""
        self._session.close()

    def _test_command(self, script: str) -> str:
        shell = "bash" if "bash" in script.partition("\n")[0] else "sh"
        return f"{shell} {self._session.root}/tests/test.sh"

    def _said(self, done: CommandResult) -> Verdict:
        if any(name in text for name in _REWARD_FILES for text in self._truth.tests.values()):
            return self._written_reward()
        tail = _observation(done, f"exit {done.exit_code}")[-200:]
        return Verdict.binary(done.exit_code == 0, "" if done.exit_code == 0 else tail)

    def _changed_test(self) -> str | None:
        for path, text in self._truth.tests.items():
            data = text.encode("utf-8", "surrogatepass")
            if not path.endswith("/") and self._session.read(f"/tests/{path}", len(data) + 1) != data:
                return path
        return None

    def _written_reward(self) -> Verdict:
        for name in _REWARD_FILES:
            data = self._session.read(f"/logs/verifier/{name}", _REWARD_BYTES)
            if data is not None:
                value = _parse_reward(data)
                if value is None:
                    return Verdict.binary(False, f"{name} holds no finite number")
                return Verdict.scored(value, value >= 1.0)
        return Verdict.binary(False, "the tests wrote no reward")


def _observation(done: CommandResult, outcome: str) -> str:
    """Standard output, standard error and the outcome, leaving out what is empty."""
    error = f"stderr: {done.stderr.strip()}" if done.stderr.strip() else ""
    return "\n".join(part for part in (done.stdout.rstrip(), error, outcome) if part)


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
