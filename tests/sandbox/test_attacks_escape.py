"""Programs that try to leave the sandbox, or to see the host's files, network, environment and processes."""

import os
import socket
import tempfile
from pathlib import Path

import pytest

from rufus_core.gym.terminal import TerminalGym
from rufus_core.sandbox.interpreter import InterpreterPool
from rufus_core.sandbox.sessions import LocalSessions
from tests.gym.test_terminal import SETTINGS, run, terminal_problem
from tests.sandbox.attacks import attack_pool, named, nothing_is_left, refused
from tests.sandbox.real import require_isolation


@pytest.fixture(scope="module")
def pool():
    with attack_pool() as pool:
        yield pool


@pytest.fixture(autouse=True)
def _leaves_nothing(pool):
    with nothing_is_left(pool):
        yield


ESCAPES = {
    "a user namespace": "attempt(lambda: syscall('unshare', 0x10000000))",
    "a mount namespace": "attempt(lambda: syscall('unshare', 0x20000))",
    "clone into namespaces": """
clone = 56 if 'x86' in os.uname().machine else 220
attempt(lambda: syscall(clone, 0x10020011, 0, 0, 0, 0))
""",
    "clone3 into namespaces": """
arguments = (ctypes.c_uint64 * 11)(0x10000000, 0, 0, 0, 17)
attempt(lambda: syscall(435, ctypes.addressof(arguments), 88))
""",
    "another's namespaces": "attempt(lambda: syscall('setns', os.open('/proc/self/ns/mnt', os.O_RDONLY), 0))",
    "pid 1's namespaces": "attempt(lambda: os.open('/proc/1/ns/mnt', os.O_RDONLY))",
    "mounting": """
attempt(lambda: checked(libc.mount(b'proc', b'/tmp', b'proc', 0, None)))
attempt(lambda: checked(libc.mount(b'none', b'/usr', None, 32 | 4096, None)))
attempt(lambda: checked(libc.umount2(b'/usr', 2)))
""",
    "mounting by the new calls": """
attempt(lambda: syscall('fsopen', b'tmpfs', 0))
attempt(lambda: syscall('open_tree', -100, b'/', 1))
""",
    "chroot": "attempt(lambda: os.chroot('/tmp'))",
    "pivot_root": "attempt(lambda: syscall('pivot_root', b'/tmp', b'/tmp'))",
    "the root of pid 1": "attempt(lambda: os.listdir('/proc/1/root'))\nattempt(lambda: os.listdir('/proc/1/cwd'))",
    "a symbolic link": """
os.symlink('/proc/1/root/etc', 'way'); os.symlink('../../../../../../../root', 'up')
attempt(lambda: os.listdir('way')); attempt(lambda: os.listdir('up'))
""",
    "a hard link": """
attempt(lambda: os.link('/usr/bin/env', 'env'))
attempt(lambda: os.link('/opt/rufus/program.bpf', 'b'))
""",
    "a file handle": """
handle = (ctypes.c_int * 32)(128)
attempt(lambda: syscall('name_to_handle_at', -100, b'/usr', ctypes.addressof(handle), ctypes.addressof(handle), 0))
attempt(lambda: syscall('open_by_handle_at', 0, ctypes.addressof(handle), 0))
""",
    "a device of its own": """
attempt(lambda: os.mknod('disk', 0o60666, os.makedev(254, 0)))
attempt(lambda: os.mknod('mem', 0o20666, os.makedev(1, 1)))
""",
    "the supervisor's files": """
runner = '/opt/rufus/rufus_core/sandbox/runner.pyc'
for path in (runner, '/opt/rufus/x', '/opt/python/x', '/usr/bin/env', '/x', '/dev/x'):
    attempt(lambda: open(path, 'ab'))
""",
    "root": "attempt(lambda: os.setuid(0)); attempt(lambda: os.setgid(0)); attempt(lambda: os.setgroups([0]))",
    "a setuid program": """
import shutil, subprocess
def become():
    shutil.copy('/usr/bin/id', 'id'); os.chmod('id', 0o4755)
    for command in (['./id', '-u'], ['/usr/bin/setpriv', '--reuid', '0', 'id', '-u'], ['/usr/bin/su', '-c', 'id -u']):
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.stdout.strip() == '0':
            return command
    raise OSError('nobody became root')
attempt(become)
""",
    "capabilities": """
attempt(lambda: checked(libc.prctl(47, 2, 21, 0, 0)))
attempt(lambda: checked(libc.prctl(24, 21, 0, 0, 0)))
""",
    "inherited descriptors": """
for fd in range(4, 64):
    attempt(lambda: os.fstat(fd))
""",
    "the kernel's switches": """
for path in ('/proc/sys/kernel/core_pattern', '/proc/sysrq-trigger', '/proc/sys/user/max_user_namespaces'):
    attempt(lambda: open(path, 'w'))
""",
    "control groups": "attempt(lambda: os.listdir('/sys/fs/cgroup'))",
    "typing into the terminal": """
import fcntl
attempt(lambda: fcntl.ioctl(0, 0x5412, b'x')); attempt(lambda: open('/dev/tty', 'r+'))
""",
    "limits of its own": """
import resource
def raised():
    try:
        resource.setrlimit(resource.RLIMIT_NPROC, (1 << 30, 1 << 30))
    except ValueError as error:
        raise OSError(str(error))
attempt(raised)
""",
    "priority": """
attempt(lambda: os.nice(-5))
attempt(lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50)))
""",
}

