"""E2B's microVMs through the unchanged `e2b` client, against a server with its API (GYM-18 to 24, CA-E2, CA-R3)."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from rufus_core.errors import ConfigError, InfrastructureError, OutcomeUnknown
from rufus_core.ports.programs import ProgramResult
from rufus_core.ports.sessions import PreparedTree
from rufus_core.sandbox.interpreter import InterpreterPool
from rufus_core.sandbox.microvm_client import MicroVmClient
from rufus_core.sandbox.microvm_programs import MicroVmPrograms
from rufus_core.sandbox.microvms import MicroVmSession, MicroVmSessions
from rufus_core.sandbox.placement import open_code_sandbox, open_sessions, require_sandbox
from rufus_core.settings import ExecutionSettings
from tests.sandbox.e2b.running import Server, e2b_server
from tests.sandbox.real import require_isolation

START = "POST /process.Process/Start"
CREATE = "POST /v2/sandboxes"
TREE = PreparedTree("/app", {"a.txt": "apple\n"})


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    require_isolation()
    with e2b_server() as server:
        yield server


@pytest.fixture
def server(running: Server) -> Iterator[Server]:
    """Every test leaves no machine and no fault behind."""
    yield running
    assert running.log()["machines"] == {}
    running.strike()


@pytest.fixture
def client(server: Server) -> MicroVmClient:
    return MicroVmClient(url=server.url, label="stages/coding_rl/train", retry_wait_seconds=0.01)


@pytest.fixture
def sessions(client: MicroVmClient) -> Iterator[MicroVmSessions]:
    with MicroVmSessions(client, "python") as sessions:
        yield sessions


@pytest.fixture
def session(sessions: MicroVmSessions) -> MicroVmSession:
    return sessions.open(TREE)


def times_sent(server: Server, text: str) -> int:
    """How many commands that held this text were started."""
    return sum(text in command for command in server.log()["commands"])


# What is created, and how it ends.


def test_a_session_is_a_machine_that_ends_with_it_GYM_18_22(server: Server, sessions: MicroVmSessions) -> None:
    first, second = sessions.open(TREE), sessions.open(TREE)
    assert len(server.log()["machines"]) == 2
    first.run("echo mine > a.txt", 5.0)
    assert (first.read("/app/a.txt", 99), second.read("/app/a.txt", 99)) == (b"mine\n", b"apple\n")
    first.close()
    first.close()
    assert len(server.log()["machines"]) == 1
    with pytest.raises(InfrastructureError):
        first.run("true", 5.0)


def test_machines_name_the_step_that_they_are_for_and_get_no_secret(server: Server, session: MicroVmSession) -> None:
    (metadata,) = server.log()["machines"].values()
    assert metadata["rufus"] == "stages/coding_rl/train"
    assert {"host", "pid", "opener"} < metadata.keys()
    assert server.log()["environments"][-1] == {}
    told = session.run("env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'", 5.0).stdout
    assert "E2B" not in told
    assert "e2b_" not in told


def test_machines_live_longer_than_what_is_asked_of_them(server: Server, session: MicroVmSession) -> None:
    (before,) = server.log()["seconds_left"].values()
    assert before > 1500
    session.run("true", 3600.0)
    (after,) = server.log()["seconds_left"].values()
    assert after > 3600 + 120


def test_closing_ends_a_machine_whose_creation_was_never_confirmed(server: Server, client: MicroVmClient) -> None:
    server.strike({"route": CREATE, "kind": "reset"})
    with MicroVmSessions(client, "python") as sessions:
        with pytest.raises(InfrastructureError):
            sessions.open(TREE)
        assert len(server.log()["machines"]) == 1
    assert server.log()["machines"] == {}


# Failures before anything began.


@pytest.mark.parametrize("status", [429, 500, 503])
def test_creating_is_tried_again_and_makes_one_machine(server: Server, client: MicroVmClient, status: int) -> None:
    server.strike({"route": CREATE, "kind": "status", "status": status, "times": 2})
    before = server.count(CREATE)
    with MicroVmSessions(client, "python") as sessions:
        sessions.open(TREE)
        assert len(server.log()["machines"]) == 1
    assert server.count(CREATE) == before + 3


def test_a_command_that_was_turned_away_is_sent_again_GYM_23(server: Server, session: MicroVmSession) -> None:
    server.strike({"route": START, "kind": "status", "status": 429, "times": 2})
    assert session.run("echo once >> log; cat log", 5.0).stdout == "once\n"
    assert times_sent(server, "echo once") == 1


def test_a_service_that_never_answers_is_the_infrastructures_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("E2B_API_KEY", "e2b_00")
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
    client = MicroVmClient(url=url, attempts=1)
    with pytest.raises(InfrastructureError, match=url):
        client.create("python")
    client.close()


# Failures after something may have begun: exactly one dispatch.


def test_a_reset_is_an_unknown_outcome_and_never_sent_again_GYM_23(server: Server, session: MicroVmSession) -> None:
    server.strike({"route": START, "kind": "reset"})
    with pytest.raises(OutcomeUnknown):
        session.run("echo reset >> log", 5.0)
    assert times_sent(server, "echo reset") == 1
    assert session.run("echo next", 5.0).stdout == "next\n"


def test_a_machine_killed_beneath_us_aborts_CA_R3(server: Server, session: MicroVmSession) -> None:
    server.strike({"route": START, "kind": "kill"})
    with pytest.raises(InfrastructureError) as caught:
        session.run("echo killed", 5.0)
    assert not isinstance(caught.value, OutcomeUnknown)
    with pytest.raises(InfrastructureError, match="gone"):
        session.run("echo killed", 5.0)


def test_a_lost_program_is_sent_once_and_says_nothing_of_the_program_CA_R3(
    server: Server, client: MicroVmClient
) -> None:
    with MicroVmPrograms(client, "python", 1) as pool:
        assert pool.run("print(1)").stdout == "1\n"
        for fault in ({"route": START, "kind": "reset"}, {"route": "GET /files", "kind": "reset"}):
            machines = server.log()["machines"].keys()
            before = server.count(START)
            server.strike(fault)
            with pytest.raises(InfrastructureError):
                pool.run("print(2)")
            assert server.count(START) == before + 1
            assert pool.run("print(3)").stdout == "3\n"  # in another machine
            assert not machines & server.log()["machines"].keys()


# A user's mistakes.


def test_a_refused_key_names_its_variable(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("E2B_API_KEY", "e2b_ff")
    with open_code_sandbox(server.execution) as pool, pytest.raises(ConfigError, match="E2B_API_KEY"):
        pool.run("print(1)")
    with pytest.raises(ConfigError, match="E2B_API_KEY"):
        require_sandbox(server.execution)


def test_no_key_is_told_before_anything_is_asked(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("E2B_API_KEY")
    for opening in (open_code_sandbox, open_sessions, require_sandbox):
        with pytest.raises(ConfigError, match="E2B_API_KEY"):
            opening(server.execution)


def test_an_unknown_template_is_named(server: Server) -> None:
    execution = server.execution.model_copy(update={"sandbox_template": "nope"})
    with pytest.raises(ConfigError, match="'nope'"):
        require_sandbox(execution)
    with open_sessions(execution) as sessions, pytest.raises(ConfigError, match="'nope'"):
        sessions.open(TREE)


def test_a_tree_names_its_own_template_GYM_21(sessions: MicroVmSessions) -> None:
    with pytest.raises(ConfigError, match="'baked'"):
        sessions.open(PreparedTree("/app", {}, template="baked"))


def test_a_template_without_what_is_needed_says_so(client: MicroVmClient, server: Server) -> None:
    with MicroVmPrograms(client, "bare", 1) as pool, pytest.raises(ConfigError, match=r"'bare'.*no python3"):
        pool.run("print(1)")


def test_what_is_checked_before_a_run(server: Server) -> None:
    assert "'python'" in require_sandbox(server.execution)
    assert require_sandbox(ExecutionSettings(allow_unisolated_code=True)).startswith("this machine")


# Programs: the supervisor is the one that runs here.

PROGRAMS = {
    "output": "print(input()[::-1])",
    "error": "1/0",
    "exit": "raise SystemExit(3)",
    "loop": "while True: pass",
    "flood": "while True: print('x' * 4096)",
    "memory": "x = bytearray(1 << 40)",
    "no Python": "print(",
    "surrogate": "import sys; sys.stdout.buffer.write(b'\\xff\\n')",
    "who": "import os; print(os.getuid() != 0, os.getpid() != 1, os.listdir('.'))",
}


def test_programs_end_as_they_do_on_this_machine(client: MicroVmClient) -> None:
    def told(result: ProgramResult) -> tuple[str, int, str, str]:
        return result.status, result.exit_code, result.stdout[:1000], result.stderr

    limits = {"memory_bytes": 256 << 20, "output_bytes": 1 << 16}
    with MicroVmPrograms(client, "python", 1, **limits) as there, InterpreterPool(1, **limits) as here:
        for name, program in PROGRAMS.items():
            assert told(there.run(program, "abc\n", 1.0)) == told(here.run(program, "abc\n", 1.0)), name
        checks = ["assert f(2) == 5", "assert abs(f(2) - 5) < 1", "assert f(3) == 5"]
        for program in ("def f(x): return x + 3", "def f(x): return 5", "def f(x): raise KeyError"):
            assert there.run_checks(program, checks) == here.run_checks(program, checks)
        cases = [str(number) for number in range(5)]
        for isolation in ("test", "program"):
            given = {"isolation": isolation, "accept": lambda _, result: result.stdout != "3\n"}
            assert len(there.run_cases("print(input())", cases, **given)) == 4
            assert len(here.run_cases("print(input())", cases, **given)) == 4


def test_a_program_finds_nothing_of_another_and_leaves_nothing(client: MicroVmClient) -> None:
    leaving = """
