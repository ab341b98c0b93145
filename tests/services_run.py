"""The whole CPU recipe twice: plain, and over a failing object store with Postgres behind Prefect and MLflow.

python -m tests.services_run [--folder FOLDER] [--rate 0.05] [options of rufus run, such as --until sft]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from rufus_core.lineage import Store, store_root
from tasks.databases import MLFLOW_DATABASE, PREFECT_DATABASE
from tests.failing_store import FailingStore
from tests.postgres import PostgresServer
from tests.shared_roots import ENVIRONMENT, S3Server


def digests(home: Path) -> dict[str, str]:
    return {record.id: record.digest for record in Store(store_root(home)).records()}


def recipe(home: Path, env: Mapping[str, str], *words: str) -> None:
    """`rufus run`; a plain one forgets what the environment names."""
    named = {"RUFUS_STORE", PREFECT_DATABASE, MLFLOW_DATABASE, "PREFECT_API_URL", "MLFLOW_TRACKING_URI"}
    clean = {name: value for name, value in os.environ.items() if name not in named}
    command = [str(Path(sys.executable).with_name("rufus")), *words, "--home", str(home)]
    began = time.monotonic()
    subprocess.run(command, check=True, env={**clean, **env})
    print(f"rufus {' '.join(words)}: {time.monotonic() - began:.0f} s", flush=True)


def main() -> None:
    said = argparse.ArgumentParser()
    said.add_argument("--folder", type=Path)
    said.add_argument("--rate", type=float, default=0.05)
    chosen, options = said.parse_known_args()
    words = ["run", "--profile", "cpu", *options]
    folder = chosen.folder or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    s3, postgres = S3Server(), PostgresServer(folder)
    s3.start()
    postgres.start()
    try:
        with FailingStore(s3.url, chosen.rate) as store:
            url = f"s3://{s3.bucket()}/rufus"
            databases = {
                PREFECT_DATABASE: postgres.url("postgresql+asyncpg", postgres.database()),
                MLFLOW_DATABASE: postgres.url("postgresql", postgres.database()),
            }
            services = {**ENVIRONMENT, **databases, "AWS_ENDPOINT_URL": store.url, "RUFUS_STORE": url}
            recipe(folder / "served", services, *words)
            recipe(folder / "served", services, "verify", "--shared")
            recipe(folder / "second", services, *words)
            print(f"{len(store.requests)} requests, {store.faults.total()} failed: {dict(store.faults)}", flush=True)
        recipe(folder / "plain", {}, *words)
    finally:
        s3.stop()
        postgres.stop()
    plain, served = digests(folder / "plain"), digests(folder / "served")
    assert plain
    assert served == plain, {name for name in plain.keys() | served.keys() if plain.get(name) != served.get(name)}
    assert digests(folder / "second") == plain
    print(f"{len(plain)} artifacts are equal, digest for digest")


if __name__ == "__main__":
    main()
