"""The processes behind `MathVerifier`. Run as a module with a socket; never imported by the verifier.

The first process, the zygote, imports and warms what a comparison needs, stays single-threaded, and forks a worker in
milliseconds whenever it is asked to. A worker compares one pair after the other under a budget of processor time, and
is ended by the kernel when a comparison spends it. The zygote ends with its parent, the workers with the zygote.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import logging
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from functools import lru_cache

from rufus_core.rewards.math_compare import Reading, equal, read

_PARENT_POLL_SECONDS = 1.0
_PR_SET_PDEATHSIG = 1
_CACHED_GOLDS = 256
_WARM_UP = (  # one of each kind, so that a fork need not import, compile or build the parser's tables again
    (r"\frac{1}{2}", "0.5"),
    ("(1, 2)", r"\left( 1, \frac{\pi}{2} \right)"),
    (r"[0, 1) \cup (2, \infty)", r"(2, \infty) \cup [0, 1)"),
    (r"\{1, 2\}", "2, 1"),
    (r"\begin{pmatrix} 1 & x \\ 2 & 3 \end{pmatrix}", r"\begin{pmatrix} 1 & x \\ 2 & 4 \end{pmatrix}"),
    ("x^2 + 2x + 1", "(x + 1)^2"),
    ("2x + 4y - 3 = 0", r"y = -\frac{1}{2}x + \frac{3}{4}"),
    ("x > 3", r"(3, \infty)"),
    (r"\sqrt{2} + 3i", r"3i + \sqrt[3]{2}"),
    (r"\text{Evelyn}", r"\sin x"),
    (r"28\%", "x = 5 and x = 6"),
)


def serve(control: socket.socket, cpu_seconds: float, memory_bytes: int) -> None:
    """Start a worker on each socket that arrives, and reap those that are named; until the other end is gone."""
    parent = os.getppid()
    control.send(b"ready")
    while True:
        if not select.select([control], [], [], _PARENT_POLL_SECONDS)[0]:
            if os.getppid() != parent:
                return
            continue
        message, sockets, _, _ = socket.recv_fds(control, 64, 1)
        if not message:
            return
        if sockets:
            worker = _fork(control, sockets[0], cpu_seconds, memory_bytes)
            os.close(sockets[0])
            control.send(str(worker).encode())
        else:
            control.send(_reap(int(message)))


def _reap(worker: int) -> bytes:
    """End a worker: the number of the signal that ended it, and the processor time of its life."""
    os.kill(worker, signal.SIGKILL)  # without effect on one that has ended: it has not been reaped yet
    _, status, usage = os.wait4(worker, 0)
    return f"{os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0} {usage.ru_utime + usage.ru_stime}".encode()


def _fork(control: socket.socket, descriptor: int, cpu_seconds: float, memory_bytes: int) -> int:
    zygote = os.getpid()
    worker = os.fork()
    if worker:
        return worker
    try:
        control.close()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == zygote:
            resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            _compare_all(socket.socket(fileno=descriptor), cpu_seconds)
    finally:
        os._exit(0)


def _compare_all(requests: socket.socket, cpu_seconds: float) -> None:
    """Answer each line `[gold, text]` by a line once the gold answer is read, and by one with the verdict."""
    read_gold = lru_cache(maxsize=_CACHED_GOLDS)(read)
    with requests, requests.makefile("rb") as lines:
        for line in lines:
            gold_text, text = json.loads(line)
            gold: Reading | None = None
            with _budget(cpu_seconds):
                gold = read_gold(gold_text)
            if gold is None or not gold.readable:
                _reply(requests, "unreadable")
                continue
            requests.sendall(b"read\n")
            same = False
            with _budget(cpu_seconds):
                same = equal(gold, read(text))
            _reply(requests, "equal" if same else "different")


def _reply(requests: socket.socket, outcome: str) -> None:
    requests.sendall(f"{outcome} {time.process_time()}\n".encode())


@contextlib.contextmanager
def _budget(cpu_seconds: float) -> Iterator[None]:
    """The kernel ends the process if the step takes longer. An error ends the step: sympy raises all that there is."""
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    try:
        with contextlib.suppress(Exception):
            yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def main() -> None:
    descriptor, cpu_seconds, memory_bytes = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    logging.disable(logging.WARNING)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    with contextlib.redirect_stdout(sys.stderr):  # what parsers print
        for gold, text in _WARM_UP:
            equal(read(f"${gold}$"), read(f"${text}$"))
            read(f"so the answer is ${text}$")
        gc.collect()
        gc.freeze()
        with contextlib.suppress(ConnectionError):
            serve(socket.socket(fileno=descriptor), cpu_seconds, memory_bytes)


if __name__ == "__main__":
    main()
