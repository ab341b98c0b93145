"""Coding problems judged per second: our pool, per program and per test, against what else judges them.

The problems are short functions with ten asserts each, generated here. Every side judges the same ones with two workers
and must find all of them right; the sides take turns. LiveCodeBench's runner is in no package registry and is left out.
Then: what a further test costs, how late the verdicts on programs that never end are, and what many runs leave behind.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import linear_regression, median, quantiles
from typing import Any

import psutil

from benchmarks.paired import REPETITIONS
from rufus_core.sandbox.interpreter import InterpreterPool

WORKERS = 2
TESTS = 10
DEADLINE_SECONDS = 0.25
HANGING = (
    "while True: pass",
    "import time\ntime.sleep(60)",
    "import signal, time\nfor n in (15, 24): signal.signal(n, signal.SIG_IGN)\nwhile True: time.sleep(1)",
    "import os\nfor _ in range(20):\n    if os.fork() == 0:\n        while True: pass\nwhile True: pass",
    "import os\nfor n in range(500):\n    open(str(n), 'w').write('x' * 4096)\nwhile True: pass",
    "x = bytearray(1 << 28)\nwhile True: pass",
    "import sys, time\nwhile True: sys.stdout.write('x'); sys.stdout.flush(); time.sleep(0.001)",
)


@dataclass(frozen=True, slots=True)
class Task:
    """One problem with a right program. `expected` are the values of `function` at `inputs`."""

    program: str
    function: str
    inputs: list[list[Any]]
    expected: list[Any]

    @property
    def asserts(self) -> list[str]:
        return [
            f"assert {self.function}(*{given!r}) == {value!r}"
            for given, value in zip(self.inputs, self.expected, strict=True)
        ]


def tasks(number: int, num_tests: int = TESTS) -> list[Task]:
    """Alternately on numbers, lists and texts."""
    made = []
    for seed in range(number):
        kinds: list[tuple[str, Callable[[int], list[Any]], Callable[..., Any]]] = [
            (
                f"return sum(i * i for i in range(x)) + {seed}",
                lambda n: [n],
                lambda x, s=seed: sum(i * i for i in range(x)) + s,
            ),
            (
                f"return sorted(set(x))[:{seed % 5 + 1}]",
                lambda n: [[n, 3, n % 4, 9, 1]],
                lambda x, s=seed: sorted(set(x))[: s % 5 + 1],
            ),
            (f"return x[::-1].upper() + '{seed}'", lambda n: ["ab" * n], lambda x, s=seed: x[::-1].upper() + str(s)),
        ]
        body, given, right = kinds[seed % len(kinds)]
        inputs = [given(n) for n in range(num_tests)]
        made.append(Task(f"def solve(x):\n    {body}\n", "solve", inputs, [right(*args) for args in inputs]))
    return made


Side = Callable[[Task], bool]


def evalplus_side() -> Side:
    from evalplus.eval import untrusted_check as check

    def judge(task: Task) -> bool:
        times = [0.01] * len(task.inputs)
        status, _ = check(
            "humaneval", task.program, task.inputs, task.function, task.expected, 0, times, fast_check=True
        )
        return bool(status == "pass")

    return judge


def verl_side() -> Side:
    package = importlib.util.find_spec("verl")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("verl is not installed")
    folder = Path(package.submodule_search_locations[0]) / "utils" / "reward_score" / "prime_code"
    # by its path: importing the whole package takes what only a trainer has
    spec = importlib.util.spec_from_file_location("prime_code", folder / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules["prime_code"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    compute = module.compute_score

    def judge(task: Task) -> bool:
        cases = {
            "fn_name": task.function,
            "inputs": ["\n".join(json.dumps(arg) for arg in given) for given in task.inputs],
            "outputs": [json.dumps(value) for value in task.expected],
        }
        passed, _ = compute(f"```python\n{task.program}\n```", cases)
        return bool(passed)

    return judge


def process_side() -> Side:
    def judge(task: Task) -> bool:
        for line in task.asserts:
            done = subprocess.run([sys.executable, "-c", f"{task.program}\n{line}"], check=False)  # noqa: S603
            if done.returncode:
                return False
        return True

    return judge


def per_second(judge: Side, problems: Sequence[Task]) -> float:
    """Problems per second of wall time, `WORKERS` at a time."""
    started = time.perf_counter()
    with ThreadPoolExecutor(WORKERS) as threads:
        verdicts = list(threads.map(judge, problems))
    assert all(verdicts), f"{verdicts.count(False)} right programs were found wrong"
    return len(problems) / (time.perf_counter() - started)


def peers() -> Iterator[tuple[str, Side, int]]:
    """Name, side, and how many problems a repetition has (the slow ones fewer)."""
    for name, make, number in (("evalplus", evalplus_side, 60), ("verl", verl_side, 20)):
        try:
            side = make()
            assert side(tasks(1)[0]), "it finds a right program wrong"
        except Exception as error:  # noqa: BLE001 - whatever a peer's import or first call raises
            print(f"{name} is left out: {type(error).__name__}: {error}", flush=True)
            continue
        yield name, side, number
    yield "a new process per test", process_side(), 4


def growth(pool: InterpreterPool) -> dict[str, float]:
    """Milliseconds of one program by the number of its tests, as a line: how much a test costs, and how straight."""
    facts: dict[str, float] = {}
    for isolation, sizes in (("test", (1, 5, 10, 20, 30)), ("program", (10, 100, 200, 400, 800))):
        seconds = {size: [] for size in sizes}
        for _ in range(5):
            for size in sizes:
                task = tasks(1, size)[0]
                started = time.perf_counter()
                assert pool.run_checks(task.program, task.asserts, isolation=isolation).passed
                seconds[size].append(time.perf_counter() - started)
        times = [1000 * median(seconds[size]) for size in sizes]
        slope, start = linear_regression(sizes, times)
        error = max(abs(start + slope * size - taken) for size, taken in zip(sizes, times, strict=True))
        print(f"per {isolation}: " + ", ".join(f"{n} tests {t:.1f} ms" for n, t in zip(sizes, times, strict=True)))
        facts[f"ms_per_test_per_{isolation}"] = round(slope, 3)
        facts[f"off_the_line_per_{isolation}"] = round(error / times[-1], 3)
    return facts


def lateness(pool: InterpreterPool, number: int) -> dict[str, float]:
    """How long after its deadline the verdict on a program that never ends comes, in milliseconds."""
    late = []
    for place in range(number):
        started = time.perf_counter()
        result = pool.run(HANGING[place % len(HANGING)], timeout_seconds=DEADLINE_SECONDS)
        late.append(1000 * (time.perf_counter() - started - DEADLINE_SECONDS))
        assert result.status == "timeout", result
    print(f"late by {median(late):.1f} ms in the middle, {max(late):.1f} ms at most, of {number}", flush=True)
    return {"late_ms_p99": round(quantiles(late, n=100, method="inclusive")[-1], 1), "late_ms_max": round(max(late), 1)}


def held() -> tuple[int, int, int]:
    """Bytes of ours, bytes of the sandboxes, and all their descriptors. A program that is just ending isn't counted."""
    own = psutil.Process()
    inside = [process for launcher in own.children() for process in (launcher, *launcher.children())]
    sizes = [process.memory_info().rss for process in inside]
    return own.memory_info().rss, sum(sizes), sum(process.num_fds() for process in (own, *inside))


