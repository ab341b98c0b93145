"""The supervisor inside a sandbox: runs programs, checks and shell commands, one at a time, on request.

It is pid 1 of its namespace: the kernel shields pid 1 from the signals of its own namespace, and every orphan becomes
its child, so nothing outlives a program. Without isolation it is an ordinary process and kills the program's group.

A message in either direction is a list of byte fields: their number, then each field's length and bytes, all lengths in
four big-endian bytes. (Importing `json` would double the start-up time, and output need not be text.)

    program  timeout output_limit memory code stdin          -> status exit_code stdout stderr results
    checks   timeout output_limit memory code nonce check... -> status exit_code stdout stderr results
    shell    timeout output_limit command                    -> status exit_code stdout stderr
    upload   folder (path data)...                           -> "ok" | "failed" reason (the folder is emptied first)
    read     path limit                                      -> "ok" data | "missing"
    ping                                                     -> "ok"

Status is "exited", "timeout", "memory", "output_limit" or "process_limit". Standard library only, with few imports, as
every sandbox pays for them.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import sys
import time

from rufus_core.sandbox.candidate import run_program

TICK_SECONDS = 0.05  # how often the whole sandbox's processes and memory are counted
RESULTS_BYTES = 1 << 20
FILE_BYTES = 256 << 20
PR_SET_DUMPABLE = 4
SIGINT, SIGKILL, SIGPIPE, SIGXCPU = 2, 9, 13, 24  # the signal module costs 3 ms to import
ISOLATED = os.getpid() == 1


def _read_exactly(fd: int, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = os.read(fd, min(size - len(data), 1 << 20))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)


def read_message(fd: int) -> list[bytes]:
    count = int.from_bytes(_read_exactly(fd, 4), "big")
    return [_read_exactly(fd, int.from_bytes(_read_exactly(fd, 4), "big")) for _ in range(count)]


def write_message(fd: int, fields: list[bytes]) -> None:
    view = memoryview(len(fields).to_bytes(4, "big") + b"".join(len(f).to_bytes(4, "big") + f for f in fields))
    while view:
        view = view[os.write(fd, view) :]


class Capture:
    """A stream's output, capped while it is read. With `elide` the middle is dropped; otherwise the cap is a limit."""

    def __init__(self, limit: int, elide: bool = False) -> None:
        self.head_limit = limit // 2 if elide else limit
        self.tail_limit = limit - self.head_limit
        self.elide = elide
        self.head, self.tail, self.omitted = bytearray(), bytearray(), 0

    def add(self, chunk: bytes) -> bool:
        """False once the limit is passed."""
        room = self.head_limit - len(self.head)
        self.head += chunk[:room]
        rest = chunk[room:]
        if not self.elide:
            return not rest
        self.tail += rest
        excess = len(self.tail) - self.tail_limit
        if excess > 0:
            self.omitted += excess
            del self.tail[:excess]
        return True

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
        return "memory" if pages * resource.getpagesize() > self.memory else None


def supervise(
    pid: int, streams: dict[int, Capture], timeout: float, budget: Budget, steps_fd: int = -1, num_steps: int = 0
) -> str:
    """Read the streams until the process ends ("exited") or breaks a limit (its name).

    The timeout starts anew with each of the first `num_steps` lines on `steps_fd`.
    """
    watched = os.pidfd_open(pid)
    poll = select.poll()
    for fd in (watched, *streams):
        poll.register(fd, select.POLLIN)
    now = time.monotonic()
    deadline, next_count = now + timeout, now + TICK_SECONDS
    try:
        while True:
            events = poll.poll(max(min(deadline, next_count) - now, 0) * 1000)
            for fd, _ in events:
                if fd == watched:
                    return "exited"
                chunk = os.read(fd, 1 << 16)
                if not chunk:
                    poll.unregister(fd)
                elif not streams[fd].add(chunk):
                    return "output_limit"
                elif fd == steps_fd and num_steps and (steps := chunk.count(b"\n")):
                    num_steps = max(num_steps - steps, 0)
                    deadline = time.monotonic() + timeout
            now = time.monotonic()
            if now >= deadline:
                return "timeout"
            if now >= next_count:
                next_count = now + TICK_SECONDS
                if reason := budget.breach():
                    return reason
    finally:
        os.close(watched)


def drain(streams: dict[int, Capture]) -> bool:
    """Read what is there without waiting; False if a limit is passed."""
    within = True
    for fd, capture in streams.items():
        os.set_blocking(fd, False)
        while within:
            try:
                chunk = os.read(fd, 1 << 16)
            except BlockingIOError:
                break
            if not chunk:
                break
            within = capture.add(chunk)
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


def kill_all(pid: int) -> int:
    """Kill everything in the sandbox (without isolation: the process's group), reap it, return the process's status."""
    if not ISOLATED:
        kill_group(pid)
        return os.waitpid(pid, 0)[1]
    try:  # noqa: SIM105 - contextlib is an import
        os.kill(-1, SIGKILL)
    except ProcessLookupError:  # nobody is left
        pass
    status = 0
    while True:
        try:
            ended, ended_status = os.waitpid(-1, 0)
        except ChildProcessError:
            return status
        if ended == pid:
            status = ended_status


def remove_tree(path: str) -> None:
    """Delete everything below a folder. Links are removed, not followed."""
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                os.chmod(entry.path, 0o700)  # noqa: PTH101
                remove_tree(entry.path)
                os.rmdir(entry.path)  # noqa: PTH106
            else:
                os.unlink(entry.path)  # noqa: PTH108


