"""Asks a teacher for checkers (IF-D2): one Python function for each constraint, admitted only after it was tried."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from rufus_core.data.json_reply import read_object
from rufus_core.errors import InfrastructureError
from rufus_core.ports.engine import ChatModel
from rufus_core.ports.programs import CodeSandbox
from rufus_core.rewards.checker_source import MODULES
from rufus_core.rewards.generated import GeneratedChecker, check_generated
from rufus_core.types import Json, Message

_SYSTEM = (
    "You write checkers of texts. You get one constraint on a response as JSON. Write one Python function that takes"
    " the response as its only argument, a str, and returns True if the constraint holds, else False. It says the same"
    f" of one text always, prints nothing and imports nothing but {', '.join(sorted(MODULES))}. Reply with JSON"
    ' only: {"source": the whole source text, "function": its name, "positive": a response that meets the constraint,'
    ' "negative": a response that does not}.'
)
UNREADABLE, NO_REPLY = "unreadable", "no_reply"


@dataclass(slots=True)
class Written:
    """`rubrics` by constraint; `refused` counts attempts by reason; `without` lists constraints that have none."""

    rubrics: dict[str, dict[str, Json]] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    without: list[str] = field(default_factory=list)


def write_checkers(
    constraints: Iterable[str], teacher: ChatModel, pool: CodeSandbox, attempts: int = 3, seed: int = 0
) -> Written:
    """One checker for each constraint, if the teacher manages within `attempts`.

    Raises InfrastructureError if no sandbox can be had; a teacher that doesn't reply only leaves constraints without.
    """
    written = Written()
    for constraint in constraints:
        messages = [
            Message(role="system", content=_SYSTEM),
            Message(role="user", content=json.dumps({"task": "checker", "constraint": constraint})),
        ]
        for attempt in range(attempts):
            try:
                checker = _read(teacher.complete(messages, seed=seed + attempt))
            except InfrastructureError:
                written.refused[NO_REPLY] += 1
                continue
            except ValueError:
                written.refused[UNREADABLE] += 1
                continue
            verdict = check_generated(checker, pool)
            if verdict.fault is None:
                written.rubrics[constraint] = checker.rubric
                break
            written.refused[verdict.fault] += 1
        else:
            written.without.append(constraint)
    return written


def _read(reply: str) -> GeneratedChecker:
    fields = read_object(reply)
    names = ("source", "function", "positive", "negative")
    if not all(isinstance(fields.get(name), str) for name in names):
        raise ValueError(f"a checker needs the texts {', '.join(names)}")
    return GeneratedChecker(fields["source"], fields["function"], (fields["positive"],), (fields["negative"],))
