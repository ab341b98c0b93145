"""A sample of the attacks on verdicts, in microVMs: the supervisor is the same, how it is entered is not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rufus_core.sandbox.microvm_programs import MicroVmPrograms
from rufus_core.sandbox.placement import microvm_client
from rufus_core.types import VerdictKind
from tests.sandbox.attacks import MAX_PROCESSES, MEMORY_BYTES, PRELUDE, named
from tests.sandbox.e2b.running import e2b_server
from tests.sandbox.real import require_isolation
from tests.sandbox.test_attacks_verdicts import OUTPUTS, cases, judged

GOOD = "def f(x):\n    return x + 39"
# What this backend leaves to the user, the namespaces and the mounts: it has no system call filter.
REACHING = {
    "the supervisor's memory": "attempt(lambda: open('/proc/1/mem', 'rb'))",
    "its environment": "attempt(lambda: open('/proc/1/environ').read())",
    "its signals": "attempt(lambda: os.kill(1, 9) or open('/proc/1/mem'))",
    "its requests": "attempt(lambda: open('/var/lib/rufus/request').read())",
    "its code": "attempt(lambda: open('/opt/rufus/rufus_core/sandbox/referee.py', 'a'))",
    "another user": "attempt(lambda: os.setuid(0))",
    "a mount": "attempt(lambda: checked(libc.mount(b'none', b'/tmp', b'tmpfs', 0, None)))",
    "a writable root": "attempt(lambda: checked(libc.mount(b'none', b'/', None, 32, None)))",
    "the network": "import socket\nattempt(lambda: socket.create_connection(('169.254.169.254', 80), 1))",
    "a file of the machine": "attempt(lambda: open('/etc/left', 'w'))\nattempt(lambda: open('/var/tmp/left', 'w'))",
}


@pytest.fixture(scope="module")
def pool() -> Iterator[MicroVmPrograms]:
    require_isolation()
    with e2b_server() as server:
        client = microvm_client(server.execution, "attacks")
        with MicroVmPrograms(client, "python", 1, memory_bytes=MEMORY_BYTES, max_processes=MAX_PROCESSES) as pool:
            yield pool


@pytest.mark.parametrize(("program", "check"), [*cases()][::4])
def test_no_program_is_paid(pool: MicroVmPrograms, program: str, check: str) -> None:
    verdict = judged(pool, program, "functional", [check])
    assert (verdict.kind, verdict.score) == (VerdictKind.FAIL, 0.0), verdict


@pytest.mark.parametrize("program", named(dict([*OUTPUTS.items()][::4])))
def test_no_output_is_paid_that_is_not_the_expected_one(pool: MicroVmPrograms, program: str) -> None:
    verdict = judged(pool, program, "stdin_stdout", [{"input": "7\n", "output": "41\n"}])
    assert (verdict.kind, verdict.score) == (VerdictKind.FAIL, 0.0), verdict


@pytest.mark.parametrize("program", named(REACHING))
def test_what_is_out_of_reach(pool: MicroVmPrograms, program: str) -> None:
    result = pool.run(PRELUDE + program, timeout_seconds=5.0)
    assert (result.status, result.stderr) == ("ok", ""), result
    assert result.stdout
    assert all(line.startswith("refused") for line in result.stdout.splitlines()), result.stdout


def test_the_good_program_is_paid_after_all_that(pool: MicroVmPrograms) -> None:
    assert judged(pool, GOOD, "functional", ["assert f(2) == 41", "assert abs(f(3) - 42) < 1"]).passed