def limit(what: int, soft: int, hard: int) -> None:
    _, bound = resource.getrlimit(what)
    if bound != resource.RLIM_INFINITY:
        soft, hard = min(soft, bound), min(hard, bound)
    resource.setrlimit(what, (soft, hard))


class Server:
    """Answers requests. `root` is the folder that stands for `/` when there is no isolation, else empty."""

    def __init__(self, root: str, budget: Budget) -> None:
        self.root, self.budget = root, budget
        self.count = 0
        self.spoiled = False  # something of a program is left that only a new sandbox gets rid of
        self.leftovers: list[int] = []  # output of processes that a command left running: read and thrown away

    def answer(self, fields: list[bytes]) -> list[bytes]:
        kind, rest = fields[0], fields[1:]
        if kind == b"program":
            return self.python(rest[:4], rest[4], None, "")
        if kind == b"checks":
            return self.python(rest[:4], b"", rest[5:], rest[4].decode())
        if kind == b"shell":
            return self.shell(float(rest[0]), int(rest[1]), rest[2])
        if kind == b"upload":
            return self.upload(os.fsdecode(rest[0]), rest[1:])
        if kind == b"read":
            return self.read(os.fsdecode(rest[0]), int(rest[1]))
        return [b"ok"]

    def python(self, settings: list[bytes], stdin: bytes, checks: list[bytes] | None, nonce: str) -> list[bytes]:
        timeout, output_limit, memory, code = float(settings[0]), int(settings[1]), int(settings[2]), settings[3]
        self.count += 1
        folder = f"{self.root}/tmp/{self.count}"  # noqa: S108
        os.mkdir(folder, 0o700)  # noqa: PTH102
        source = os.open(f"{folder}/stdin", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.unlink(f"{folder}/stdin")  # noqa: PTH108
        os.pwrite(source, stdin, 0)
        pipes = [os.pipe() for _ in range(3)]
        num_steps = len(checks or ())
        pid = os.fork()
        if pid == 0:
            exit_code = 70
            try:
                os.setsid()
                given = [source, *(write for _, write in pipes)]  # all above 3, as 0 to 2 are taken and 3 is a channel
                for fd, target in zip(given, range(4), strict=True):
                    os.dup2(fd, target)
                os.closerange(4, 1024)
                os.chdir(folder)
                seconds = int(timeout * (num_steps + 1)) + 1
                limit(resource.RLIMIT_CPU, seconds, seconds + 1)  # the soft limit's signal names the reason
                limit(resource.RLIMIT_AS, memory, memory)
                limit(resource.RLIMIT_NOFILE, 256, 256)
                exit_code = run_program(code, checks, nonce)
            finally:
                os._exit(exit_code)
        os.close(source)
        for _, write in pipes:
            os.close(write)
        out, err, results = (read for read, _ in pipes)
        streams = {out: Capture(output_limit), err: Capture(output_limit), results: Capture(RESULTS_BYTES)}
        status = supervise(pid, streams, timeout, self.budget, results, num_steps)
        exit_code = os.waitstatus_to_exitcode(kill_all(pid))
        if not drain(streams) and status == "exited":
            status = "output_limit"
        for fd in streams:
            os.close(fd)
        told = streams[results].content()
        if status == "exited":
            status = "timeout" if exit_code == -SIGXCPU else "memory" if told.endswith(b"m\n") else "exited"
        self.clean()
        return [status.encode(), str(exit_code).encode(), streams[out].content(), streams[err].content(), told]

    def clean(self) -> None:
        """Remove what a program left. What can't be removed spoils the sandbox, and it is replaced."""
        try:
            remove_tree(f"{self.root}/tmp")  # noqa: S108
            if ISOLATED:
                remove_tree("/dev/shm")  # noqa: S108
                remove_tree("/dev/mqueue")
                for kind in ("shm", "sem", "msg"):
                    with open(f"/proc/sysvipc/{kind}", "rb") as file:  # noqa: PTH123
                        self.spoiled |= len(file.readlines()) > 1  # one line of headings
        except FileNotFoundError:  # a kernel without System V
            pass
        except (OSError, RecursionError):
            self.spoiled = True

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
        streams = {out: Capture(output_limit, elide=True), err: Capture(output_limit, elide=True)}
        status = supervise(pid, streams, timeout, self.budget)
        if status == "timeout":
            kill_group(pid)
        # a limit of the whole sandbox ends all of it; otherwise what runs in the background goes on (GYM-18)
        wait_status = os.waitpid(pid, 0)[1] if status in ("exited", "timeout") else kill_all(pid)
        if status == "timeout":
            reap(-pid, 0)
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
        try:
            fd = os.open(self.root + path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return [b"missing"]
        try:
            return [b"ok", os.read(fd, size)]
        except OSError:  # a folder
            return [b"missing"]
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
                kill_all(0)
            if requests in ready:
                return


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
        limit(resource.RLIMIT_NPROC, 8 * budget.processes, 8 * budget.processes)
    os.chdir(root + sys.argv[4])
    server = Server(root, budget)
    while not server.spoiled:
        server.wait(requests)
        try:
            fields = read_message(requests)
        except EOFError:
            break
        write_message(responses, server.answer(fields))
    if ISOLATED:
        kill_all(0)
