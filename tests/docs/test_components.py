"""The pages of single components do what they show: their blocks run in order, and print what stands below them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs/components").glob("*.md"))
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
# Python blocks of a page share their names, as if it were one script; each ends its output with a mark.
MARK = "<end of block>"


def blocks(page: Path) -> list[tuple[str, str, str | None]]:
    """Language, code and what it shall print, if the page shows that."""
    return [(language, code, output or None) for language, code, output in BLOCK.findall(page.read_text())]


def run(command: list[str], folder: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_s_blocks_run_and_print_what_it_shows(page: Path, tmp_path: Path) -> None:
    found = blocks(page)
    assert any(language == "python" for language, _, _ in found)
    script = ""
    for language, code, expected in found:
        if language == "sh":
            run(["bash", "-euo", "pipefail", "-c", code], tmp_path)
            continue
        script += f"{code}\nprint({MARK!r})\n"
        printed = run([sys.executable, "-c", script], tmp_path).split(f"{MARK}\n")[-2]
        if expected is not None:
            assert printed == expected


def test_every_page_says_what_to_install_and_what_it_asks_of_its_user() -> None:
    assert {page.stem for page in PAGES} == {"verifiers", "sandbox", "gym", "screens", "eval", "stage"}
    for page in PAGES:
        assert "make install" in page.read_text(), page.name
        assert "What it asks of you:" in page.read_text(), page.name
