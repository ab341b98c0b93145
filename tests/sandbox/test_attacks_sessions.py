"""Commands that try to leave a session, to change what others begin with, to use the machine up, or to be paid."""

import threading
from pathlib import Path

import psutil
import pytest

from rufus_core.data.generators.terminal_problems import terminal_problem
from rufus_core.gym.terminal import TerminalGym
from rufus_core.ports.sessions import PreparedTree
from rufus_core.sandbox.sessions import LocalSessions, overlay_refusal
from rufus_core.settings import ToolSettings
from rufus_core.types import Episode, Termination, ToolCall
from tests.sandbox.attacks import MAX_PROCESSES, MEMORY_BYTES, PRELUDE, named
from tests.sandbox.real import require_isolation
from tests.sandbox.test_attacks_escape import ESCAPES, HOST_FILES, PROCESSES

SETTINGS = ToolSettings(tool_call_limit_train=3, tool_call_limit_eval=3, result_tokens=256, command_timeout_seconds=5.0)
FILES = {"a.txt": "apple\n", "sub/b.txt": "bread\n", "run.sh": "#!/bin/sh\necho ran\n"}
TREE = PreparedTree("/app", FILES)
CHECK = "cat a.txt sub/b.txt && ./run.sh && ls -A | tr '\\n' ' '"
INTACT = "apple\nbread\nran\na.txt run.sh sub "


@pytest.fixture(scope="module", params=["overlay", "copies"])
def sessions(request):
    require_isolation()
    if request.param == "overlay" and (refusal := overlay_refusal()):
        pytest.skip(f"no overlay here: {refusal}")
    copies = request.param == "copies"
    with LocalSessions(memory_bytes=MEMORY_BYTES, max_processes=MAX_PROCESSES, copies=copies) as sessions:
        yield sessions


@pytest.fixture
def attacked(sessions):
    """A session to attack. Another one, open all the while, and one that is opened afterwards see nothing of it."""
    neighbour, session = sessions.open(TREE), sessions.open(TREE)
    launcher = psutil.Process(session._sandbox._process.pid)
    yield session
    inside = launcher.children(recursive=True) if launcher.is_running() else []
    session.close()
    assert not psutil.wait_procs(inside, timeout=10)[1]
    assert neighbour.run(CHECK, 10.0).stdout == INTACT
    neighbour.close()
    following = sessions.open(TREE)
    assert following.run(CHECK, 10.0).stdout == INTACT
    following.close()


@pytest.mark.parametrize("program", named(ESCAPES | HOST_FILES | PROCESSES))
def test_what_a_program_may_not_do_a_command_may_not(attacked, program):
    assert attacked.upload("/tests", {"attack.py": PRELUDE + program}) == ""
    result = attacked.run("cd /tmp && python3 /tests/attack.py < /dev/null", 10.0)
    assert (result.status, result.exit_code, result.stderr) == ("exited", 0, ""), result
    lines = result.stdout.splitlines()
    assert lines
    assert all(line.startswith("refused") for line in lines), lines


def mark(path, name, value):
    """A command that gives a file an extended attribute."""
    return f'touch t && python3 -c "import os; os.setxattr({path!r}, {name!r}, {value})"'


REFUSED = {
    "a mount": "mount -t tmpfs none /tmp",
    "another overlay": "mount -t overlay -o lowerdir=/usr,upperdir=/tmp,workdir=/logs none /app",
    "removing the mount": "umount /app",
    "remounting": "mount -o remount,size=100G /app",
    "a user namespace": "unshare --user --map-root-user true",
    "chroot": "/usr/sbin/chroot /app /bin/true",
    "a device": "mknod disk b 254 0",
    "a device where the tests go": "mknod /tests/null c 1 3",
    "becoming root": "setpriv --reuid 0 true",
    "a setuid program": "cp /usr/bin/setpriv s && chmod 6755 s && ./s --reuid 0 true",
    "capabilities of a file": mark("t", "security.capability", "b'\\1\\0\\0\\2' + b'\\1' * 16"),
    "marks of the overlay": mark("sub", "trusted.overlay.redirect", "b'/'"),
    "the layers' folders": "for d in $(grep -o 'dir=[^,]*' /proc/mounts); do ls ${d#dir=} && exit; done; false",
    "giving a file away": "chown 0 a.txt",
    "removing the working directory": "rm -rf /app && test ! -e /app",
    "moving the working directory": "mv /app /elsewhere",
}


@pytest.mark.parametrize("command", named(REFUSED))
def test_a_session_is_refused(attacked, command):
    result = attacked.run(command, 10.0)
    assert result.status == "exited"
    assert result.exit_code != 0
    assert "not found" not in result.stderr  # the command itself


