"""Runs Python programs: each in a forked process of this warm interpreter, in a session and a folder of its own.

A program's source, its input and its tests reach the forked processes as nameless files, so that the memory which a
program inherits of this process holds no test. Standard library only.
"""

from __future__ import annotations

import os
import resource
import time

from rufus_core.sandbox.candidate import MEMORY_CODE, run_on_inputs, run_program, serve_program
from rufus_core.sandbox.messages import content
from rufus_core.sandbox.referee import judge
from rufus_core.sandbox.supervision import (
    ISOLATED,
    SIGKILL,
    Budget,
    Capture,
    Watch,
    drain,
    kill_all,
    limit,
    reap,
    remove_tree,
)

VERDICTS_BYTES = 4 << 20
ERROR = ord("e")  # the first sign of the line of a test that failed
STEPS_BYTES = 1 << 16
ANSWER_BYTES = 16 << 20  # after so much output no further input is run for the same answer
CLEAR_SECONDS = 0.02  # a new sandbox is there in little more
SIGXCPU = 24  # the signal module costs 3 ms to import

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Field = bytes | memoryview


class Limits:
    """Of one program: seconds, bytes of output, bytes of memory."""

    def __init__(self, timeout: bytes, output: bytes, memory: bytes) -> None:
        self.timeout, self.output, self.memory = float(timeout), int(output), int(memory)


