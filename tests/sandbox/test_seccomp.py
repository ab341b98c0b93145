"""System calls that untrusted code may not make: the filter as a program, and the kernel's word on it."""

import errno
import platform
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rufus_core.sandbox.interpreter import InterpreterPool
from rufus_core.sandbox.seccomp import filter_program, refused_calls
from tests.sandbox.real import require_isolation

ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
FOREIGN = {"x86_64": 0x40000003, "aarch64": 0x40000028}  # i386 and 32-bit ARM
CALLS = {  # numbers of what is judged by its arguments, and of two that are always allowed
    "x86_64": {
        **{"clone": 56, "clone3": 435, "ioctl": 16, "mmap": 9, "socket": 41, "read": 0, "execve": 59},
        **{"socketpair": 53, "setpriority": 141, "prlimit64": 302, "sched_setaffinity": 203},
        **{"sched_setparam": 142, "sched_setscheduler": 144, "sched_setattr": 314, "setsockopt": 54},
    },
    "aarch64": {
        **{"clone": 220, "clone3": 435, "ioctl": 29, "mmap": 222, "socket": 198, "read": 63, "execve": 221},
        **{"socketpair": 199, "setpriority": 140, "prlimit64": 261, "sched_setaffinity": 122},
        **{"sched_setparam": 118, "sched_setscheduler": 119, "sched_setattr": 274, "setsockopt": 208},
    },
}
NEWUSER, THREAD = 0x10000000, 0x003D0F00


def decide(program, number, arguments=(), audit=AUDIT["x86_64"]):
    """What a kernel would decide: the instructions that the filter uses, one by one."""
    lines = list(struct.iter_unpack("=HBBI", program))
    data = struct.pack("=iIQ6Q", number, audit, 0, *(*arguments, *[0] * 6)[:6])
    at, accumulator = 0, 0
    while True:
        code, if_true, if_false, value = lines[at]
        at += 1
        if code == 0x06:
            return value
        if code == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, value)
        elif code == 0x54:
            accumulator &= value
        else:
            holds = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: accumulator & value}[code]
            at += if_true if holds else if_false


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("session", [False, True])
def test_the_program_decides_alike_on_both_machines(machine, session):
    program, calls = filter_program(machine, session), CALLS[machine]

    def decision(name, *arguments):
        return decide(program, calls[name], arguments, AUDIT[machine])

    for number in refused_calls(machine).values():
        assert decide(program, number, audit=AUDIT[machine]) == ERRNO | errno.EPERM
    assert decide(program, calls["read"], audit=FOREIGN[machine]) == KILL
    assert decision("read") == decision("execve") == ALLOW
    assert decision("clone3") == ERRNO | errno.ENOSYS
    assert decision("clone", THREAD) == ALLOW
    assert decision("clone", THREAD | NEWUSER) == ERRNO | errno.EPERM
    assert decision("ioctl", 1, 0x5401) == ALLOW
    assert decision("ioctl", 1, 0x5412) == decision("ioctl", 1, 1 << 32 | 0x541C) == ERRNO | errno.EPERM
    assert decision("socket", 1, 1) == decision("socketpair", 1, 0x80801) == ALLOW
    assert decision("setsockopt", 3, 1, 2) == decision("setsockopt", 3, 6, 7) == ALLOW
    assert {decision("setsockopt", 3, 1, name) for name in (7, 8, 32, 33)} == {ERRNO}  # and done in name only
    assert decision("socket", 17) == decision("socket", 16) == ERRNO | errno.EAFNOSUPPORT
    assert decision("mmap", 0, 4096, 3, 0x22) == ALLOW
    assert decision("setpriority", 0, 0, 5) == ALLOW
    assert decision("setpriority", 0, 1, 5) == decision("setpriority", 2, 0, 5) == ERRNO | errno.EPERM
    for name in ("prlimit64", "sched_setaffinity", "sched_setparam", "sched_setscheduler", "sched_setattr"):
        assert (decision(name, 0), decision(name, 1)) == (ALLOW, ERRNO | errno.EPERM)
    for kind in (2, 5):
        told = decision("socket", 1, kind), decision("socketpair", 1, 0x800 | kind)
        assert told == (ALLOW, ALLOW) if session else (ERRNO | errno.ESOCKTNOSUPPORT,) * 2
    assert (decision("socket", 2) == ALLOW) == (decision("socket", 10) == ALLOW) == session
    assert (decision("mmap", 0, 4096, 3, 0x21) == ALLOW) == session


def test_the_x32_numbers_of_x86_64_are_refused():
    assert decide(filter_program("x86_64", True), 0x40000000) == ERRNO | errno.EPERM
    assert filter_program("riscv64", False) is None


@given(st.sampled_from(["x86_64", "aarch64"]), st.booleans(), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1))
def test_every_number_and_argument_comes_to_a_decision(machine, session, number, argument):
    number = number - 2**32 if number >= 2**31 else number
    outcome = decide(filter_program(machine, session), number, [argument] * 6, AUDIT[machine])
    known = {*refused_calls(machine).values(), *CALLS[machine].values()}
    refusals = {0, errno.EPERM, errno.ENOSYS, errno.EAFNOSUPPORT, errno.ESOCKTNOSUPPORT}
    assert outcome == ALLOW or outcome - ERRNO in refusals
    assert outcome == ALLOW or number in known or number & 0x40000000 or number < 0


def test_the_kernel_refuses_every_one_of_them_inside():
    require_isolation()
    calls = refused_calls(platform.machine())
    program = f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for name, number in {calls!r}.items():
    ctypes.set_errno(0)
    result = libc.syscall(number, *[ctypes.c_long(0)] * 6)
    if (result, ctypes.get_errno()) != (-1, {errno.EPERM}):
        print(name, result, ctypes.get_errno())
"""
    with InterpreterPool(1) as pool:
        result = pool.run(program)
    assert (result.status, result.stdout) == ("ok", "")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="machine code of x86-64")
def test_a_32_bit_call_ends_the_program():
    require_isolation()
    program = """
import ctypes, mmap
code = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex('b814000000cd80c3'))  # mov eax, 20 (getpid of i386); int 0x80; ret
print(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))())
"""
    with InterpreterPool(1) as pool:
        result = pool.run(program)
        assert (result.status, result.exit_code, result.stdout) == ("error", -31, "")  # SIGSYS
        assert pool.run("print(1)").stdout == "1\n"
