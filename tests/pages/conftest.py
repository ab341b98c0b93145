"""A finished home, `rufus ui` over it, and a Chromium to look with. Skipped where there is none."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rufus_core.lineage import Record
from tasks.servers import free_port
from tasks.tracking import Tracker
from tests.flows.test_recipe import graph, run
from tests.tasks.tracked import made_and_tracked, refuse

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")

QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@dataclass
class Pages:
    """Addresses of the two pages over a home, and what its tracked run made."""

    prefect: str
    mlflow: str
    records: dict[str, Record]


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[playwright.Page]:
    """A browser's page, which a user who has never been here sees."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as driver:
        context = driver.chromium.launch_persistent_context(
            tmp_path_factory.mktemp("chromium"),
            executable_path=CHROMIUM,
            headless=True,
            args=QUIET,
            viewport={"width": 1500, "height": 1000},
        )
        context.set_default_timeout(60_000)
        yield context.pages[0]
        context.close()


@pytest.fixture(scope="session")
def pages(page: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    """A home with a flow run and a tracked run of miniature jobs, served by the command."""
    home = tmp_path_factory.mktemp("home")
    run(home, graph())
    tracker = Tracker(home, "recipe", refuse)
    records = made_and_tracked(home, tracker)
    for alias, name in {"base": "base", "math": "stages/math/checkpoint"}.items():
        tracker.aliased(alias, records[name], "recipe")
    tracker.run_finished("FINISHED", {})
    rufus = Path(sys.executable).with_name("rufus")
    ports = ["--prefect-port", str(free_port()), "--mlflow-port", str(free_port())]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
    command = [str(rufus), "ui", "--home", str(home), *ports]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as server:
        assert server.stdout is not None
        told = []
        for line in server.stdout:
            told.append(line)
            if "Ctrl-C" in line:
                break
        addresses = re.findall(r"http://\S+", "".join(told))
        yield Pages(*addresses, records)
        server.terminate()