LOWER = {
    "overwriting": "echo other > a.txt; echo more >> sub/b.txt",
    "in place": "python3 -c \"import os; os.pwrite(os.open('a.txt', os.O_RDWR), b'other', 0)\"",
    "mapped": """python3 -c "
import mmap
with open('a.txt', 'r+b') as file:
    mmap.mmap(file.fileno(), 0)[:5] = b'other'
" """,
    "through a descriptor that was opened to read": "exec 4< a.txt; echo other > /proc/self/fd/4; cat a.txt",
    "a hard link": "ln a.txt other; echo other > other",
    "truncating": ": > a.txt; truncate -s 0 sub/b.txt",
    "modes": "chmod 0 a.txt sub run.sh",
    "times": "touch -d @0 a.txt sub",
    "attributes": mark("sub", "user.overlay.opaque", "b'y'") + "; true",
    "removing": "rm -rf /app/*",
    "a whiteout of its own": "rm a.txt; mkdir a.txt; touch .wh.sub",
    "another folder in its place": "mv sub old; mkdir sub; ln -s /etc sub/x",
    "a link in its place": "rm -r sub; ln -s / sub",
}


@pytest.mark.parametrize("command", named(LOWER))
def test_the_tree_stays_as_it_is(attacked, command):
    before = attacked.run(CHECK, 10.0).stdout
    result = attacked.run(command, 10.0)
    assert (before, result.status, result.exit_code) == (INTACT, "exited", 0), result


FILLING = {
    "the working directory": "for n in $(seq 100); do head -c 64M /dev/zero > f$n || exit 7; done",
    "one growing file of the tree": "while :; do head -c 16M /dev/zero >> a.txt || exit 7; done",
    "/tmp": "cd /tmp; for n in $(seq 100); do head -c 64M /dev/zero > f$n || exit 7; done",
    "/dev/shm": "cd /dev/shm; for n in $(seq 100); do head -c 64M /dev/zero > f$n || exit 7; done",
}


