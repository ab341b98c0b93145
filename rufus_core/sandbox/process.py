"""The outside of one sandbox: starts its supervisor and exchanges messages with it."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from rufus_core.errors import InfrastructureError
from rufus_core.sandbox.isolation import IsolationReport, runner_command
from rufus_core.sandbox.messages import packed
from rufus_core.sandbox.overlay import Overlay

MESSAGE_BYTES = 64 << 20
_BOOT_SECONDS = 30.0
_END_SECONDS = 2.0


class Sandbox:
    """One sandbox, alive until `close`. Used from one thread at a time; started from a thread that outlives it."""

    def __init__(
        self,
        report: IsolationReport,
        runner: Path,
        writable: Sequence[str],
        processes: int,
        memory_bytes: int,
        session: bool = False,
        overlay: Overlay | None = None,
    ) -> None:
        """Raises InfrastructureError when the sandbox doesn't boot."""
        self._scratch = None if report.isolated else Path(tempfile.mkdtemp(prefix="rufus-unisolated-"))
        self.root = str(self._scratch or "")
        command, environment = runner_command(
            report, runner, self._scratch or Path("/"), writable, processes, memory_bytes, session, overlay
        )
        with tempfile.TemporaryFile() as log:
            self._process = subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                cwd=self._scratch,
                start_new_session=True,
                bufsize=0,
            )
            try:
                self.request([b"ping"], _BOOT_SECONDS)
            except InfrastructureError as error:
                log.seek(0)
                reason = log.read(2000).decode(errors="replace").strip()
                raise InfrastructureError(f"the sandbox did not boot: {reason or error.what}") from error

    def request(self, fields: Sequence[bytes], timeout_seconds: float) -> list[bytes]:
        """Send one message and wait for its answer. A dead or silent sandbox is closed: InfrastructureError."""
        data = packed(fields)
        if len(data) > MESSAGE_BYTES:
            raise InfrastructureError(f"a request of {len(data)} bytes is larger than {MESSAGE_BYTES}")
        assert self._process.stdin is not None
        deadline = time.monotonic() + timeout_seconds
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._process.stdin.fileno(), view) :]
            count = int.from_bytes(self._read(4, deadline), "big")
            answer: list[bytes] = []
            left = MESSAGE_BYTES
            for _ in range(count):
                size = int.from_bytes(self._read(4, deadline), "big")
                left -= size
                if left < 0:
                    raise InfrastructureError("the sandbox answered with more than it may")
                answer.append(self._read(size, deadline))
            return answer
        except (OSError, ValueError, InfrastructureError) as error:
            self.close()
            if isinstance(error, InfrastructureError):
                raise
            raise InfrastructureError(f"the sandbox is dead: {error}") from error

    def _read(self, size: int, deadline: float) -> bytes:
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        data = bytearray()
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        while len(data) < size:
            if not poll.poll(max(deadline - time.monotonic(), 0) * 1000):
                raise InfrastructureError("the sandbox does not answer")
            chunk = os.read(fd, size - len(data))
            if not chunk:
                raise InfrastructureError("the sandbox ended")
            data += chunk
        return bytes(data)

    def _kill(self) -> None:
        """The supervisor itself, too: a launcher of root's that gave up its rights may not take it along."""
        with contextlib.suppress(psutil.NoSuchProcess):
            inside = psutil.Process(self._process.pid).children(recursive=True)
            for process in reversed(inside):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(inside, timeout=_END_SECONDS)
        self._process.kill()

    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """End the sandbox and everything in it, and wait until it is gone. Calling it again does no harm."""
        if self._process.stdin is None or self._process.stdin.closed:
            return
        with contextlib.suppress(OSError):
            self._process.stdin.close()  # the supervisor's signal to kill everything and end
        try:
            self._process.wait(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
