"""The process behind `rewards/instructions.py`: asks one checker per request, until its input ends or it is killed.

Requests are JSON lines. `{"load": benchmark}` is answered by what it can check; `{"benchmark", "id", "kwargs",
"prompt", "texts"}` by `{"followed": ...}`, or `{"fault": ...}` where the record's arguments can't be used. The parent
holds the deadline. Every check starts from the same random state: some checkers draw what the record leaves open.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import random
import resource
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rufus_core.types import Json

MEMORY_BYTES = 4 * 1024**3
MODULES = {"ifeval": "rufus_core.rewards.ifeval", "ifbench": "rufus_core.rewards.ifbench"}


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A package's checker classes by instruction id, what they were run with, and which can't run here, and why."""

    checkers: Mapping[str, Any]
    protocol: str
    unavailable: Mapping[str, str]


def describe(benchmark: Benchmark) -> Json:
    return {
        "ids": sorted(benchmark.checkers),
        "protocol": benchmark.protocol,
        "unavailable": dict(benchmark.unavailable),
    }


def check(benchmark: Benchmark, request: Mapping[str, Json]) -> Json:
    """Whether any of the texts follows the instruction. A checker that breaks on a text hasn't found it followed."""
    random.seed(0)
    checker = benchmark.checkers[request["id"]](request["id"])
    try:
        checker.build_description(**{name: value for name, value in request["kwargs"].items() if value is not None})
        if "prompt" in (checker.get_instruction_args() or {}):
            checker.build_description(prompt=request["prompt"])
    except Exception as error:  # noqa: BLE001 - third-party code on a record of any kind
        return {"fault": f"{type(error).__name__}: {error}"}
    broke = ""
    for text in request["texts"]:
        try:
            if text.strip() and checker.check_following(text):
                return {"followed": True}
        except Exception as error:  # noqa: BLE001 - third-party code on text of any kind
            broke = broke or f"the checker failed with {type(error).__name__}"
    return {"followed": False, "reason": broke}


def main() -> None:
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    loaded: dict[str, Benchmark] = {}
    replies = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # what the packages print is no reply
        for line in sys.stdin:
            request = json.loads(line)
            if name := request.get("load"):
                try:
                    loaded[name] = importlib.import_module(MODULES[name]).load()
                    reply = describe(loaded[name])
                except ImportError as error:
                    reply = {"missing": str(error)}
            else:
                reply = check(loaded[request["benchmark"]], request)
            print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main()