@pytest.mark.parametrize("command", named(FILLING))
def test_memory_for_files_has_an_end_and_the_session_goes_on(attacked, command):
    result = attacked.run(command, 60.0)
    assert (result.status, result.exit_code) == ("exited", 7), result
    assert "No space left" in result.stderr
    used = attacked.run("df --output=used -B1 /app /tmp /dev/shm | tail -n 3", 10.0)
    assert all(int(size) <= MEMORY_BYTES // 2 for size in used.stdout.split())
    assert (
        attacked.run("rm -f f* /tmp/f* /dev/shm/f* a.txt && echo apple > a.txt && cat a.txt", 10.0).stdout == "apple\n"
    )


EXHAUSTING = {
    "a fork bomb": ("process_limit", "f() { f | f & }; f; while :; do :; done"),
    "sleepers": ("process_limit", "for n in $(seq 500); do sleep 300 & done; wait"),
    "memory": ("memory", "python3 -c 'x = [bytearray(1 << 20) for _ in range(1 << 20)]; input()'"),
    "memory of many": (
        "memory",
        "for n in 1 2 3 4 5 6; do python3 -c 'import time; x = b\"x\" * (100 << 20); time.sleep(300)' & done; wait",
    ),
}


@pytest.mark.parametrize("attack", named(EXHAUSTING))
def test_limits_of_a_session_have_a_name_and_the_session_goes_on(attacked, attack):
    status, command = attack
    assert attacked.run(command, 60.0).status == status
    assert attacked.run("cat a.txt", 10.0).stdout == "apple\n"


def test_a_bomb_in_one_session_leaves_its_neighbours_their_processes(sessions):
    bombed, neighbour = sessions.open(TREE), sessions.open(TREE)
    bomb = threading.Thread(target=bombed.run, args=("f() { f | f & }; f; while :; do :; done", 60.0))
    bomb.start()
    result = neighbour.run("for n in $(seq 200); do /bin/true || exit 1; done; echo done", 60.0)
    bomb.join()
    assert (result.status, result.stdout) == ("exited", "done\n")
    for session in (bombed, neighbour):
        session.close()


def test_a_daemon_stays_over_commands_and_ends_with_the_session_GYM_18(attacked):
    program = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open('/tmp/pid', 'w').write(f'{os.getpid()} ')
        time.sleep(300)
"""
    attacked.upload("/tests", {"daemon.py": program})
    attacked.run("python3 /tests/daemon.py > /dev/null 2>&1; until grep -q ' ' /tmp/pid; do :; done", 10.0)
    attacked.run("setsid nohup sleep 300 > /dev/null 2>&1 & echo $! >> /tmp/pid", 10.0)
    assert attacked.run("kill -0 $(cat /tmp/pid) && wc -w < /tmp/pid", 10.0).stdout == "2\n"


UPLOADS = {
    "a folder of the way is a link": "mkdir /tests; rm -rf /tests/data; ln -s /app /tests/data",
    "a file of the way": "touch /tests/data",
    "a pipe in a file's place": "mkdir -p /tests/data; mkfifo /tests/data/x",
    "a closed folder": "mkdir -p /tests/data/x/y; chmod 0 /tests/data/x /tests/data",
    "a link to what is not there": "mkdir -p /tests/data; ln -s /none /tests/data/x",
    "a loop": "ln -s data /tests/data",
    "a deep tree": "cd /tests; for n in $(seq 300); do mkdir d; cd d; done",
    "odd names": "cd /tests; touch -- -rf $'a\\nb' $'\\xff' ' '",
}


@pytest.mark.parametrize("command", named(UPLOADS))
def test_what_is_uploaded_lies_where_it_should(attacked, command):
    attacked.run(command, 20.0)
    assert attacked.upload("/tests", {"data/x": "x\n", "test.sh": "y\n"}) == ""
    result = attacked.run("cat /tests/data/x /tests/test.sh; ls -A /tests; test -L /tests/data || ls -A /app", 10.0)
    assert result.stdout.split() == ["x", "y", "data", "test.sh", "a.txt", "run.sh", "sub"]


def test_a_folder_full_to_the_brim_is_emptied_before_an_upload(attacked):
    attacked.run("head -c 1G /dev/zero > /tests/x; cd /tests; for n in $(seq 2000); do : > f$n; done", 30.0)
    assert attacked.upload("/tests", {"test.sh": "x"}) == ""


def test_an_upload_that_is_raced_ends_with_a_reason_or_in_its_place(attacked):
    attacked.run("(while :; do ln -sfn /app /tests/data; done) > /dev/null 2>&1 &", 10.0)
    for _ in range(20):
        reason = attacked.upload("/tests", {"data/x": "x", "data/y": "y"})
        assert reason == "" or "/tests" in reason


# Each is run by the policy before a test that fails, and none is paid.
UNPAID = {
    "reading tests that are not there yet": "cat /tests/* /logs/verifier/* && cp -r /tests /app/seen",
    "a reward of its own": "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; chmod 444 /logs/verifier/*",
    "a link for the logs": "mkdir v; echo 1 > v/reward.txt; rm -rf /logs/verifier; ln -s /app/v /logs/verifier",
    "a shell of its own": "printf '#!/bin/sh\\nexit 0' > sh; chmod +x sh; cp sh bash; export PATH=/app:$PATH",
    "a profile": "for f in .bashrc .bash_profile .profile; do echo 'exit 0' > ~/$f; done; export BASH_ENV=~/.profile",
    "killing": "kill -9 -1; kill -9 1",
    "leaving": "exit 0",
}


@pytest.mark.parametrize("command", named(UNPAID))
@pytest.mark.parametrize("test", ["false", "echo 0 > /logs/verifier/reward.txt", "#!/bin/bash\nexit 1"])
def test_no_command_is_paid_for_tests_that_fail_CA_R1(sessions, command, test):
    gym = TerminalGym(SETTINGS, sessions)
    problem = terminal_problem("Do it.", FILES, {"test.sh": test}, "test")
    terminal = gym.open(problem)
    terminal.call(ToolCall(name="execute_command", arguments={"command": command}))
    verdict = terminal.score(Episode(problem, [], Termination.TASK_COMPLETE))
    terminal.cleanup()
    assert (verdict.score, verdict.passed, verdict.counts) == (0.0, False, True)


REWARDS = {
    "a pipe that is written to": "rm -f reward.txt; mkfifo reward.txt; (echo 1 > reward.txt &)",
    "a link to a reward": "echo 1 > /app/one; ln -sf /app/one reward.txt",
    "a folder of the way is a link": "echo 1 > /app/reward.txt; cd /; rm -r /logs/verifier; ln -s /app /logs/verifier",
    "a device": "ln -sf /dev/zero reward.txt",
    "a folder": "mkdir reward.txt",
    "a large file": "yes 1 | head -c 10000000 > reward.txt",
    "no number": "echo 1e9999999 > reward.txt",
}


@pytest.mark.parametrize("command", named(REWARDS))
def test_no_reward_is_read_from_what_is_no_file_with_a_number(sessions, command):
    problem = terminal_problem("Do it.", {}, {"test.sh": f"cd /logs/verifier # reward.txt\n{command}\n"}, "test")
    terminal = TerminalGym(SETTINGS, sessions).open(problem)
    verdict = terminal.score(Episode(problem, [], Termination.TASK_COMPLETE))
    terminal.cleanup()
    assert (verdict.score, verdict.passed) == (0.0, False)


def test_trees_lie_where_no_other_user_reads_them(sessions):
    folder = Path(sessions._folder.name)
    assert folder.stat().st_mode & 0o077 == 0