HOST_FILES = {
    "passwords": "attempt(lambda: open('/etc/passwd').read()); attempt(lambda: open('/etc/shadow').read())",
    "homes": "attempt(lambda: os.listdir('/root')); attempt(lambda: os.listdir('/home'))",
    "the checkout": f"attempt(lambda: os.listdir({str(Path(__file__).parents[2])!r}))",
    "the launcher's folder": f"attempt(lambda: os.listdir({str(Path.cwd())!r}))",
    "sockets of services": "attempt(lambda: os.listdir('/run')); attempt(lambda: os.listdir('/var'))",
    "memory of the machine": """
for path in ('/dev/mem', '/dev/kmem', '/proc/kcore', '/dev/kmsg', '/dev/sda', '/dev/vda', '/dev/fuse', '/dev/kvm'):
    attempt(lambda: open(path, 'rb').read(1))
""",
}

NETWORK = {
    "IPv4": "import socket\nattempt(lambda: socket.create_connection(('127.0.0.1', PORT), timeout=1))",
    "IPv6": "import socket\nattempt(lambda: socket.socket(socket.AF_INET6).connect(('::1', PORT)))",
    "UDP": """
import socket
attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('1.1.1.1', 53)))
""",
    "names": "import socket\nattempt(lambda: socket.getaddrinfo('example.com', 80))",
    "raw packets": "import socket\nattempt(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))",
    "netlink": "import socket\nattempt(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))",
    "the hypervisor": "import socket\nattempt(lambda: socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM))",
    "the kernel's cryptography": "import socket\nattempt(lambda: socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET))",
    "an abstract unix socket": "import socket\nattempt(lambda: socket.socket(socket.AF_UNIX).connect(NAME))",
}

PROCESSES = {
    "ptrace of pid 1": "attempt(lambda: syscall('ptrace', 16, 1, 0, 0))",
    "ptrace of a sibling": """
child = os.fork()
if child == 0:
    import time; time.sleep(30)
attempt(lambda: syscall('ptrace', 16, child, 0, 0)); attempt(lambda: syscall('ptrace', 0x4206, child, 0, 0))
""",
    "reading the memory of pid 1": """
place = (ctypes.c_size_t * 2)(0x400000, 8)
attempt(lambda: syscall('process_vm_readv', 1, ctypes.addressof(place), 1, ctypes.addressof(place), 1, 0))
attempt(lambda: syscall('process_vm_writev', 1, ctypes.addressof(place), 1, ctypes.addressof(place), 1, 0))
""",
    "the memory of pid 1 as a file": """
attempt(lambda: open('/proc/1/mem', 'r+b'))
attempt(lambda: open('/proc/1/maps').read())
""",
    "descriptors of pid 1": """
attempt(lambda: os.listdir('/proc/1/fd')); attempt(lambda: os.open('/proc/1/fd/4', os.O_WRONLY))
pidfd = os.pidfd_open(1)
attempt(lambda: syscall('pidfd_getfd', pidfd, 4, 0)); attempt(lambda: syscall('kcmp', 1, os.getpid(), 0, 4, 4))
""",
    "limits and priority of pid 1": """
import resource
attempt(lambda: resource.prlimit(1, resource.RLIMIT_CPU, (0, 0)))
attempt(lambda: os.setpriority(os.PRIO_PROCESS, 1, 19)); attempt(lambda: os.setpriority(os.PRIO_USER, 0, 19))
attempt(lambda: os.sched_setaffinity(1, {0})); attempt(lambda: syscall('ioprio_set', 1, 1, 3 << 13))
attempt(lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0)))
""",
    "the environment of pid 1": """
attempt(lambda: open('/proc/1/environ').read())
attempt(lambda: open('/proc/1/auxv').read())
""",
    "signals to pid 1": """
import signal
for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    os.kill(1, number)
print('refused' if open('/proc/1/stat').read().split()[2] in 'SR' else 'BROKEN')
""",
}


