"""Programs that try to use the machine up, to stay, or to kill: each ends in its typed status and leaves nothing."""

import pytest

from rufus_core.sandbox.interpreter import InterpreterPool
from tests.sandbox.attacks import PRELUDE, attack_pool, named, nothing_is_left


@pytest.fixture(scope="module")
def pool():
    with attack_pool() as pool:
        yield pool


@pytest.fixture(autouse=True)
def _leaves_nothing(pool):
    with nothing_is_left(pool):
        yield


# name: (the typed end and, for an error, what tells that it is the expected one; program)
PROCESSES = {
    "a fork bomb": ("process_limit", "while True:\n    try: os.fork()\n    except OSError: pass"),
    "a fork bomb of sessions": (
        "process_limit",
        "while True:\n    try:\n        os.fork(); os.setsid()\n    except OSError: pass",
    ),
    "a fork bomb that dies young": ("timeout", "while True:\n    if os.fork() == 0: os._exit(0)\n    os.wait()"),
    "many sleepers": (
        "process_limit",
        "import time\nfor _ in range(200):\n    if os.fork() == 0: time.sleep(60)\nos.wait()",
    ),
    "a bomb of shells": (
        "process_limit",
        "os.execv('/bin/bash', ['bash', '-c', 'f() { f | f & }; f; while :; do :; done'])",
    ),
    "a thread bomb": (
        "error: can't start new thread",
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
    ),
    "descriptors": ("error: Too many open files", "held = [os.open('/dev/null', os.O_RDONLY) for _ in range(10000)]"),
    "pipes": ("error: Too many open files", "for _ in range(10000): os.pipe()"),
}

MEMORY = {
    "one large block": ("memory", "x = bytearray(1 << 40)"),
    "doubling": ("memory", "x = 'ab'\nwhile True: x += x"),
    "a power": ("timeout", "x = 9 ** 9 ** 9"),
    "a list of lists": ("memory", "x = []\nwhile True: x.append([0] * 100000)"),
    "many processes": (
        "memory",
        """
import time
for _ in range(8):
    if os.fork() == 0:
        held = bytearray(b'x') * (100 << 20)
        time.sleep(60)
os.wait()
""",
    ),
    "shared memory": ("error: PermissionError", "import mmap\nmmap.mmap(-1, 64 << 20)"),
    "shared zeros": ("error: PermissionError", "import mmap\nmmap.mmap(os.open('/dev/zero', os.O_RDWR), 64 << 20)"),
    "files without a name": ("error: PermissionError", "os.memfd_create('x')"),
    "System V segments": ("error: PermissionError", "checked(libc.shmget(7, 1 << 30, 0o1666))"),
    "full sockets": (
        "memory",
        """
import socket, time
for _ in range(16):
    if os.fork() == 0: break
else:
    time.sleep(60)
held = []
while len(held) < 120:
    held.append(socket.socketpair())
    for end in held[-1]:
        end.setblocking(False)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)
        try:
            while True: end.send(b'x' * 100000)
        except BlockingIOError: pass
time.sleep(60)
""",
    ),
    "sockets that nobody takes": (
        "memory",
        """
import socket
server = socket.socket(socket.AF_UNIX)
server.bind('s'); server.listen(4096)
while True: socket.socket(socket.AF_UNIX).connect('s')
""",
    ),
    "queues of datagrams": (
        "error: Socket type not supported",
        "import socket\nsocket.socketpair(type=socket.SOCK_DGRAM)",
    ),
    "deep recursion": ("error: RecursionError", "import sys\ndef f(n): return f(n + 1)\nf(0)"),
    "recursion without a limit": (
        "error: signal 11",
        "import sys\nsys.setrecursionlimit(1 << 30)\ndef f(n): return [*map(f, [n])]\nf(0)",
    ),
    "a nested literal": ("error: SyntaxError", "eval('(' * 100000)"),
    "a deep value": ("error: RecursionError", "x = []\nfor _ in range(100000): x = [x]\nrepr(x)"),
}

