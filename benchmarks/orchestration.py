"""`rufus run` against the same jobs called one after the other in one process: what orchestration and tracking cost.

Ours has a job process for each step, Prefect, MLflow, and runs steps side by side where cores are free. The peer has
none of that. Both start with an empty home and load the same recipe: the CPU profile, whole or `--until` a stage.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_OVERRIDES = ("--set", "seed=0")


def run_ours(home: Path, until: list[str]) -> float:
    """Seconds from the command's start to its end."""
    command = [str(Path(sys.executable).with_name("rufus")), "run", "--home", str(home), *_OVERRIDES, *until]
    return _timed(command)


def run_peer(home: Path, until: list[str]) -> float:
    return _timed([sys.executable, "-m", "benchmarks.orchestration", "--in-one-process", str(home), *until])


def _timed(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=sys.stderr)  # noqa: S603  (an argument list, no shell)
    return time.perf_counter() - started


def in_one_process(home: Path, until: str | None) -> None:
    """Make every artifact of the graph, in its order, in this process."""
    from rufus_core.jobs.run import run_job
    from rufus_core.lineage.record import Record
    from rufus_core.lineage.store import Store
    from rufus_core.recipe.documents import document_of
    from rufus_core.recipe.graph import build_graph
    from rufus_core.recipe.load import load_recipe
    from rufus_core.recipe.until import up_to

    recipe = load_recipe(overrides=[word for word in _OVERRIDES if word != "--set"])
    store, records = Store(home / "store"), dict[str, Record]()
    for step in up_to(build_graph(recipe), until):
        inputs = {role: records[name] for role, name in step.inputs.items()}
        progress = home / "progress" / f"{step.name.replace('/', '.')}.jsonl"
        progress.parent.mkdir(parents=True, exist_ok=True)
        records[step.name] = run_job(document_of(step, inputs, store, recipe.execution, progress))
        print(f"made {step.name}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--until", metavar="STAGE", help="run the recipe up to this stage; by default all of it")
    parser.add_argument("--in-one-process", metavar="HOME", type=Path, help="only the peer's side, into this home")
    options = parser.parse_args()
    if options.in_one_process:
        in_one_process(options.in_one_process, options.until)
        return
    until = ["--until", options.until] if options.until else []
    with tempfile.TemporaryDirectory() as folder:
        peer = run_peer(Path(folder) / "peer", until)
        ours = run_ours(Path(folder) / "ours", until)
    told = {"name": "orchestration", "ours": round(ours, 1), "peer": round(peer, 1), "ratio": round(ours / peer, 3)}
    print(json.dumps({**told, "unit": "seconds", "until": options.until or "rlhf"}))


if __name__ == "__main__":
    main()
