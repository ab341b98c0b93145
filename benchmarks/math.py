"""Verdicts on mathematical answers per second: ours against Math-Verify called directly, in turns in one run.

Ordinary answers are those of MATH-500 (or made up where it is absent): half right, in another spelling, and half that
of another problem, no pair twice. The hostile set has one answer in a hundred that a parser doesn't come back from.
The peer is `parse` and `verify` in a main thread of one process, with its own alarms. Ours is called from four threads.
`--runs 100000` instead shows the memory of all processes over many verdicts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from benchmarks.paired import in_turns
from rufus_core.rewards.math import MathVerifier
from rufus_core.types import VerdictKind

MATH_500 = Path(__file__).resolve().parents[2] / "shared/data/math/math500.jsonl"
HOSTILE = (
    "9^{9^{9^{9}}}",
    "10^{10^{10}}",
    "100000!",
    r"\sum_{n=1}^{10^{9}} \frac{1}{n^n}",
    "{" * 500 + "1" + "}" * 500,
    r"\begin{pmatrix}" + r" \\ ".join(["1 & 2 & 3"] * 500) + r"\end{pmatrix}",
    r"(x+y+z+w)^{80}(x-y-z-w)^{80}",
    r"\sqrt{2}^{10^{10}}",
    r"\int_0^1 \frac{\sin(x^x)}{\ln(x+2)} dx",
    r"\frac{1}{" * 200 + "2" + "}" * 200,
)
THREADS = 4
Pair = tuple[str, str]

# One line of pairs on standard input, the seconds on standard output.
PEER = """
import json, logging, sys, time
from math_verify import parse, verify
logging.disable(logging.WARNING)
verify(parse("$1$"), parse("$x + 1$"))
pairs = json.loads(sys.stdin.readline())
started = time.perf_counter()
for gold, text in pairs:
    verify(parse(gold), parse(text))
print(time.perf_counter() - started)
"""


def golds() -> list[str]:
    if MATH_500.exists():
        return [json.loads(line)["answer"] for line in MATH_500.read_text().splitlines()]
    return [rf"\frac{{{n}}}{{{n + 7}}}" if n % 3 else str(n * n) for n in range(1, 501)]


def ordinary(seed: int) -> Iterator[Pair]:
    """Pairs without end, each another than all before."""
    rng, references = random.Random(seed), golds()
    for number in itertools.count(1):
        gold = rng.choice(references)
        text = gold if rng.random() < 0.5 else rng.choice(references)
        spelling = rng.choice((text, text.replace(r"\frac", r"\dfrac"), rf"x = {text}", rf"{text} "))
        yield rf"\boxed{{{gold}}}", rf"\boxed{{{spelling}}}" + mark(number)


def mark(number: int) -> str:
    """White space that no other number has."""
    return f"{number:b}".translate({ord("0"): " ", ord("1"): "\t"})


def some(count: int, hostile: bool, seed: int) -> list[Pair]:
    pairs = list(itertools.islice(ordinary(seed), count))
    bad = itertools.cycle(HOSTILE)
    for position in range(99, count if hostile else 0, 100):
        pairs[position] = (pairs[position][0], rf"\boxed{{{next(bad)}}}" + mark(2 * position + 1))
    return pairs


def ours(verifier: MathVerifier, pairs: list[Pair], took: list[float], aborted: list[Pair]) -> float:
    """Verdicts per second; adds what each took from its call on, waiting for a worker included."""

    def one(pair: Pair) -> float:
        began = time.perf_counter()
        if verifier.verify(*pair).kind is VerdictKind.ABORTED:
            aborted.append(pair)
        return time.perf_counter() - began

    with ThreadPoolExecutor(THREADS) as threads:
        began, spent = time.perf_counter(), processor_seconds()
        took += threads.map(one, pairs)
        seconds, spent = time.perf_counter() - began, processor_seconds() - spent
        print(f"{1e3 * spent / len(pairs):.2f} ms of processor time per verdict")
        return len(pairs) / seconds


def peer(pairs: list[Pair]) -> float:
    request = json.dumps(pairs) + "\n"
    done = subprocess.run([sys.executable, "-c", PEER], input=request, capture_output=True, text=True, check=True)  # noqa: S603
    return len(pairs) / float(done.stdout)


def processor_seconds() -> float:
    """Of this process and of all below it, those that ended included."""
    process = psutil.Process()
    return sum(sum(one.cpu_times()[:4]) for one in process.children(recursive=True)) + sum(process.cpu_times()[:2])


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def resident() -> int:
    process = psutil.Process()
    return sum(one.memory_info().rss for one in (process, *process.children(recursive=True)))


def memory(runs: int) -> dict[str, object]:
    """MiB of all processes, after a tenth of the runs and at the end."""
    with MathVerifier() as verifier:
        marks, pairs, done = [], ordinary(3), 0
        step = max(1, runs // 10)
        while done < runs:
            ours(verifier, list(itertools.islice(pairs, step)), [], [])
            done += step
            marks.append(round(resident() / 2**20))
            print(f"{done} verdicts  {marks[-1]} MiB", flush=True)
    return {"name": "math", "runs": runs, "mib": marks, "growth": round(marks[-1] / marks[0], 2)}


def main() -> None:
    logging.disable(logging.WARNING)
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--runs", type=int, default=0, help="show memory over so many verdicts")
    wanted = parser.parse_args()
    if wanted.runs:
        print(json.dumps(memory(wanted.runs)))
        return
    seeds = itertools.count()
    facts: dict[str, object] = {}
    aborted: list[Pair] = []
    with MathVerifier() as verifier:
        ours(verifier, some(50, False, next(seeds)), [], [])  # starts the processes
        for hostile in (True, False):
            took: list[float] = []
            count = wanted.pairs if not hostile else wanted.pairs // 2
            sets = [some(count, hostile, next(seeds)) for _ in range(2 * wanted.repetitions)]
            sides = iter(sets), iter(sets)
            print("1% hostile" if hostile else "ordinary", flush=True)
            pairs = in_turns(
                lambda took=took, mine=sides[0]: ours(verifier, next(mine), took, aborted),
                lambda theirs=sides[1]: peer(next(theirs)),
                "verdicts/s",
                wanted.repetitions,
            )
            if hostile:
                facts = {
                    "hostile_ours": round(sorted(pairs.ours)[len(pairs.ours) // 2], 1),
                    "hostile_peer": round(sorted(pairs.peer)[len(pairs.peer) // 2], 1),
                }
            facts["hostile_p99_ms" if hostile else "p99_ms"] = round(1e3 * quantile(took, 0.99), 1)
            facts["hostile_max_ms" if hostile else "max_ms"] = round(1e3 * max(took), 1)
        facts["aborted"] = len(aborted)
        facts["past_deadline_ms"] = round(1e3 * verifier.longest_lateness_seconds, 1)
    pairs.tell("math", True, 1, "verdicts per second", "Math-Verify in one process, its own alarms", **facts)


if __name__ == "__main__":
    main()
