"""A warm process that forks jobs: `python -m tasks.forkserver FD`, with the server's end of a socket as FD.

Importing torch and transformers takes seconds, and it is done once. A request is the path of a job document, with two
files: the job's channel and its log. On the channel the job says its pid and waits for a word, and in the end the
server says the exit code. The server ends when the other end of FD closes; jobs live on.
"""

from __future__ import annotations

import gc
import os
import select
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, NoReturn

import psutil

from rufus_core.jobs.run import main as carry_out
from rufus_core.jobs.run import preload
from rufus_core.lineage.process import ProcessId

_PATH_BYTES = 4096  # the longest path there is
_WORD_BYTES = 64


class ForkServerGone(Exception):
    """The server couldn't be started, or it died."""


class ForkedChild:
    """A job that the server forked. When the server dies first, the job's exit code stays unknown."""

    def __init__(self, channel: socket.socket, process: ProcessId) -> None:
        self.id = process
        self.code: int | None = None
        self._channel = channel

    def begin(self) -> None:
        with suppress(ConnectionError):  # killed meanwhile, which `running` tells
            self._channel.send(b"go")

    def running(self) -> bool:
        if self._channel.fileno() >= 0:
            try:
                word = _receive(self._channel, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return True
            self._channel.close()
            self.code = word[1] if word else None
        return self.code is None and self.id.find() is not None


class ForkServer:
    """Starts the server with the first job; all jobs have the environment `env`. Safe to use from several threads."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = dict(env)
        self._starting = threading.Lock()
        self._control, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process: subprocess.Popen[bytes] | None = None

    def spawn(self, document: Path, log: IO[bytes]) -> ForkedChild:
        """Fork a job, which waits for its `begin`. Raises ForkServerGone."""
        channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                self._start()
                files = [theirs.fileno(), log.fileno()]
                socket.send_fds(self._control, [os.fsencode(document)], files)
            match _receive(channel):
                case "pid", pid:
                    return ForkedChild(channel, ProcessId.of(pid))
                case other:
                    raise ForkServerGone(f"no job, but {other}")
        except (OSError, psutil.NoSuchProcess) as error:
            channel.close()
            raise ForkServerGone from error
        except ForkServerGone:
            channel.close()
            raise

    def close(self) -> None:
        """End the server. It holds nothing that a kill could lose."""
        with self._starting:
            self._control.close()
            self._theirs.close()
            if self._process is not None:
                self._process.kill()
                self._process.wait()

    def _start(self) -> None:
        with self._starting:
            if self._process is not None:
                return
            self._process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", "tasks.forkserver", str(self._theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # a Ctrl-C isn't meant for it
                pass_fds=[self._theirs.fileno()],
                env=self._env,
            )
            self._theirs.close()  # or its death would go unnoticed


def serve(control: socket.socket) -> None:
    """Fork a job for each request, until the other end closes. There must be no thread beside this one."""
    running: dict[int, tuple[int, socket.socket]] = {}  # pid and channel by the file that tells the end of a process
    while True:
        ready, _, _ = select.select([control.fileno(), *running], [], [])
        for each in ready:
            if each in running:
                pid, channel = running.pop(each)
                os.close(each)
                _, status = os.waitpid(pid, 0)
                with channel, suppress(ConnectionError):  # nobody waits for a cancelled job
                    channel.send(f"code {os.waitstatus_to_exitcode(status)}".encode())
                continue
            request, files, _, _ = socket.recv_fds(control, _PATH_BYTES, 2)
            if not request:
                return
            channel, log = socket.socket(fileno=files[0]), files[1]
            pid = os.fork()
            if pid == 0:
                control.close()
                for file, (_, other) in running.items():
                    os.close(file)
                    other.close()
                _become_job(Path(os.fsdecode(request)), channel, log)
            os.close(log)
            running[os.pidfd_open(pid)] = pid, channel


def _become_job(document: Path, channel: socket.socket, log: int) -> NoReturn:
    code = 1
    try:
        os.setsid()
        os.dup2(log, sys.stdout.fileno())
        os.dup2(log, sys.stderr.fileno())
        os.close(log)
        gc.enable()
        if _told_to_begin(channel):
            code = carry_out(document)
    except BaseException:  # noqa: BLE001 (what the interpreter would do at its end, which isn't reached)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _told_to_begin(channel: socket.socket) -> bool:
    """False when the launcher died."""
    with channel, suppress(ConnectionError):
        channel.send(f"pid {os.getpid()}".encode())
        return bool(channel.recv(_WORD_BYTES))
    return False


def _receive(channel: socket.socket, flags: int = 0) -> tuple[str, int] | None:
    """What is said and a number; None when the other side is gone."""
    try:
        said = channel.recv(_WORD_BYTES, flags)
    except ConnectionResetError:  # it died without hearing us; told once, ahead of what was said before
        said = channel.recv(_WORD_BYTES, flags)
    word, _, number = said.decode().partition(" ")
    return (word, int(number)) if word else None


if __name__ == "__main__":
    gc.disable()
    preload()
    gc.freeze()  # or the collector would copy every page that jobs share
    serve(socket.socket(fileno=int(sys.argv[1])))
    os._exit(0)
