"""Harbor task directories: the round trip, and the structural filter (CA-D2, CA-D4)."""

import json

import pytest

from rufus_core.data.generators import terminal_problems
from rufus_core.data.harbor import HarborError, HarborFault, read_harbor, terminal_problem, write_harbor
from tests.sandbox.real import shared_file

TASK = {
    "instruction.md": "Do it.\n",
    "environment/Dockerfile": "FROM debian\nWORKDIR /app\nCOPY data/ .\nCOPY one.txt named.txt\n",
    "environment/data/a/b.txt": "b",
    "environment/one.txt": "1",
    "tests/test.sh": "#!/bin/sh\ntrue\n",
    "tests/more/check.txt": "x",
}


def lay(folder, **changes):
    for name, text in {**TASK, **changes}.items():
        if text is not None:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def test_a_directory_is_read_CA_D4(tmp_path):
    problem = read_harbor(lay(tmp_path))
    assert problem.prompt[0].content == "Do it."
    assert [tool.name for tool in problem.tools] == ["execute_command"]
    assert problem.ground_truth == {
        "workdir": "/app",
        "files": {"a/b.txt": "b", "named.txt": "1"},
        "tests": {"test.sh": "#!/bin/sh\ntrue\n", "more/check.txt": "x"},
    }


def test_generated_problems_survive_the_round_trip(tmp_path):
    for index, problem in enumerate(terminal_problems.problems(0, 40, {})):
        write_harbor(problem, tmp_path / str(index))
        assert read_harbor(tmp_path / str(index)) == problem


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"instruction.md": None}, HarborFault.MISSING_FILE),
        ({"tests/test.sh": None}, HarborFault.MISSING_FILE),
        ({"environment/Dockerfile": None}, HarborFault.MISSING_FILE),
        ({"environment/one.txt": None}, HarborFault.MISSING_FILE),
        ({"environment/docker-compose.yaml": "services: {}"}, HarborFault.MULTI_CONTAINER),
        ({"environment/one.txt": b"\xff\xfe"}, HarborFault.UNSUPPORTED_FILE),
        ({"environment/one.txt": b"x" * (1 << 21)}, HarborFault.UNSUPPORTED_FILE),
        ({"task.toml": "verifier = 3"}, HarborFault.BAD_TASK_TOML),
        ({"task.toml": "= ="}, HarborFault.BAD_TASK_TOML),
        ({"task.toml": "[verifier]\ntimeout_sec = 'soon'"}, HarborFault.BAD_TASK_TOML),
    ],
)
def test_unfit_tasks_are_dropped_with_a_reason_CA_D2(tmp_path, changes, fault):
    with pytest.raises(HarborError) as caught:
        read_harbor(lay(tmp_path, **changes))
    assert caught.value.fault is fault


@pytest.mark.parametrize(
    ("dockerfile", "fault"),
    [
        ("FROM debian\nWORKDIR /app\nRUN apt-get update\n", HarborFault.UNSUPPORTED_DOCKERFILE),
        ("FROM debian\nWORKDIR /app\nENV A=b\n", HarborFault.UNSUPPORTED_DOCKERFILE),
        ("FROM a\nFROM b\nWORKDIR /app\n", HarborFault.UNSUPPORTED_DOCKERFILE),
        ("FROM a\nWORKDIR /app\nCOPY --from=b one.txt .\n", HarborFault.UNSUPPORTED_DOCKERFILE),
        ("FROM a\nWORKDIR /app\nCOPY one.txt /etc/passwd\n", HarborFault.UNSUPPORTED_DOCKERFILE),
        ("FROM a\nWORKDIR /app\nCOPY one.txt ../x\n", HarborFault.UNSUPPORTED_DOCKERFILE),
        ("FROM a\nWORKDIR /usr/lib\n", HarborFault.UNSUPPORTED_DOCKERFILE),
        ("FROM a\nWORKDIR /\n", HarborFault.UNSUPPORTED_DOCKERFILE),
        ("FROM a\n", HarborFault.UNSUPPORTED_DOCKERFILE),
        ("FROM a\nWORKDIR /app\nCOPY ../secret .\n", HarborFault.UNSAFE_PATH),
        ("FROM a\nWORKDIR /app\nCOPY missing .\n", HarborFault.MISSING_FILE),
    ],
)
def test_what_a_local_backend_can_not_build_is_dropped_CA_D2(tmp_path, dockerfile, fault):
    with pytest.raises(HarborError) as caught:
        read_harbor(lay(tmp_path, **{"environment/Dockerfile": dockerfile}))
    assert caught.value.fault is fault


def test_copy_of_a_whole_folder_and_of_single_files(tmp_path):
    dockerfile = '# comment\nFROM a\nWORKDIR /srv\nWORKDIR app\nCOPY . /srv/app/all\nCOPY ["one.txt", \\\n "sub/"]\n'
    files = read_harbor(lay(tmp_path, **{"environment/Dockerfile": dockerfile})).ground_truth["files"]
    assert files == {"all/data/a/b.txt": "b", "all/one.txt": "1", "sub/one.txt": "1"}


@pytest.mark.parametrize("name", ["environment/one.txt", "tests/extra.sh", "instruction.md"])
def test_links_are_refused(tmp_path, name):
    (tmp_path / "secret").write_text("secret")
    folder = lay(tmp_path / "task", **{name: None})
    (folder / name).symlink_to(tmp_path / "secret")
    with pytest.raises(HarborError) as caught:
        read_harbor(folder)
    assert caught.value.fault is HarborFault.UNSAFE_PATH


@pytest.mark.parametrize("path", ["../x", "/x", "a/../../x", "", ".", "a//b", "a/./b", "a\0b"])
def test_paths_of_problems_stay_below_their_folder(path):
    with pytest.raises(HarborError) as caught:
        terminal_problem("Do it.", {path: ""}, {"test.sh": "true"}, "test")
    assert caught.value.fault is HarborFault.UNSAFE_PATH


def test_real_tasks_are_read_or_dropped_with_a_reason(tmp_path):
    rows = [json.loads(line) for line in shared_file("harbor_tasks/endless_terminals_instructions.jsonl").open()]
    assert rows
    for row in rows:
        folder = tmp_path / row["task"]
        parts = {"instruction.md": row["instruction"], "task.toml": row["task_toml"]}
        lay(folder, **{**dict.fromkeys(TASK), **parts})
        with pytest.raises(HarborError) as caught:  # the set holds the texts, not the images
            read_harbor(folder)
        assert caught.value.fault is HarborFault.MISSING_FILE
        image = {
            "environment/Dockerfile": "FROM ubuntu:22.04\nWORKDIR /home/user\n",
            "tests/test.sh": TASK["tests/test.sh"],
        }
        problem = read_harbor(lay(folder, **{**dict.fromkeys(TASK), **parts, **image}))
        assert problem.prompt[0].content == row["instruction"].strip()
        assert problem.ground_truth["verifier_timeout_seconds"] > 0
