"""The one process of a pod, and what keeps its exit code while nobody looks: `python kubernetes_pod.py FOLDER`.

`FOLDER/pod.json` says the command and its environment. `pid` and then `exit` are written beside it, output to `log`.
It outlives the API server, as pods do. The image's `python` is the one that runs this.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    partial.replace(path)


def main(folder: Path) -> None:
    pod = json.loads((folder / "pod.json").read_text())
    with (folder / "log").open("wb") as log:
        try:
            process = subprocess.Popen(
                pod["command"],
                env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **pod["env"]},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        except OSError as error:
            write_whole(folder / "exit", json.dumps({"code": 128, "reason": "StartError", "message": str(error)}))
            return
    write_whole(folder / "pid", str(process.pid))
    code = process.wait()
    told = {"code": code if code >= 0 else 128 - code, "reason": "Error" if code else "Completed"}
    write_whole(folder / "exit", json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