class Programs:
    """Runs programs one at a time. `root` is the folder that stands for `/` when there is no isolation, else empty."""

    def __init__(self, root: str, budget: Budget) -> None:
        self.root, self.budget = root, budget
        self.running: list[int] = []
        self.spoiled = False  # something of a program is left that only a new sandbox gets rid of

    def run_each(self, limits: Limits, code: int, inputs: Sequence[int]) -> list[Field]:
        """Five fields for each input, each with a process of its own: status, exit code, output, errors, seconds."""
        answer: list[Field] = []
        size = 0
        for stdin in inputs:
            self.clear()
            answer += self._run(limits, code, stdin)
            size += len(answer[-2]) + len(answer[-3])
            if size > ANSWER_BYTES:
                break
        return answer

    def _run(self, limits: Limits, code: int, stdin: int) -> list[Field]:
        (out, out_write), (err, err_write) = os.pipe(), os.pipe()
        started = time.monotonic()
        pid = self._fork([stdin, out_write, err_write], limits, 1, run_program, code)
        for fd in (out_write, err_write):
            os.close(fd)
        streams = {out: Capture(limits.output), err: Capture(limits.output)}
        watch = Watch(pid, streams, self.budget)
        ended = self._end(watch, watch.wait(limits.timeout))
        return [*ended, streams[out].content(), streams[err].content(), _since(started)]

    def run_all(self, limits: Limits, code: int, inputs: Sequence[int]) -> list[Field]:
        """As `run_each`, with one process for all inputs, which waits for leave before the next."""
        pipes = [os.pipe() for _ in range(4)]
        (out, out_write), (err, err_write), (steps, step), (leave, give_leave) = pipes
        given = [inputs[0], out_write, err_write, step, leave, *inputs]
        pid = self._fork(given, limits, len(inputs), lambda source: run_on_inputs(source, len(inputs)), code)
        for fd in (out_write, err_write, step, leave):
            os.close(fd)
        answer: list[Field] = []
        size = 0
        streams = {out: Capture(limits.output), err: Capture(limits.output), steps: Capture(STEPS_BYTES)}
        watch = Watch(pid, streams, self.budget, steps)
        status = "step"
        while status == "step" and len(answer) < 5 * len(inputs):
            started = time.monotonic()
            status = watch.wait(limits.timeout)
            if status == "step":
                within = drain({out: streams[out], err: streams[err]})
                ended = _named("exited" if within else "output_limit", bytes(streams[steps].take()))
            else:
                ended = self._end(watch, status)
            answer += [*ended, streams[out].take(), streams[err].take(), _since(started)]
            size += len(answer[-2]) + len(answer[-3])
            if size > ANSWER_BYTES:
                break
            try:
                os.write(give_leave, b"\n")
            except OSError:  # the program closed its end: the next input is for a process that can be given leave
                break
        if status == "step":
            self._end(watch, status)
        os.close(give_leave)
        return answer

    def check(self, limits: Limits, code: int, setup: int, tests: int, num_tests: int, each: bool) -> list[Field]:
        """The last status, and the referee's lines in one field or more.

        With `each`, every test has two processes of its own.
        """
        status, lines = b"exited", list[memoryview]()
        for place in range(num_tests) if each else [-1]:
            self.clear()
            status, told = self._check(limits, code, setup, tests, 1 if each else num_tests, place)
            lines.append(told)
            if status != b"exited" or not told or told[0] == ERROR:
                break
        return [status, *lines]

    def _check(
        self, limits: Limits, code: int, setup: int, tests: int, num_tests: int, only: int
    ) -> tuple[bytes, memoryview]:
        pipes = [os.pipe() for _ in range(5)]
        (out, out_write), (err, err_write), (calls, ask), (replies, reply), (verdicts, tell) = pipes
        null = os.open("/dev/null", os.O_RDWR)
        self._fork([null, out_write, err_write, calls, reply], limits, num_tests, serve_program, code, setup)
        pid = self._fork(
            [null, null, null, ask, replies, tell], limits, num_tests, lambda data: judge(data, only), tests
        )
        for fd in (null, out_write, err_write, calls, ask, replies, reply, tell):
            os.close(fd)
        streams = {out: Capture(limits.output), err: Capture(limits.output), verdicts: Capture(VERDICTS_BYTES)}
        watch = Watch(pid, streams, self.budget, verdicts)
        status = "step"
        while status == "step":
            status = watch.wait(limits.timeout)
        return self._end(watch, status)[0], streams[verdicts].content()

    def _fork(self, fds: Sequence[int], limits: Limits, steps: int, work: Callable[..., int], *files: int) -> int:
        """A child that has these descriptors, from 0 on, and no other. It ends with the exit code of its work.

        It starts in an empty folder.
        """
        folder = f"{self.root}/tmp/{len(self.running) + 1}"  # noqa: S108
        os.mkdir(folder, 0o700)  # noqa: PTH102
        pid = os.fork()
        if pid:
            self.running.append(pid)
            return pid
        exit_code = 70
        try:
            os.setsid()
            contents = [content(file) for file in files]
            first = max(fds) + 1  # beyond all of them, so that none is overwritten before it is moved
            for place, fd in enumerate(fds):
                os.dup2(fd, first + place)
            for place in range(len(fds)):
                os.dup2(first + place, place)
            os.closerange(len(fds), 1024)
            os.chdir(folder)
            seconds = int(limits.timeout * (steps + 1)) + 1
            limit(resource.RLIMIT_CPU, seconds, seconds + 1)  # the soft limit's signal names the reason
            limit(resource.RLIMIT_AS, limits.memory, limits.memory)
            limit(resource.RLIMIT_NOFILE, 256, 256)
            exit_code = work(*contents)
        finally:
            os._exit(exit_code)

    def _end(self, watch: Watch, status: str) -> list[bytes]:
        """Kill everything that runs, and read what is there of the output. Waiting and clearing away come later."""
        kill_all(self.running)
        exit_code = -SIGKILL
        if status == "exited":
            exit_code = os.waitstatus_to_exitcode(os.waitpid(watch.pid, 0)[1])
        if not drain(watch.streams) and status == "exited":
            status = "output_limit"
        for fd in watch.streams:
            os.close(fd)
        watch.close()
        return _named(status, b"%d" % exit_code)

    def clear(self) -> None:
        """Remove what a program left. What can't be removed at once spoils the sandbox, and it is replaced."""
        if not self.running:
            return
        self.running.clear()
        reap(-1, 0)
        try:
            deadline = time.monotonic() + CLEAR_SECONDS
            remove_tree(f"{self.root}/tmp", deadline)  # noqa: S108
            if ISOLATED:
                remove_tree("/dev/shm", deadline)  # noqa: S108
                remove_tree("/dev/mqueue", deadline)
                for kind in ("shm", "sem", "msg"):
                    with open(f"/proc/sysvipc/{kind}", "rb") as file:  # noqa: PTH123
                        self.spoiled |= len(file.readlines()) > 1  # one line of headings
        except FileNotFoundError:  # a kernel without System V
            pass
        except (OSError, RecursionError):
            self.spoiled = True


def _since(started: float) -> bytes:
    return b"%.6f" % (time.monotonic() - started)


def _named(status: str, exit_code: bytes) -> list[bytes]:
    """Status and exit code of a program, where some codes name the reason of the end."""
    code = int(exit_code)
    if status == "exited" and code == -SIGXCPU:
        return [b"timeout", exit_code]
    if status == "exited" and code == MEMORY_CODE:
        return [b"memory", b"1"]
    return [status.encode(), exit_code]
