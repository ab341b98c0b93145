"""Where the `rufus` command starts: a real process, interrupted while it still imports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENTRY = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["rufus"]
SCRIPT = "from {} import {} as main; main()".format(*ENTRY.split(":"))  # as an installer writes it
SLOW = """
import time
print("importing", flush=True)
while True:
    time.sleep(0.05)
"""


def test_an_interrupt_during_imports_ends_it_without_a_trace(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text(SLOW)  # found before the real one, which every command imports
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, "plan"], env=env, stdout=pipe, stderr=pipe, text=True
    ) as rufus:
        assert rufus.stdout is not None
        assert rufus.stdout.readline() == "importing\n"
        rufus.send_signal(signal.SIGINT)
        rest, told = rufus.communicate()
    assert (rest, told, rufus.returncode) == ("", "interrupted\n", 130)


def test_it_runs_the_command_line_and_ends_as_that_does() -> None:
    for arguments, code, told in ((["--version"], 0, ""), (["trace"], 2, "Missing argument")):
        done = subprocess.run([sys.executable, "-c", SCRIPT, *arguments], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == code
        assert told in done.stderr


def test_an_error_cannot_steer_the_terminal(tmp_path: Path) -> None:
    """A file's name is whoever's that made it."""
    words = ["problems", "inspect", str(tmp_path / "\x1b[2Jx.jsonl")]
    done = subprocess.run([sys.executable, "-c", SCRIPT, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert r"\x1b[2Jx.jsonl: there is no such file" in done.stderr
    assert "\x1b" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
