"""Carries out a job document as the real jobs do, with a step that takes no time. Run as a script by the tests.

`config` says what to do: "text" is written, "fail" and "crash" are raised, "need" fails unless that file exists, "hang"
waits for ever, "wait_for" until that file exists, "die" kills the job as long as that file has a line left. What
the file "also" holds is written too, though nothing knows of it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from rufus_core.errors import DataError
from rufus_core.jobs.document import JobDocument
from rufus_core.lineage.record import Draft, Input
from rufus_core.lineage.sharing import share
from rufus_core.training.reporter import Reporter


def main(path: Path) -> int:
    document = JobDocument.load(path)
    config = document.config
    store = document.open_store()
    with (document.store.parent / "started.txt").open("a") as started:
        started.write(document.name + "\n")
    if "die" in config and (lines := Path(config["die"]).read_text().splitlines()):
        Path(config["die"]).write_text("".join(f"{line}\n" for line in lines[1:]))
        os.kill(os.getpid(), signal.SIGKILL)
    if "fail" in config or not Path(config.get("need", "/")).exists():
        error = DataError(config.get("fail", "not yet"), where="my.jsonl:3", hint="mend it")
        told = {"type": "DataError", "what": error.what, "where": error.where, "hint": error.hint}
        (path.parent / "error.json").write_text(json.dumps(told))
        return error.exit_code
    if "crash" in config:
        raise ZeroDivisionError(config["crash"])
    with Reporter(document.progress, 2) as report:
        report.log(1, {"reward": 0.25})
        report.log(2, {"reward": 0.5})
    while "hang" in config or not Path(config.get("wait_for", "/")).exists():
        time.sleep(0.05)
    attempt = store.attempt(document.name, document.fingerprint)
    texts = [(i.path / "text").read_text() for i in document.inputs.values()]
    also = Path(config["also"]).read_text() if "also" in config else ""
    (attempt.folder / "text").write_text("".join([*texts, config["text"], also]))
    inputs = {r: Input(name=i.name, digest=i.digest, record_id=i.record_id) for r, i in document.inputs.items()}
    draft = Draft(
        kind=document.kind,
        version=document.version,
        config=config,
        inputs=inputs,
        step=2,
        metrics={"x": 1.0},
        links=document.links,
    )
    share(store, store.publish(attempt, draft, force=document.force))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
