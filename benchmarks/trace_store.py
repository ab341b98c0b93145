"""`rufus trace` in a store of many records, against the same trace that finds the newest record by reading them all.

Both are processes, timed from their start to their end, in one store of real artifacts: a recipe of small files,
and on top its last checkpoint made again and again, so that nearly all records have one name. With `--spread` the whole
recipe is made again and again instead. The traced checkpoint is hashed down to its base.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from datetime import UTC, datetime
from itertools import chain, cycle, islice, repeat
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.paired import in_turns
from rufus_core.lineage.canonical import fingerprint, with_seed
from rufus_core.lineage.home import store_root
from rufus_core.lineage.record import Draft, Record, Timings
from rufus_core.lineage.store import Store
from rufus_core.recipe.graph import build_graph
from rufus_core.recipe.load import load_recipe
from rufus_core.recipe.step import Step

STAGE = "rlhf"
WEIGHTS = b"0123456789abcdef" * 4096  # 64 KiB for each artifact of the recipe

# The peer: reads every record of the name and takes the one that was published last.
SCAN = """
import sys
from rufus_core.cli.main import main
from rufus_core.lineage import resolve
def scan(store, name):
    return reversed(store.listing(name).records)
resolve.newest_first = scan
sys.argv[0] = "rufus"
main()
"""


def publish(store: Store, step: Step, made: dict[str, Record], content: bytes, seed: int) -> Record:
    """One artifact, the way a job publishes it."""
    inputs = {role: made[name].as_input() for role, name in step.inputs.items()}
    digests = {role: source.digest for role, source in inputs.items()}
    key = fingerprint(step.kind, step.version, with_seed(step.config, seed), digests)
    attempt = store.attempt(step.name, key)
    (attempt.folder / "model.safetensors").write_bytes(content)
    now = datetime.now(UTC)
    draft = Draft(
        kind=step.kind,
        version=step.version,
        stage=step.stage,
        config=step.config,
        inputs=inputs,
        seed=seed,
        timings=Timings(started=now, ended=now, seconds=0.0),
    )
    return store.publish(attempt, draft)


def fill(store: Store, num_records: int, spread: bool) -> Record:
    """A recipe, and more of the same until the store has so many records. The newest checkpoint that is traced."""
    graph = build_graph(load_recipe())
    made: dict[str, Record] = {}
    checkpoint = f"stages/{STAGE}/checkpoint"
    again = cycle(graph) if spread else repeat(next(step for step in graph if step.name == checkpoint))
    for count, step in enumerate(islice(chain(graph, again), num_records)):
        content = f"{step.name} {count}".encode() + (WEIGHTS if count < len(graph) or spread else b"")
        made[step.name] = publish(store, step, made, content, seed=count)
        if count % 1000 == 0:
            print(f"{count} records", flush=True)
    return made[checkpoint]


def seconds(command: list[str], newest: Record) -> float:
    """Wall time of a process that traces the newest checkpoint."""
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603  (an argument list, no shell)
    taken = time.perf_counter() - started
    assert json.loads(done.stdout)["root"] == newest.id
    return taken


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--spread", action="store_true")
    wanted = parser.parse_args()
    with TemporaryDirectory() as folder:
        home = Path(folder)
        newest = fill(Store(store_root(home)), wanted.records, wanted.spread)
        words = ["trace", STAGE, "--json", "--home", str(home)]
        ours_command = [str(Path(sys.executable).with_name("rufus")), *words]
        peer_command = [sys.executable, "-c", SCAN, *words]
        pairs = in_turns(lambda: seconds(ours_command, newest), lambda: seconds(peer_command, newest), "s")
    pairs.tell(
        "trace_store",
        higher_is_better=False,
        digits=3,
        unit="seconds of `rufus trace`, start to end",
        peer_name="the same trace, reading every record of the name",
        records=wanted.records,
        spread=wanted.spread,
        worst=round(max(pairs.ours), 3),
    )


if __name__ == "__main__":
    main()
