"""What the attack suite shares: helpers for the attacking programs, and what must hold of each and after it."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import psutil
import pytest

from rufus_core.sandbox.interpreter import InterpreterPool
from rufus_core.sandbox.seccomp import refused_calls
from tests.sandbox.real import require_isolation

MEMORY_BYTES = 256 << 20
MAX_PROCESSES = 32

# A program attempts what it must not be able to do; each attempt tells how it ended, so that a slip doesn't look safe.
PRELUDE = f"""
import ctypes, os, sys
NUMBERS = {refused_calls(platform.machine())!r}
libc = ctypes.CDLL(None, use_errno=True)

def checked(result):
    if result == -1:
        raise OSError(ctypes.get_errno(), 'refused')
    return result

def syscall(number, *arguments):
    number = NUMBERS.get(number, number)
    return checked(libc.syscall(number, *(a if isinstance(a, bytes) else ctypes.c_long(a) for a in arguments)))

def attempt(action):
    try:
        print('BROKEN', action())
    except OSError as error:
        print('refused', error)
"""

# Prints nothing where a program left nothing.
LOOK = """
import os
for folder in ('/tmp', '/dev/shm', '/dev/mqueue'):
    for name in os.listdir(folder):
        if f'{folder}/{name}' != os.getcwd():
            print(folder, name)
for name in os.listdir('/proc'):
    if name.isdigit() and int(name) not in (1, os.getpid()) and open(f'/proc/{name}/stat').read().split()[2] != 'Z':
        print('process', name, open(f'/proc/{name}/comm').read())
for kind in ('shm', 'sem', 'msg'):
    print(*open(f'/proc/sysvipc/{kind}').readlines()[1:], sep='', end='')
"""


def footprint() -> tuple[int, int]:
    """Open descriptors and children of this process."""
    process = psutil.Process()
    return process.num_fds(), len(process.children())


@contextmanager
def attack_pool() -> Iterator[InterpreterPool]:
    require_isolation()
    with InterpreterPool(1, memory_bytes=MEMORY_BYTES, max_processes=MAX_PROCESSES) as pool:
        assert pool.run(LOOK).status == "ok"  # the sandbox is up
        yield pool


@contextmanager
def nothing_is_left(pool: InterpreterPool) -> Iterator[None]:
    """The same pool serves a good program next, nothing is left in its sandbox, and nothing in this process."""
    before = footprint()
    yield
    result = pool.run(LOOK)
    assert (result.status, result.stdout) == ("ok", ""), result
    assert pool.run_checks("def f(x):\n    return x + 3", ["assert f(2) == 5", "assert abs(f(2) - 5) < 1"]).passed
    assert footprint() == before


def refused(pool: InterpreterPool, program: str) -> None:
    """Every attempt of the program is refused, and there is one."""
    result = pool.run(PRELUDE + program, timeout_seconds=5.0)
    assert (result.status, result.stderr) == ("ok", ""), result
    lines = result.stdout.splitlines()
    assert lines
    assert all(line.startswith("refused") for line in lines), lines


def named(attacks: Mapping[str, object]) -> list[object]:
    """One test case for each attack, under its name."""
    return [pytest.param(attack, id=name) for name, attack in attacks.items()]
