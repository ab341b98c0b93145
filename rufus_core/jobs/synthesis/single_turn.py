"""Single-turn problems (IF-D2): a query with constraints of the library and of the teacher's own."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence

from rufus_core.data.constraints.compose import MAX_CONSTRAINTS, MIN_CONSTRAINTS, compose
from rufus_core.data.constraints.library import describe
from rufus_core.data.generators.constraints import ask as phrase
from rufus_core.data.json_reply import read_object
from rufus_core.data.synthesis.dialogue import (
    PROMPT_VERSION,
    Dialogue,
    DialogueSpec,
    Failure,
    FailureReason,
    Query,
    Tactic,
)
from rufus_core.data.synthesis.play import Failed, ask
from rufus_core.ports.engine import ChatModel
from rufus_core.ports.programs import CodeSandbox
from rufus_core.rewards.checker_writer import NO_REPLY, Written, write_checkers
from rufus_core.types import Json, Message, content_id

MOST_WRITTEN = MAX_CONSTRAINTS - MIN_CONSTRAINTS
_MOST_CHARACTERS = 400  # of one constraint

_SYSTEM = (
    "You write constraints on an assistant's response. You get a user's query and the constraints that it has already"
    " as JSON. Write `num` more of them. Each is one sentence that tells the assistant something that its response must"
    " meet, that a program can decide from the response's text alone, and that contradicts none of the others. Reply"
    ' with JSON only: {"constraints": [text, ...]}.'
)


def single_turn_specs(
    count: int, num_written: int, seed: int, user: str, queries: Sequence[Query]
) -> tuple[DialogueSpec, ...]:
    """One for each problem; queries rotate. More of them only adds.

    Args:
        num_written: constraints of the teacher's own in each.
        user: the teacher's identity.
    """
    specs = []
    for index in range(count):
        asked = queries[index % len(queries)]
        id = content_id("single turn", PROMPT_VERSION, num_written, seed, index, user, asked.model_dump())
        specs.append(
            DialogueSpec(
                id=id,
                seed=random.Random(id).getrandbits(31),
                query=asked.query,
                persona=asked.persona,
                tactics=(Tactic.OPEN,),
                has_system=False,
                assistant="",
            )
        )
    return tuple(specs)


def make_single_turn(
    spec: DialogueSpec, user: ChatModel, num_written: int, sandbox: Callable[[], CodeSandbox]
) -> Dialogue | Failure:
    """A dialogue of one turn, or why there is none. A constraint for which no checker is admitted is left out.

    Args:
        user: the teacher; it is asked only where `num_written` isn't 0.
        sandbox: gives the one that checkers are tried in.

    Raises:
        ConfigError: the endpoint refuses us.
        SandboxUnavailable: checkers are to be tried, and this machine can't isolate them.
    """
    rng = random.Random(spec.seed)
    composition = compose(rng, rng.randint(MIN_CONSTRAINTS, MAX_CONSTRAINTS - num_written))
    instructions = [describe(constraint, rng) for constraint in composition.constraints]
    written = Written()
    if num_written:
        try:
            written = _written(spec, user, instructions, num_written, sandbox())
        except Failed as failed:
            return Failure(id=spec.id, reason=failed.reason, detail=failed.detail)
    asked = phrase(spec.query, [*instructions, *written.rubrics], rng)
    return Dialogue(
        spec=spec,
        user=user.identity,
        messages=(Message(role="user", content=asked),),
        rubrics=(*composition.constraints, *written.rubrics.values()),
        refused=dict(written.refused),
    )


def _written(
    spec: DialogueSpec, teacher: ChatModel, instructions: Sequence[str], num: int, sandbox: CodeSandbox
) -> Written:
    body = {"task": "constraints", "query": spec.query, "constraints": list(instructions), "num": num}
    request = [
        Message(role="system", content=_SYSTEM),
        Message(role="user", content=json.dumps(body, ensure_ascii=False)),
    ]
    texts = ask(
        teacher,
        request,
        lambda reply: _read(reply, instructions, num),
        spec.seed,
        FailureReason.CONSTRAINTS,
        FailureReason.NO_USER,
    )
    written = write_checkers(texts, teacher, sandbox, seed=spec.seed)
    if written.without and written.refused[NO_REPLY]:
        raise Failed(FailureReason.NO_USER, "no reply where a checker was asked for")
    return written


def _read(reply: str, known: Sequence[str], num: int) -> list[str]:
    """The constraints, `num` at most. Raises ValueError where none is usable."""
    listed: Json = read_object(reply).get("constraints")
    if not isinstance(listed, list) or not all(isinstance(text, str) for text in listed):
        raise ValueError("`constraints` is no list of texts")
    texts = [" ".join(text.split()) for text in listed]
    usable = [text for text in dict.fromkeys(texts) if 0 < len(text) <= _MOST_CHARACTERS and text not in known]
    if not usable:
        raise ValueError("no constraint is new, and a sentence")
    return usable[:num]
