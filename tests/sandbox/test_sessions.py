"""Sessions over prepared trees: what they begin with, what persists, and what no other session or tree ever sees."""

import hashlib
import os
import signal
import stat
import threading
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rufus_core.data.harbor import HarborError
from rufus_core.errors import InfrastructureError
from rufus_core.ports.sessions import PreparedTree
from rufus_core.sandbox import sessions as module
from rufus_core.sandbox.sessions import LocalSessions, overlay_refusal
from rufus_core.sandbox.trees import TreeStore, tree_digest
from tests.sandbox.attacks import footprint
from tests.sandbox.real import require_isolation

FILES = {"a.txt": "apple\n", "sub/b.txt": "bread\n", "run.sh": "#!/bin/sh\necho ran\n", "empty/": ""}
TREE = PreparedTree("/app", FILES)


@pytest.fixture(scope="module", params=["overlay", "copies"])
def sessions(request):
    require_isolation()
    if request.param == "overlay" and (refusal := overlay_refusal()):
        pytest.skip(f"no overlay here: {refusal}")
    with LocalSessions(copies=request.param == "copies") as sessions:
        yield sessions


@pytest.fixture
def opened(sessions):
    held = []

    def open_session(tree=TREE):
        held.append(sessions.open(tree))
        return held[-1]

    yield open_session
    for session in held:
        session.close()


def told(session, command):
    result = session.run(command, 10.0)
    assert (result.status, result.exit_code, result.stderr) == ("exited", 0, ""), result
    return result.stdout


def supervisor(session):
    """Process 1 of a session's sandbox, as the host sees it."""
    return psutil.Process(session._sandbox._process.pid).children(recursive=True)[-1]


def test_a_session_begins_with_its_tree(opened):
    session = opened()
    assert told(session, "pwd; ls; cat a.txt sub/b.txt; ./run.sh; ls -A empty").split() == [
        *("/app", "a.txt", "empty", "run.sh", "sub", "apple", "bread", "ran")
    ]
    assert session.read("/app/a.txt", 3) == b"app"


def test_the_tree_lies_wherever_the_task_works(opened):
    for workdir in ("/home/user/project", "/workspace"):
        assert told(opened(PreparedTree(workdir, FILES)), "pwd; cat sub/b.txt") == f"{workdir}\nbread\n"


def test_its_files_are_the_sessions_own_GYM_18(opened):
    session = opened()
    told(session, "chmod 700 a.txt sub; echo more >> a.txt; mv sub other; rm -r run.sh empty; ln -s a.txt link")
    assert told(session, "cat a.txt; ls -1 . other; stat -c %a a.txt other") == (
        "apple\nmore\n.:\na.txt\nlink\nother\n\nother:\nb.txt\n700\n700\n"
    )


def test_no_session_sees_anothers_changes(opened):
    first, second = opened(), opened()
    told(first, "rm -r sub; echo mine > a.txt; touch /tmp/x; (sleep 300 &) > /dev/null 2>&1")
    assert told(second, "cat a.txt sub/b.txt; ls /tmp; cat /proc/[0-9]*/comm | grep -c sleep || true") == (
        "apple\nbread\n0\n"
    )
    assert told(opened(), "cat a.txt; ls -A /tmp") == "apple\n"