@pytest.mark.parametrize("program", named(ESCAPES))
def test_nothing_leaves_the_sandbox(pool, program):
    refused(pool, program)


@pytest.mark.parametrize("program", named(HOST_FILES))
def test_the_hosts_files_are_not_there(pool, program):
    refused(pool, program)


@pytest.mark.parametrize("program", named(PROCESSES))
def test_other_processes_are_shielded(pool, program):
    refused(pool, program)


@pytest.fixture(scope="module")
def listeners():
    """A TCP and an abstract unix socket of the host, as head of a program. Nobody may reach them."""
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        name = f"\0rufus-attack-{os.getpid()}"
        unix.bind(name)
        unix.listen()
        yield f"PORT, NAME = {tcp.getsockname()[1]}, {name!r}\n"
        for listener in (tcp, unix):
            listener.setblocking(False)
            with pytest.raises(BlockingIOError):
                listener.accept()


@pytest.mark.parametrize("program", named(NETWORK))
def test_there_is_no_network(pool, listeners, program):
    refused(pool, listeners + program)


IN_A_SESSION = {  # a program, and what a session tells of it
    "loopback": (
        "server = socket.create_server(('127.0.0.1', 0))\nsocket.create_connection(server.getsockname())",
        "exit 0",
    ),
    "tcp": ("socket.create_connection(('127.0.0.1', PORT), timeout=1)", "ConnectionRefusedError"),
    "abstract": ("socket.socket(socket.AF_UNIX).connect(NAME)", "ConnectionRefusedError"),
    "packet": ("socket.socket(socket.AF_PACKET, socket.SOCK_RAW)", "Address family not supported"),
    "namespace": ("import subprocess\nsubprocess.run(['unshare', '--user', 'true'], check=True)", "not permitted"),
    "interrupt": ("import os\nfor number in range(1, 32): os.kill(1, number)\nos.kill(-1, 2)", "exit 1"),
    "after": ("print('alive')", "alive"),
}


def test_a_session_has_a_loopback_of_its_own_and_no_other_network(listeners):
    require_isolation()
    files = {f"{name}.py": f"{listeners}import socket\n{program}" for name, (program, _) in IN_A_SESSION.items()}
    with TerminalGym(SETTINGS, LocalSessions()) as gym:
        terminal = gym.open(terminal_problem("Do it.", files, {"test.sh": "true"}, "test"))
        try:
            for name, (_, told) in IN_A_SESSION.items():
                assert told in run(terminal, f"python3 {name}.py").content
        finally:
            terminal.cleanup()


def test_the_launchers_environment_and_command_line_are_nowhere(monkeypatch):
    require_isolation()
    monkeypatch.setenv("RUFUS_SECRET", "do-not-tell")
    program = """
import glob, os
for path in glob.glob('/proc/[0-9]*/*'):
    if path.rpartition('/')[2] in ('environ', 'cmdline', 'comm', 'stat', 'status', 'maps', 'mountinfo', 'cgroup'):
        try:
            print(open(path, errors='replace').read())
        except OSError:
            pass
print(os.environ, os.uname())
"""
    with InterpreterPool(1) as fresh:
        told = fresh.run(program).stdout
    assert "LANG" in told
    assert "do-not-tell" not in told


def test_two_sandboxes_do_not_see_each_other(pool):
    with InterpreterPool(1) as other, tempfile.NamedTemporaryFile(prefix="rufus-canary-") as canary:
        assert (
            other.run("import socket\nsocket.socket(socket.AF_UNIX).bind('\\0name')\nopen('/dev/shm/x', 'w')").status
            == "ok"
        )
        refused(pool, f"attempt(lambda: open({canary.name!r})); attempt(lambda: open('/dev/shm/x'))")