def memory(pool: InterpreterPool, runs: int) -> dict[str, float]:
    """What grows from a tenth of the runs to their end."""
    program, check = "def f(x):\n    return x + 1", "assert f(1) == 2"
    before = held()
    with ThreadPoolExecutor(WORKERS) as threads:
        for place in range(10):
            assert all(threads.map(lambda _: pool.run_checks(program, [check]).passed, range(runs // 10)))
            now = held()
            if place == 0:
                before = now
            print(
                f"{(place + 1) * runs // 10} runs: ours {now[0] >> 10} KiB, sandboxes {now[1] >> 10} KiB, {now[2]} fds"
            )
    own, inside, descriptors = (after - start for after, start in zip(held(), before, strict=True))
    return {"runs": runs, "grown_kib": own >> 10, "grown_kib_inside": inside >> 10, "grown_descriptors": descriptors}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=2000, help="runs over which memory is watched")
    parser.add_argument("--hanging", type=int, default=70)
    parser.add_argument("--problems", type=int, default=200)
    wanted = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    with ExitStack() as stack:
        pool = stack.enter_context(InterpreterPool(WORKERS))
        ours: list[tuple[str, Side, int]] = [
            ("ours per program", lambda task: pool.run_checks(task.program, task.asserts).passed, wanted.problems),
            (
                "ours per test",
                lambda task: pool.run_checks(task.program, task.asserts, isolation="test").passed,
                max(wanted.problems // TESTS, 1),
            ),
        ]
        sides = [*ours, *peers()]
        rates: dict[str, list[float]] = {name: [] for name, _, _ in sides}
        for _, side, _ in sides:
            per_second(side, tasks(2))  # warm
        for repetition in range(1, REPETITIONS + 1):
            for name, side, number in sides:
                rates[name].append(per_second(side, tasks(number)))
            told = ", ".join(f"{name} {rate[-1]:.1f}" for name, rate in rates.items())
            print(f"{repetition}/{REPETITIONS}  {told} programs of {TESTS} tests/s", flush=True)
        facts = growth(pool) | lateness(pool, wanted.hanging) | memory(pool, wanted.runs)
    middle = {name: median(rate) for name, rate in rates.items()}
    peer = max((name for name in middle if not name.startswith("ours")), key=middle.__getitem__)
    result = {
        "name": "code_sandbox",
        "ours": round(middle["ours per program"], 1),
        "peer": round(middle[peer], 1),
        "ratio": round(middle["ours per program"] / middle[peer], 2),
        "unit": f"programs of {TESTS} tests per second, {WORKERS} workers",
        "peer_name": peer,
        "tests_per_second_isolated_per_test": round(TESTS * middle["ours per test"], 1),
        "programs_per_second": {name: round(rate, 1) for name, rate in middle.items()},
        **facts,
        "load_average": os.getloadavg()[0],
        "repetitions": REPETITIONS,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
