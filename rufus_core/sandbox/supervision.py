"""How a sandbox's processes are watched, limited and cleared away. Standard library only."""

from __future__ import annotations

import mmap
import os
import resource
import select
import time

CHUNK_BYTES = 1 << 16  # read at once
TICK_SECONDS = 0.05  # how often the whole sandbox's processes and memory are counted
FILE_NODE_BYTES = 1 << 10  # of a file or folder, however small, in a memory file system
SOCKET_BYTES = 256 << 10  # that may wait in a unix socket, of the size that it is made with
SIGKILL = 9  # the signal module costs 3 ms to import
ISOLATED = os.getpid() == 1

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    Streams = Mapping[int, "Capture | ElidedCapture"]


class Capture:
    """A stream's output, capped while it is read.

    It lies where no program inherits it: one could find there what an earlier one, of another answer to the same
    problem, printed or returned.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._renew()

    def read(self, fd: int) -> int:
        """Read once; returns how many bytes there were, 0 at the end. Raises BlockingIOError where none are there."""
        room = memoryview(self._memory)[self._size : self._size + CHUNK_BYTES]
        read = os.readv(fd, [room])
        self._size += read
        return read

    @property
    def within(self) -> bool:
        """False once the limit is passed."""
        return self._size <= self.limit

    @property
    def has_line(self) -> bool:
        return self._memory.find(b"\n", 0, self._size) >= 0

    def take(self) -> memoryview:
        """The content so far, which a new one follows."""
        taken = self.content()
        self._renew()
        return taken

    def content(self) -> memoryview:
        return memoryview(self._memory)[: min(self._size, self.limit)]

    def _renew(self) -> None:
        self._memory = mmap.mmap(-1, self.limit + CHUNK_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._memory.madvise(mmap.MADV_DONTFORK)
        self._size = 0


class ElidedCapture:
    """A command's output, of which the middle is dropped where it is longer than `limit`."""

    within = True
    has_line = False

    def __init__(self, limit: int) -> None:
        self.head_limit = limit // 2
        self.tail_limit = limit - self.head_limit
        self.head, self.tail, self.omitted = bytearray(), bytearray(), 0

    def read(self, fd: int) -> int:
        """As `Capture.read`."""
        chunk = os.read(fd, CHUNK_BYTES)
        room = self.head_limit - len(self.head)
        self.head += chunk[:room]
        self.tail += chunk[room:]
        excess = len(self.tail) - self.tail_limit
        if excess > 0:
            self.omitted += excess
            del self.tail[:excess]
        return len(chunk)

    def content(self) -> bytes:
        middle = b"\n[%d bytes omitted]\n" % self.omitted if self.omitted else b""
        return bytes(self.head) + middle + bytes(self.tail)


class Budget:
    """Limits over all processes of the sandbox: rlimits count per process, and spare a uid that is mapped to 0."""

    def __init__(self, processes: int, memory: int) -> None:
        self.processes, self.memory = processes, memory

    def breach(self) -> str | None:
        if not ISOLATED:
            return None
        others = [name for name in os.listdir("/proc") if name.isdigit() and name != "1"]  # noqa: PTH208
        living = pages = 0
        for name in others:
            try:
                with open(f"/proc/{name}/statm", "rb") as file:  # noqa: PTH123
                    _, resident, shared = file.read().split()[:3]
            except OSError:  # ended meanwhile
                continue
            living += resident != b"0"  # a zombie holds nothing
            pages += int(resident) - int(shared)
        if living > self.processes:
            return "process_limit"
        used = pages * resource.getpagesize() + _kernel_bytes()
        return "memory" if used > self.memory else None


def _kernel_bytes() -> int:
    """About what files and sockets take of the kernel's memory, which no process is charged for."""
    used = 0
    for folder in ("/tmp", "/dev/shm"):  # noqa: S108
        told = os.statvfs(folder)
        used += (told.f_files - told.f_ffree) * FILE_NODE_BYTES
    with open("/proc/net/unix", "rb") as file:  # noqa: PTH123
        sockets = len(file.readlines()) - 1  # one line of headings
    return used + sockets * SOCKET_BYTES


class Watch:
    """A process and its streams, watched from one step to the next. A step is a line on the stream `steps`."""

    def __init__(self, pid: int, streams: Streams, budget: Budget, steps: int = -1) -> None:
        self.pid, self.streams, self.budget, self.steps = pid, streams, budget, steps
        self.process = os.pidfd_open(pid)
        self.poll = select.poll()
        for fd in (self.process, *streams):
            self.poll.register(fd, select.POLLIN)

    def wait(self, timeout: float) -> str:
        """Read the streams until a "step" was done, the process "exited", or a limit was passed (its name)."""
        now = time.monotonic()
        deadline, next_count = now + timeout, now + TICK_SECONDS
        while True:
            stepped = False
            for fd, _ in self.poll.poll(max(min(deadline, next_count) - now, 0) * 1000):
                if fd == self.process:
                    return "exited"
                stream = self.streams[fd]
                if not stream.read(fd):
                    self.poll.unregister(fd)
                elif not stream.within:
                    return "output_limit"
                stepped |= fd == self.steps and stream.has_line
            if stepped:
                return "step"
            now = time.monotonic()
            if now >= deadline:
                return "timeout"
            if now >= next_count:
                next_count = now + TICK_SECONDS
                if reason := self.budget.breach():
                    return reason

    def close(self) -> None:
        os.close(self.process)


def drain(streams: Streams) -> bool:
    """Read what is there without waiting; False if a limit is passed."""
    within = True
    for fd, capture in streams.items():
        os.set_blocking(fd, False)
        try:
            while within and capture.read(fd):
                within = capture.within
        except BlockingIOError:
            pass
    return within


def kill_group(pid: int) -> None:
    """Kill a session leader's process group; the leader alone where it has not made its group yet."""
    try:
        os.killpg(pid, SIGKILL)
    except ProcessLookupError:
        os.kill(pid, SIGKILL)


def reap(which: int, options: int) -> None:
    """Collect ended children: any (-1), or all of a killed group (minus its id)."""
    try:
        while os.waitpid(which, options)[0]:
            pass
    except ChildProcessError:  # none is left
        pass


def kill_all(pids: list[int]) -> None:
    """Send everything in the sandbox its end (without isolation: the processes' groups); `reap` waits for it."""
    if ISOLATED:
        try:  # noqa: SIM105 - contextlib is an import
            os.kill(-1, SIGKILL)
        except ProcessLookupError:  # nobody is left
            pass
        return
    for pid in pids:
        kill_group(pid)


def remove_tree(path: str, deadline: float = float("inf")) -> None:
    """Delete everything below a folder. Links are removed, not followed. Raises OSError past the deadline."""
    with os.scandir(path) as entries:
        for entry in entries:
            if time.monotonic() > deadline:
                raise OSError("there is too much to delete")
            if entry.is_dir(follow_symlinks=False):
                os.chmod(entry.path, 0o700)  # noqa: PTH101
                remove_tree(entry.path, deadline)
                os.rmdir(entry.path)  # noqa: PTH106
            else:
                os.unlink(entry.path)  # noqa: PTH108


def limit(what: int, soft: int, hard: int) -> None:
    _, bound = resource.getrlimit(what)
    if bound != resource.RLIM_INFINITY:
        soft, hard = min(soft, bound), min(hard, bound)
    resource.setrlimit(what, (soft, hard))