def test_sessions_open_from_several_threads_at_once(sessions):
    trees = [PreparedTree("/app", {"n": str(place % 3)}) for place in range(9)]
    answers = {}

    def work(place):
        session = sessions.open(trees[place])
        answers[place] = told(session, f"cat n; echo changed{place} > n")
        session.close()

    threads = [threading.Thread(target=work, args=(place,)) for place in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {place: str(place % 3) for place in range(9)}


@pytest.mark.parametrize("path", ["../x", "/x", "a/../../x", "a/./b", "", ".", "x\0y"])
def test_paths_that_leave_the_tree_are_refused(sessions, opened, path):
    with pytest.raises(HarborError):
        sessions.open(PreparedTree("/app", {path: "x"}))
    with pytest.raises(HarborError):
        opened().upload("/tests", {path: "x"})


def test_files_that_contradict_each_other_are_told(sessions):
    with pytest.raises(InfrastructureError, match="can't be written"):
        sessions.open(PreparedTree("/app", {"a": "x", "a/b": "y"}))


def test_a_command_runs_once_and_its_end_has_a_name(opened):
    session = opened()
    slow = session.run("echo x >> times; sleep 60", 0.3)
    assert slow.status == "timeout"
    assert told(session, "cat times") == "x\n"
    assert session.run("exit 3", 5.0).exit_code == 3
    assert "bytes omitted]" in session.run("seq 100000", 5.0, output_bytes=1000).stdout


def test_a_lost_sandbox_is_told_and_its_command_is_not_sent_again(opened):
    """CA-R3: a sandbox that is lost under a command aborts the episode."""
    session, other = opened(), opened()
    told(session, "mkfifo /tmp/gate")
    first = supervisor(session)

    def kill_under_a_command():
        while not first.children():
            pass
        first.kill()

    threading.Thread(target=kill_under_a_command).start()
    with pytest.raises(InfrastructureError, match="ended"):
        session.run("cat /tmp/gate", 30.0)
    with pytest.raises(InfrastructureError):
        session.run("true", 5.0)
    assert told(other, "cat a.txt") == "apple\n"


def test_a_sandbox_that_does_not_end_by_itself_is_killed(opened):
    session = opened()
    stuck = supervisor(session)
    family = [*stuck.parents()[:1], stuck]
    stuck.send_signal(signal.SIGSTOP)
    session.close()
    assert not any(process.is_running() for process in family)


def test_upload_replaces_a_folder_and_says_what_may_run(opened):
    session = opened()
    told(session, "mkdir -p /tests/old; echo 1 > /tests/old/x")
    assert session.upload("/tests", {"test.sh": "#!/bin/sh\necho tested\n", "data/x": "1", "out/": ""}) == ""
    assert told(session, "/tests/test.sh; ls /tests; test -x /tests/data/x || echo plain") == (
        "tested\ndata\nout\ntest.sh\nplain\n"
    )


def test_what_is_no_regular_file_is_not_read(opened):
    session = opened()
    told(session, "ln -s a.txt link; ln -s sub way; mkfifo pipe; (cat a.txt > pipe &) 2> /dev/null")
    for name in ("link", "way/b.txt", "pipe", "sub", "none", "a.txt/x", "../app/none"):
        assert session.read(f"/app/{name}", 100) is None, name
    assert session.read("/dev/null", 100) is None
    assert session.read("/app/sub/b.txt", 100) == b"bread\n"


def test_close_leaves_no_process_folder_or_descriptor():
    require_isolation()
    overlay_refusal()
    before = footprint()
    with LocalSessions() as sessions:
        folder = Path(sessions._folder.name)
        held = [sessions.open(TREE) for _ in range(3)]
        told(held[0], "(sleep 300 &) > /dev/null 2>&1; echo x > new")
        held[0].close()
        held[0].close()
        launcher = psutil.Process(held[1]._sandbox._process.pid)
        family = [launcher, *launcher.children(recursive=True)]
    assert not any(process.is_running() for process in family)
    assert not folder.exists()
    assert footprint() == before


def test_a_tree_is_written_once_whatever_the_sessions_do_to_it():
    require_isolation()
    if refusal := overlay_refusal():
        pytest.skip(f"no overlay here: {refusal}")
    written = set()
    with LocalSessions() as sessions:
        for _ in range(2):
            session = sessions.open(TREE)
            (tree,) = Path(sessions._folder.name, "trees").iterdir()
            told(session, "rm -rf /app/* && echo other > a.txt && chmod 777 a.txt")
            session.close()
            assert {str(path.relative_to(tree)): path.read_text() for path in tree.rglob("*") if path.is_file()} == {
                path: text for path, text in FILES.items() if text
            }
            assert stat.S_IMODE((tree / "a.txt").stat().st_mode) == 0o644
            written |= {(path.name, path.stat().st_ino, path.stat().st_ctime_ns) for path in tree.rglob("*")}
    assert len(written) == len(FILES) + 1  # with the folder `sub`


def test_without_an_overlay_sessions_copy_and_doctor_says_why(monkeypatch):
    from rufus_core.cli.doctor import _sessions

    require_isolation()

    def refuse(*arguments, **named):
        raise InfrastructureError("the sandbox did not boot: Can't make overlay mount")

    overlay_refusal.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(module, "Sandbox", refuse)
        check = _sessions()
    try:
        assert (check.ok, check.required) == (False, False)
        assert "Can't make overlay mount" in check.detail
        with LocalSessions() as sessions:
            assert not sessions.overlay
            session = sessions.open(TREE)
            assert told(session, "cat a.txt; stat -f -c %T /app") == "apple\ntmpfs\n"
    finally:
        overlay_refusal.cache_clear()


NAMES = st.lists(st.sampled_from(["a", "b", "c.py", "ü", "d e"]), min_size=1, max_size=3).map("/".join)
TREES = st.dictionaries(NAMES, st.text(max_size=20), max_size=5)


@given(TREES, TREES)
def test_only_equal_trees_have_one_digest(one, other):
    assert (tree_digest(one) == tree_digest(other)) == (one == other)
    assert tree_digest(dict(reversed(one.items()))) == tree_digest(one)


def test_a_digest_tells_paths_from_texts():
    assert tree_digest({"a": "b"}) != tree_digest({"ab": ""}) != tree_digest({"": "ab"})
    assert len(tree_digest({})) == 2 * hashlib.sha256().digest_size


def test_idle_trees_beyond_the_last_used_are_deleted(tmp_path):
    store = TreeStore(tmp_path / "trees", keep=2)
    names = [store.take({"n": str(place)}, os.geteuid()) for place in range(4)]
    assert len([*(tmp_path / "trees").iterdir()]) == 4  # all in use
    for name in names:
        store.give_back(name)
    assert {path.name for path in (tmp_path / "trees").iterdir()} == set(names[2:])
    assert store.take({"n": "0"}, os.geteuid()) == names[0]
    assert (store[names[0]].folder / "n").read_text() == "0"


def test_the_umask_has_no_say_in_a_tree(tmp_path):
    before = os.umask(0o077)
    try:
        store = TreeStore(tmp_path / "trees")
        folder = store[store.take({"d/e/f": "x", "d/g": "#!"}, os.geteuid())].folder
    finally:
        os.umask(before)
    modes = [oct((folder / name).stat().st_mode)[-3:] for name in ("d", "d/e", "d/e/f", "d/g")]
    assert modes == ["755", "755", "644", "755"]
