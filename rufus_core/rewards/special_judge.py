"""Special judges: a record's own Python program decides whether an output is right, inside a sandbox.

The judge is started with the names of three files, the test's input, the expected output and the actual one, and must
print 1 to accept and 0 to reject. The candidate's program has ended by then: all it can do is print.
"""

from __future__ import annotations

import enum
import json

from rufus_core.data.code_records import Case, ProgramTests
from rufus_core.ports.programs import CodeSandbox

_HARNESS = """
import json, sys
given = json.loads(sys.stdin.read())
sys.argv = ["judge.py"]
for name in ("input", "expected", "actual"):
    with open(name + ".txt", "w", encoding="utf-8", newline="") as file:
        file.write(given[name])
    sys.argv.append(name + ".txt")
exec(compile(given["judge"], "judge.py", "exec"), {"__name__": "__main__"})
"""


class Ruling(enum.StrEnum):
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    FAILED = "failed"  # the judge crashed, ran over a limit, or printed neither 1 nor 0


def rule(judge: str, case: Case, actual: str, pool: CodeSandbox, timeout_seconds: float) -> Ruling:
    """What the judge says of an output. Raises InfrastructureError if no sandbox can be had."""
    given = {"judge": judge, "input": case.input, "expected": case.output, "actual": actual}
    result = pool.run(_HARNESS, json.dumps(given, ensure_ascii=False), timeout_seconds)
    if result.status == "ok" and (said := result.stdout.strip()) in ("0", "0.0", "1", "1.0"):
        return Ruling.ACCEPTED if said.startswith("1") else Ruling.REJECTED
    return Ruling.FAILED


def judge_fault(tests: ProgramTests, pool: CodeSandbox, timeout_seconds: float = 10.0) -> str:
    """Why a record with a special judge is refused when a problem set is built; empty where nothing speaks against it.

    The judge must accept every reference output, and must not accept an empty output for all tests that expect one.
    """
    if tests.special_judge is None:
        return ""
    timeout = tests.timeout_seconds or timeout_seconds
    for index, case in enumerate(tests.tests):
        ruling = rule(tests.special_judge, case, case.output, pool, timeout)
        if ruling is not Ruling.ACCEPTED:
            return f"test {index}: the special judge {ruling} on the reference output"
    telling = [case for case in tests.tests if case.output.strip()]
    if all(rule(tests.special_judge, case, "", pool, timeout) is Ruling.ACCEPTED for case in telling):
        return "the special judge accepts empty outputs"
    return ""