DISK = {
    "filling /tmp": (
        "error: No space left",
        "while True: open(f'x{len(os.listdir())}', 'wb').write(b'x' * (32 << 20))",
    ),
    "filling /dev/shm": (
        "error: No space left",
        "with open('/dev/shm/x', 'wb') as f:\n    while True: f.write(b'x' * (1 << 20))",
    ),
    "a sparse file": ("error: File too large", "os.truncate(os.open('x', os.O_CREAT | os.O_RDWR), 1 << 50)"),
    "an allocated file": (
        "error: File too large",
        "os.posix_fallocate(os.open('x', os.O_CREAT | os.O_RDWR), 0, 1 << 40)",
    ),
    "many files": ("timeout", "n = 0\nwhile True:\n    n += 1\n    open(f'x{n % 2000}', 'w').close()"),
    "a deep tree": ("ok", "for _ in range(3000):\n    os.mkdir('d'); os.chdir('d')"),
    "closed folders": ("ok", "os.makedirs('a/b/c')\nfor d in ('a/b/c', 'a/b', 'a', '.'): os.chmod(d, 0)"),
    "odd names": ("ok", r"for name in (b'\xff\xfe', b'a\nb', b'-rf', b' ', b'x' * 255, b'\x1b[2J'): os.mkdir(name)"),
    "loops of links": ("ok", "os.symlink('l', 'l'); os.symlink('/', 'root'); os.symlink('/opt/rufus', 'opt')"),
    "a fifo": ("ok", "os.mkfifo('pipe'); os.mkfifo('/dev/shm/pipe')"),
}

OUTPUT = {
    "a flood": ("output_limit", "while True: print('x' * 1000)"),
    "a flood without newline": ("output_limit", "while True: sys.stdout.write('x' * 65536)"),
    "a flood of errors": ("output_limit", "while True: os.write(2, b'x' * 65536)"),
    "a flood by children": ("output_limit", "for _ in range(4): os.fork()\nwhile True: os.write(1, b'x' * 65536)"),
    "one large line": ("output_limit", "print('x' * (8 << 20))"),
    "bytes that are no text": ("ok", "os.write(1, bytes(range(256)))"),
    "closed streams": ("ok", "os.close(0); os.close(1); os.close(2)"),
    "closed streams that are used": ("error: closed file", "sys.stdout.close(); print('x')"),
    "streams exchanged": ("ok", "os.dup2(1, 3); os.dup2(2, 1); os.write(3, b'v 5\\n')"),
    "a stream that doesn't drain": ("timeout", "import fcntl\nr, w = os.pipe()\nwhile True: os.write(w, b'x' * 4096)"),
}

DAEMON = """
import signal, time
if os.fork() == 0:
    {before}
    if os.fork() == 0:
        {after}
        for fd in range(4): os.close(fd)
        time.sleep(60)
    os._exit(0)
os.wait()
"""

STAYING = {
    "a daemon": ("ok", DAEMON.format(before="os.setsid()", after="pass")),
    "a daemon that ignores signals": (
        "ok",
        DAEMON.format(
            before="for n in range(1, 32):\n        if n not in (9, 19): signal.signal(n, signal.SIG_IGN)",
            after="signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))",
        ),
    ),
    "a daemon that keeps the streams": ("ok", "import time\nif os.fork() == 0:\n    os.setsid(); time.sleep(60)"),
    "a stopped child": ("ok", "import signal, time\nif os.fork() == 0:\n    os.kill(os.getpid(), signal.SIGSTOP)"),
    "zombies": ("ok", "for _ in range(20):\n    if os.fork() == 0: os._exit(0)"),
    "files everywhere": ("ok", "for d in ('/tmp', '/dev/shm', '.'): open(f'{d}/left', 'w').close()"),
    "a POSIX queue": (
        "ok",
        "queue = ctypes.CDLL('librt.so.1', use_errno=True).mq_open(b'/left', os.O_CREAT | os.O_RDWR, 0o600, None)\n"
        "assert queue != -1 and os.listdir('/dev/mqueue')",
    ),
    "a named semaphore": ("ok", "from _multiprocessing import SemLock\nSemLock(0, 1, 1, '/left', False)"),
    "System V objects": ("error: PermissionError", "checked(libc.semget(7, 1, 0o1666))"),
    "a message queue of System V": ("error: PermissionError", "checked(libc.msgget(7, 0o1666))"),
    "a timer": ("error: signal 14", "import signal\nsignal.setitimer(signal.ITIMER_REAL, 0.05)\nwhile True: pass"),
}

