"""A finished home, `rufus ui` over it, and a Chromium to look with. Skipped where there is none.

The home comes before the browser: under the browser's event loop Prefect's calls from this process would be coroutines.
Both end with this folder's tests for the same reason.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rufus_core.lineage import Record, Store
from rufus_core.ports.orchestration import RunOutcome
from tasks.servers import free_port
from tasks.tracking import Tracker
from tests.flows.test_recipe import graph, run
from tests.tasks.tracked import made_and_tracked, refuse

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
RUFUS = str(Path(sys.executable).with_name("rufus"))
SHOWN_MS = 60_000  # for what a page shows at once where nothing else is busy
playwright.expect.set_options(timeout=SHOWN_MS)

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
    """Addresses of the two pages over a home, what its tracked run made, and how its flow run ended."""

    home: Path
    prefect: str
    mlflow: str
    records: dict[str, Record]
    outcome: RunOutcome

    @property
    def store(self) -> Store:
        return Store(self.home / "store")


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}


@pytest.fixture(scope="package")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    """A home with a flow run and a tracked run of miniature jobs, served by the command."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    home = tmp_path_factory.mktemp("home")
    outcome, _ = run(home, graph())
    tracker = Tracker(home, "recipe", refuse)
    records = made_and_tracked(home, tracker)
    for alias, name in {"base": "base", "math": "stages/math/checkpoint"}.items():
        tracker.aliased(alias, records[name], "recipe")
    tracker.run_finished("FINISHED", {})
    ports = ["--prefect-port", str(free_port()), "--mlflow-port", str(free_port())]
    command = [RUFUS, "ui", "--home", str(home), *ports]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=clean_environment()) as server:
        assert server.stdout is not None
        told = []
        for line in server.stdout:
            told.append(line)
            if "Ctrl-C" in line:
                break
        prefect, mlflow = re.findall(r"http://\S+", "".join(told))
        yield Pages(home, prefect, mlflow, records, outcome)
        server.terminate()


@pytest.fixture(scope="package")
def worker(pages: Pages) -> Iterator[None]:
    """The deployment of the recipe on the server of `rufus ui`, and a worker, started as the documentation says."""
    env = clean_environment() | {
        "PREFECT_API_URL": f"{pages.prefect}/api",
        "PREFECT_HOME": str(pages.home / "prefect"),
        "PREFECT_WORKER_QUERY_SECONDS": "1",
        "RUFUS_HOME": str(pages.home),
    }
    subprocess.run([RUFUS, "deploy", "cpu"], env=env, check=True, stdout=subprocess.DEVNULL)
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", "rufus-local"]
    with (
        (pages.home / "worker.log").open("wb") as log,
        subprocess.Popen(command, env=env, stdout=log, stderr=log) as it,
    ):
        yield
        it.send_signal(signal.SIGINT)


@pytest.fixture(scope="package")
def browser(pages: Pages, tmp_path_factory: pytest.TempPathFactory) -> Iterator[playwright.BrowserContext]:
    """A browser of a user who has never been here."""
    with playwright.sync_playwright() as driver:
        context = driver.chromium.launch_persistent_context(
            tmp_path_factory.mktemp("chromium"),
            executable_path=CHROMIUM,
            headless=True,
            args=QUIET,
            viewport={"width": 1500, "height": 1000},
        )
        context.set_default_timeout(SHOWN_MS)
        yield context
        context.close()


@pytest.fixture
def page(browser: playwright.BrowserContext) -> Iterator[playwright.Page]:
    """A new tab."""
    page = browser.new_page()
    yield page
    page.close()
