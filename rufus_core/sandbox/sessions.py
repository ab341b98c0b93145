"""Sessions on this machine: one sandbox for each episode, which begins with a prepared tree (GYM-18, GYM-21).

The tree is the lower layer of an overlay, written once for all sessions; what a session changes is in its own memory.
Where the kernel offers no overlay, a session begins with a copy.
"""

from __future__ import annotations

import functools
import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from rufus_core.errors import InfrastructureError
from rufus_core.ports.sessions import CommandResult, CommandStatus, PreparedTree
from rufus_core.sandbox.isolation import IsolationReport, compile_runner, draw_user, probe, require
from rufus_core.sandbox.overlay import Overlay
from rufus_core.sandbox.process import Sandbox
from rufus_core.sandbox.trees import TreeStore, check_paths

_WRITABLE = ("/tmp", "/logs", "/tests")  # noqa: S108 - inside the sandbox, beside the working directory
_BOOTS_AT_ONCE = 8
_FILES_SECONDS = 60.0
_GRACE_SECONDS = 10.0  # beyond the command's own deadline, which the supervisor keeps
_STATUSES: dict[bytes, CommandStatus] = {
    b"exited": "exited",
    b"timeout": "timeout",
    b"memory": "memory",
    b"output_limit": "output_limit",
    b"process_limit": "process_limit",
}


class LocalSessions:
    """Opens sessions in sandboxes of this machine. Safe to use from several threads at once.

    Where nothing can be isolated it raises SandboxUnavailable, unless `allow_unisolated`: then commands run as the
    user.

    Args:
        memory_bytes: of all processes of a session; each of its writable folders may take half of it.
        copies: begin with a copy of the tree even where an overlay works.
    """

    def __init__(
        self,
        *,
        memory_bytes: int = 1 << 30,
        max_processes: int = 64,
        allow_unisolated: bool = False,
        copies: bool = False,
    ) -> None:
        self.isolation = require(allow_unisolated)
        self.overlay = not copies and not overlay_refusal()
        self._memory_bytes, self._max_processes = memory_bytes, max_processes
        self._folder = tempfile.TemporaryDirectory(prefix="rufus-sessions-")
        self._place = _Place(Path(self._folder.name))
        self._spawners = ThreadPoolExecutor(_BOOTS_AT_ONCE)  # sandboxes end with the thread that started them
        self._sessions: set[LocalSession] = set()
        self._lock = threading.Lock()

    def open(self, tree: PreparedTree) -> LocalSession:
        """Raises InfrastructureError if no sandbox can be had, HarborError for an unsafe path among the files."""
        check_paths(tree.files)
        session = self._over(tree) if self.overlay else self._with_copy(tree)
        with self._lock:
            self._sessions.add(session)
        return session

    def close(self) -> None:
        """End all sessions. Calling it again does no harm."""
        with self._lock:
            sessions = [*self._sessions]
        for session in sessions:
            session.close()
        self._spawners.shutdown()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _over(self, tree: PreparedTree) -> LocalSession:
        name = self._place.trees.take(tree.files, _owner(self.isolation))
        try:
            sandbox = self._boot(tree.workdir, self._place.overlay(name))
        except BaseException:
            self._place.trees.give_back(name)
            raise
        return LocalSession(sandbox, lambda session: self._ended(session, name))

    def _with_copy(self, tree: PreparedTree) -> LocalSession:
        session = LocalSession(self._boot(tree.workdir, None), self._ended)
        try:
            if reason := session.upload(tree.workdir, tree.files):
                raise InfrastructureError(f"the task's files can't be written: {reason}")
        except BaseException:
            session.close()
            raise
        return session

    def _boot(self, workdir: str, overlay: Overlay | None) -> Sandbox:
        return self._spawners.submit(
            Sandbox,
            self.isolation,
            self._place.runner,
            (workdir, *_WRITABLE),
            self._max_processes,
            self._memory_bytes,
            session=True,
            overlay=overlay,
        ).result()

    def _ended(self, session: LocalSession, tree: str | None = None) -> None:
        with self._lock:
            self._sessions.discard(session)
        if tree is not None:
            self._place.trees.give_back(tree)


class LocalSession:
    """One sandbox of this machine; see SandboxSession. `ended` hears of its end once."""

    def __init__(self, sandbox: Sandbox, ended: Callable[[LocalSession], None]) -> None:
        self._sandbox = sandbox
        self._ended: Callable[[LocalSession], None] | None = ended

    @property
    def root(self) -> str:
        return self._sandbox.root

    def run(self, command: str, timeout_seconds: float, output_bytes: int = 1 << 20) -> CommandResult:
        """Run a shell command once. A sandbox that does not answer is dead: InfrastructureError."""
        started = time.monotonic()
        request = [b"shell", str(timeout_seconds).encode(), str(output_bytes).encode(), _encode(command)]
        status, exit_code, stdout, stderr = self._sandbox.request(request, timeout_seconds + _GRACE_SECONDS)
        return CommandResult(
            _STATUSES[status],
            int(exit_code),
            stdout.decode(errors="replace"),
            stderr.decode(errors="replace"),
            time.monotonic() - started,
        )

    def upload(self, folder: str, files: Mapping[str, str]) -> str:
        """Replace a writable folder's content. Raises HarborError for an unsafe path."""
        check_paths(files)
        pairs = [part for path, text in files.items() for part in (_encode(path), _encode(text))]
        answer = self._sandbox.request([b"upload", folder.encode(), *pairs], _FILES_SECONDS)
        return "" if answer[0] == b"ok" else answer[1].decode(errors="replace")

    def read(self, path: str, limit: int) -> bytes | None:
        """The first bytes of a regular file; None where there is none. No link on the way is followed."""
        answer = self._sandbox.request([b"read", path.encode(), str(limit).encode()], _FILES_SECONDS)
        return answer[1] if answer[0] == b"ok" else None

    def close(self) -> None:
        """Destroy the sandbox and everything in it. Calling it again does no harm."""
        self._sandbox.close()
        if self._ended is not None:
            ended, self._ended = self._ended, None
            ended(self)


class _Place:
    """What a private folder holds: the supervisor, the trees, and an empty folder on which memory is mounted."""

    def __init__(self, folder: Path) -> None:
        self.runner = compile_runner(folder / "runner")
        self.trees = TreeStore(folder / "trees")
        self._scratch = folder / "scratch"
        self._scratch.mkdir()

    def overlay(self, tree: str) -> Overlay:
        written = self.trees[tree]
        return Overlay(written.folder, self._scratch, written.user)


def _owner(report: IsolationReport) -> int:
    """Whom a new tree's files belong to: the user that a sandbox of root's becomes, else the launcher."""
    return draw_user() if report.launch == "root" else os.geteuid()


@functools.cache
def overlay_refusal() -> str:
    """Why sessions can't see trees through an overlay here; empty where they can. It is tried once per process."""
    report = probe()
    if not report.isolated:
        return "nothing is isolated"
    with tempfile.TemporaryDirectory(prefix="rufus-probe-") as name:
        place = _Place(Path(name))
        overlay = place.overlay(place.trees.take({"folder/file": "x"}, _owner(report)))
        try:
            sandbox = Sandbox(report, place.runner, ("/app", *_WRITABLE), 8, 64 << 20, session=True, overlay=overlay)
            session = LocalSession(sandbox, lambda _: None)
            done = session.run("chmod 600 folder/file && echo y >> folder/file && rm -r folder", 10.0)
            session.close()
        except InfrastructureError as error:
            return error.what
    return "" if done.exit_code == 0 else f"files can't be changed: {done.stderr.strip() or done.status}"


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
