"""The supervisor inside a sandbox: runs programs, checks and shell commands, one at a time, on request.

It is pid 1 of its namespace: the kernel shields pid 1 from the signals of its own namespace, and every orphan becomes
its child, so nothing outlives a program. Without isolation it is an ordinary process and kills the program's group.

A message in either direction is a list of byte fields. (Importing `json` would double the start-up time, and output
need not be text.)

    program  timeout output_limit memory isolation code stdin... -> (status exit_code stdout stderr seconds)...
    checks   timeout output_limit memory isolation num_tests code setup tests -> status verdicts...
    shell    timeout output_limit command             -> status exit_code stdout stderr
    upload   folder (path data)...                    -> "ok" | "failed" reason (the folder is emptied first)
    read     path limit                               -> "ok" data | "missing"
    ping                                              -> "ok"

"test" isolation is a fresh process for each input or test, "program" one for all. A program's answer may stop early:
where its output is large, or its one process ended. Status is "exited", "timeout", "memory", "output_limit" or
"process_limit". Standard library only, with few imports, as every sandbox pays for them.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import select
import sys

from rufus_core.sandbox.candidate import prepare
from rufus_core.sandbox.messages import Message, write_message
from rufus_core.sandbox.programs import Limits, Programs
from rufus_core.sandbox.supervision import (
    ISOLATED,
    TICK_SECONDS,
    Budget,
    ElidedCapture,
    Watch,
    drain,
    kill_all,
    kill_group,
    limit,
    reap,
    remove_tree,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

FILE_BYTES = 256 << 20
PR_SET_DUMPABLE = 4
SIGINT, SIGPIPE = 2, 13  # the signal module costs 3 ms to import


class Server:
    """Answers requests. `root` is the folder that stands for `/` when there is no isolation, else empty."""

    def __init__(self, root: str, budget: Budget) -> None:
        self.root, self.budget = root, budget
        self.programs = Programs(root, budget)
        self.leftovers: list[int] = []  # output of processes that a command left running: read and thrown away

    def answer(self, message: Message) -> Sequence[bytes | memoryview]:
        kind = message.take()
        if kind in (b"program", b"checks"):
            return self.python(kind, message)
        rest = message.rest()
        if kind == b"shell":
            return self.shell(float(rest[0]), int(rest[1]), rest[2])
        if kind == b"upload":
            return self.upload(os.fsdecode(rest[0]), rest[1:])
        if kind == b"read":
            return self.read(os.fsdecode(rest[0]), int(rest[1]))
        return [b"ok"]

    def python(self, kind: bytes, message: Message) -> Sequence[bytes | memoryview]:
        limits = Limits(message.take(), message.take(), message.take())
        isolation = message.take()
        num_tests = int(message.take()) if kind == b"checks" else 0
        files = [message.move(f"{self.root}/tmp") for _ in range(message.left)]  # noqa: S108
        code, *rest = files
        try:
            if kind == b"checks":
                setup, tests = rest
                return self.programs.check(limits, code, setup, tests, num_tests, isolation == b"test")
            run = self.programs.run_each if isolation == b"test" else self.programs.run_all
            return run(limits, code, rest)
        finally:
            for file in files:
                os.close(file)

    def shell(self, timeout: float, output_limit: int, command: bytes) -> list[bytes]:
        out, out_write = os.pipe()
        err, err_write = os.pipe()
        actions = [(os.POSIX_SPAWN_DUP2, out_write, 1), (os.POSIX_SPAWN_DUP2, err_write, 2)]
        shell = "/bin/bash" if os.access("/bin/bash", os.X_OK) else "/bin/sh"
        argv = [shell.encode(), b"-c", command.replace(b"\0", b"")]
        try:
            pid = os.posix_spawn(shell, argv, os.environ, file_actions=actions, setsid=True, setsigdef=[SIGPIPE])
        except OSError as error:  # for example a command that is longer than the kernel takes
            os.close(out)
            os.close(err)
            return [b"exited", b"126", b"", (error.strerror or "").encode()]
        finally:
            os.close(out_write)
            os.close(err_write)
        streams = {out: ElidedCapture(output_limit), err: ElidedCapture(output_limit)}
        watch = Watch(pid, streams, self.budget)
        status = watch.wait(timeout)
        watch.close()
        # a limit of the whole sandbox ends all of it; otherwise what runs in the background goes on (GYM-18)
        if status == "timeout":
            kill_group(pid)
        elif status != "exited":
            kill_all([pid])
        wait_status = os.waitpid(pid, 0)[1]
        if status != "exited":
            reap(-pid if status == "timeout" or not ISOLATED else -1, 0)
        drain(streams)
        self.leftovers += streams
        exit_code = os.waitstatus_to_exitcode(wait_status)
        return [status.encode(), str(exit_code).encode(), streams[out].content(), streams[err].content()]

    def upload(self, folder: str, files: list[bytes]) -> list[bytes]:
        """Replace a writable folder's content. The caller checked the paths; one that ends in `/` is a folder."""
        top = self.root + folder
        try:
            remove_tree(top)
            for path, data in zip(files[::2], files[1::2], strict=True):
                parent, _, name = f"{top}/{os.fsdecode(path)}".rpartition("/")
                os.makedirs(parent, exist_ok=True)  # noqa: PTH103
                if name:
                    mode = 0o755 if data.startswith(b"#!") else 0o644
                    fd = os.open(f"{parent}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
                    with open(fd, "wb") as file:  # noqa: PTH123
                        file.write(data)
        except (OSError, RecursionError) as error:  # whatever runs in the sandbox gets in the way
            return [b"failed", str(error).encode()]
        return [b"ok"]

    def read(self, path: str, size: int) -> list[bytes]:
        *folders, name = path.split("/")
        try:
            at = os.open(self.root or "/", os.O_PATH)
            for folder in filter(None, folders):
                at = _step(at, folder, os.O_PATH | os.O_DIRECTORY)
            fd = _step(at, name, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            return [b"missing"]
        try:
            regular = os.fstat(fd).st_mode & 0o170000 == 0o100000  # the stat module is an import
            return [b"ok", os.read(fd, size)] if regular else [b"missing"]
        finally:
            os.close(fd)

    def wait(self, requests: int) -> None:
        """Until a request comes: throw leftover output away and keep what runs in the background inside the limits."""
        poll = select.poll()
        for fd in (requests, *self.leftovers):
            poll.register(fd, select.POLLIN)
        while True:
            ready = [fd for fd, _ in poll.poll(TICK_SECONDS * 1000 if self.leftovers else None)]
            for fd in ready:
                if fd != requests and not os.read(fd, 1 << 16):
                    poll.unregister(fd)
                    self.leftovers.remove(fd)
                    os.close(fd)
            reap(-1, os.WNOHANG)
            if self.leftovers and self.budget.breach():
                kill_all([])
                reap(-1, 0)
            if requests in ready:
                return


def _step(at: int, name: str, flags: int) -> int:
    """Open a name in an open folder, which is closed. Links are not followed."""
    try:
        return os.open(name, flags | os.O_NOFOLLOW, dir_fd=at)
    finally:
        os.close(at)


def main() -> None:
    root, budget = sys.argv[1], Budget(int(sys.argv[2]), int(sys.argv[3]))
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # closes /proc/1/{mem,environ,fd} and ptrace to the programs
    libc.signal(SIGINT, 0)  # pid 1 is shielded from signals that it doesn't handle, and Python handles this one
    requests, responses = os.dup(0), os.dup(1)
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    limit(resource.RLIMIT_CORE, 0, 0)
    limit(resource.RLIMIT_FSIZE, FILE_BYTES, FILE_BYTES)
    if ISOLATED:  # elsewhere it would count all of the user's processes
        limit(resource.RLIMIT_NPROC, int(sys.argv[5]), int(sys.argv[5]))
    os.chdir(root + sys.argv[4])
    server = Server(root, budget)
    prepare()
    gc.collect()
    gc.freeze()  # a child's collector would touch, and so copy, all that it shares with this process
    while not server.programs.spoiled:
        server.wait(requests)
        try:
            message = Message(requests)
            write_message(responses, server.answer(message))
        except EOFError:
            break
        server.programs.clear()
    if ISOLATED:
        kill_all([])
        reap(-1, 0)