SIGNALS = {
    "kill everything": ("error: signal 9", "try: os.kill(-1, 9)\nexcept ProcessLookupError: os.kill(os.getpid(), 9)"),
    "kill the supervisor": ("ok", "for number in range(1, 65):\n    if number not in (32, 33): os.kill(1, number)"),
    "kill the supervisor's group": ("ok", "try: os.killpg(1, 9)\nexcept OSError: pass"),
    "stop itself": ("timeout", "os.kill(os.getpid(), 19)"),
    "stop the parent": ("ok", "os.kill(os.getppid(), 19); os.kill(os.getppid(), 20)"),
    "ignore the end": (
        "timeout",
        "import signal\nfor n in range(1, 32):\n    if n not in (9, 19): signal.signal(n, signal.SIG_IGN)\n"
        "while True: pass",
    ),
    "block every signal": (
        "timeout",
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass",
    ),
    "sleep": ("timeout", "import time\ntime.sleep(1e6)"),
    "wait for input": ("timeout", "r, w = os.pipe()\nos.read(r, 1)"),
    "a lock": ("timeout", "import threading\nlock = threading.Lock()\nlock.acquire(); lock.acquire()"),
    "a thread that never ends": (
        "timeout",
        "import threading\ndef f():\n    while True: pass\nthreading.Thread(target=f).start()",
    ),
    "a backtracking expression": ("timeout", "import re\nre.match(r'(a+)+$', 'a' * 60 + 'b')"),
    "a crash": ("error: signal 11", "ctypes.string_at(0)"),
    "an abort": ("error: signal 6", "os.abort()"),
    "another program": ("timeout", "os.execv('/bin/sleep', ['sleep', '60'])"),
}


def ends_as_told(pool, attack):
    (status, _, told), program = attack[0].partition(": "), attack[1]
    result = pool.run(PRELUDE + program, timeout_seconds=0.3 if status == "timeout" else 5.0)
    assert result.status == status, result
    assert told in f"{result.stderr} signal {-result.exit_code}", result


@pytest.mark.parametrize("attack", named(PROCESSES))
def test_processes_are_bounded(pool, attack):
    ends_as_told(pool, attack)


@pytest.mark.parametrize("attack", named(MEMORY))
def test_memory_is_bounded(pool, attack):
    ends_as_told(pool, attack)


@pytest.mark.parametrize("attack", named(DISK))
def test_the_disk_is_memory_of_fixed_size(pool, attack):
    ends_as_told(pool, attack)


def test_files_without_content_are_bounded():
    with InterpreterPool(1, memory_bytes=32 << 20) as small:
        result = small.run(
            "import os\nopen('x', 'w')\nfor n in range(10**7): os.link('x', str(n))", timeout_seconds=60.0
        )
        assert (result.status, small.run("print(1)").stdout) == ("memory", "1\n")


@pytest.mark.parametrize("attack", named(OUTPUT))
def test_output_is_bounded(pool, attack):
    ends_as_told(pool, attack)


@pytest.mark.parametrize("attack", named(STAYING))
def test_nothing_stays(pool, attack):
    ends_as_told(pool, attack)


@pytest.mark.parametrize("attack", named(SIGNALS))
def test_every_program_ends_and_only_that_one(pool, attack):
    ends_as_told(pool, attack)