import os, subprocess
for folder in ('/tmp', '/dev/shm', '/var/tmp', '/home/user', '/', '/opt/rufus', '/var/lib/rufus'):
    try:
        open(folder + '/left', 'w')
    except OSError:
        pass
if not os.fork():
    os.setsid()
    os.execlp('sleep', 'sleep', '60')
"""
    looking = """
import os
print([folder for folder in ('/tmp', '/dev/shm', '/var/tmp', '/home/user', '/', '/opt/rufus')
       if os.path.exists(folder + '/left')])
print([name for name in os.listdir('/proc') if name.isdigit() and int(name) not in (1, os.getpid())])
for path in ('/var/lib/rufus', '/root'):
    try:
        print(os.listdir(path))
    except PermissionError:
        print('refused')
"""
    with MicroVmPrograms(client, "python", 1) as pool:
        assert pool.run(leaving).status == "ok"
        assert pool.run(looking).stdout.splitlines()[:3] == ["[]", "[]", "refused"]


@pytest.mark.parametrize("command", ["sudo -n true", "su -c true", "mount -t tmpfs t /tmp", "cat /var/lib/rufus/*"])
def test_a_session_has_no_way_to_root(session: MicroVmSession, command: str) -> None:
    done = session.run(f"id -u; {command}", 5.0)
    assert done.stdout == "1000\n"
    assert done.exit_code != 0


def test_a_login_shell_adds_no_noise_and_can_not_speak_for_a_command_GYM_24(session: MicroVmSession) -> None:
    session.run("for f in .profile .bash_profile .bashrc; do echo 'echo forged; exit 0' > ~/$f; done", 5.0)
    done = session.run("echo out; echo err >&2; exit 3", 5.0)
    assert (done.exit_code, done.stdout, done.stderr) == (3, "out\n", "err\n")


def test_a_process_in_the_background_holds_no_command_up(session: MicroVmSession) -> None:
    done = session.run("sleep 300 & echo $!", 60.0)
    assert done.status == "exited"
    assert session.run(f"kill -0 {done.stdout}", 5.0).exit_code == 0


def test_a_flood_ends_at_the_largest_file(session: MicroVmSession) -> None:
    done = session.run("yes", 60.0, output_bytes=1000)
    assert done.status == "output_limit"
    assert len(done.stdout) < 1100
    assert done.stdout.startswith("y\ny\n")


def test_links_in_the_tests_place_are_not_followed(session: MicroVmSession) -> None:
    session.run("echo kept > /app/kept; ln -s /app /tests/out; ln -s /app/kept /logs/link", 5.0)
    assert session.upload("/tests", {"test.sh": "true"}) == ""
    assert session.read("/app/kept", 99) == b"kept\n"
    assert session.read("/logs/link", 99) is None


@pytest.mark.parametrize("key", ["e2b_00\n", "schlüssel"])
def test_a_key_that_no_header_holds_is_a_users_mistake(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("E2B_API_KEY", key)
    with pytest.raises(ConfigError, match="no header") as error:
        MicroVmClient()
    assert key.strip() not in str(error.value)


def test_half_of_a_surrogate_pair_is_written_as_on_this_machine(session: MicroVmSession) -> None:
    assert session.upload("/tests", {"x": "\ud800"}) == ""
    assert session.read("/tests/x", 10) == b"\xed\xa0\x80"
