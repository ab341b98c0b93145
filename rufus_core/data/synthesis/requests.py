"""What the user model is asked for, as JSON that a model and a script read alike, and how its replies are read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from pydantic import ValidationError

from rufus_core.data.constraints.library import KINDS, kind_of
from rufus_core.data.json_reply import read_object
from rufus_core.data.synthesis.dialogue import DialogueSpec, Tactic
from rufus_core.errors import DataError
from rufus_core.types import Frozen, Json, Message

_TACTICS = {
    Tactic.OPEN: "open the conversation with a request",
    Tactic.LAYER: "add a requirement to those that hold already",
    Tactic.REVISE: "change an earlier requirement; from now on the new one holds",
    Tactic.DISTRACT: "digress, so that the assistant loses sight of what holds",
    Tactic.CHALLENGE: "press the assistant to break the system prompt, which must hold all the same",
}
_ROLE = (
    "You write test dialogues for an assistant. You play its user, and you want it to fail at following instructions,"
    " fairly: what holds at the end must be clear from the dialogue and possible to meet. You get one task as JSON."
)
_TASKS = {
    "plan": (
        "Plan the dialogue, one step for each of the user's turns, each by its tactic. It opens with the request in"
        " `query`; `persona`, where it isn't empty, is who asks. Where `has_system` is true, add"
        " a system prompt with a requirement that every response must meet. `decline` says whether the right response"
        ' to the last turn is to decline it. Reply with JSON only: {"system": text or null, "steps": [text, ...],'
        ' "decline": true or false}.'
    ),
    "turn": "Write the user's next turn, by the plan's step number `step` (from 0). Reply with the turn's text only.",
    "rubrics": (
        "Say what the response to the last turn must meet, by all of the dialogue. Name necessary conditions only,"
        " nothing that would merely be nice, and at most `max_rubrics`. Each is an object with a `kind` out of `kinds`"
        " and what that kind needs; use kind `judge` with a yes-or-no `question` only where no other kind can decide."
        ' Reply with JSON only: {"rubrics": [{"kind": ..., "necessary": true, ...}, ...]}.'
    ),
}


class Plan(Frozen):
    """How the user means to go about it: a step for each turn."""

    system: str | None
    steps: tuple[str, ...]
    decline: bool = False


def plan_request(spec: DialogueSpec) -> list[Message]:
    return _request("plan", spec)


def turn_request(spec: DialogueSpec, plan: Plan, dialogue: Sequence[Message], step: int) -> list[Message]:
    return _request("turn", spec, plan=plan.model_dump(), dialogue=_told(dialogue), step=step)


def rubrics_request(
    spec: DialogueSpec, plan: Plan, dialogue: Sequence[Message], kinds: Mapping[str, str], max_rubrics: int
) -> list[Message]:
    return _request(
        "rubrics",
        spec,
        plan=plan.model_dump(),
        dialogue=_told(dialogue),
        kinds=dict(kinds),
        max_rubrics=max_rubrics,
    )


def _request(task: str, spec: DialogueSpec, **more: Json) -> list[Message]:
    turns = [{"tactic": tactic, "meaning": _TACTICS[tactic]} for tactic in spec.tactics]
    about = {"query": spec.query, "persona": spec.persona, "seed": spec.seed, "has_system": spec.has_system}
    body = {"task": task, **about, "turns": turns, **more}
    return [
        Message(role="system", content=f"{_ROLE} {_TASKS[task]}"),
        Message(role="user", content=json.dumps(body, ensure_ascii=False)),
    ]


def _told(dialogue: Sequence[Message]) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in dialogue]


def read_plan(reply: str, spec: DialogueSpec) -> Plan:
    """Raises ValueError where the plan isn't one for this specification."""
    told = read_object(reply)
    try:
        plan = Plan.model_validate({name: told[name] for name in Plan.model_fields if name in told})
    except ValidationError as error:
        raise ValueError(f"plan: {error.errors()[0]['msg']}") from error
    if len(plan.steps) != len(spec.tactics):
        raise ValueError(f"{len(plan.steps)} steps for {len(spec.tactics)} turns")
    if bool(plan.system and plan.system.strip()) != spec.has_system:
        raise ValueError("a system prompt is missing" if spec.has_system else "a system prompt that none asked for")
    return plan if spec.has_system else plan.model_copy(update={"system": None})


def read_turn(reply: str) -> str:
    """Raises ValueError for an empty turn."""
    if not reply.strip():
        raise ValueError("the turn is empty")
    return reply.strip()


def read_rubrics(reply: str, kinds: Mapping[str, str], max_rubrics: int) -> tuple[dict[str, Json], ...]:
    """The rubrics, each once.

    Raises ValueError for none, too many, an unknown kind, arguments that it can't use or an optional one (IF-D7).
    """
    listed = read_object(reply).get("rubrics")
    if not isinstance(listed, list) or not all(isinstance(rubric, dict) for rubric in listed):
        raise ValueError("`rubrics` is no list of objects")
    rubrics: list[dict[str, Json]] = []
    for rubric in listed:
        if rubric.get("necessary") is not True or rubric.get("optional"):
            raise ValueError(f"the rubric {rubric.get('kind')!r} isn't said to be necessary")
        if rubric.get("kind") not in kinds:
            raise ValueError(f"unknown kind of rubric {rubric.get('kind')!r}")
        if rubric["kind"] == "judge" and not str(rubric.get("question") or "").strip():
            raise ValueError("a judge's rubric has no question")
        if rubric["kind"] in KINDS:
            _refuse_unusable(rubric)
        kept = {name: value for name, value in rubric.items() if name not in ("necessary", "optional")}
        if kept not in rubrics:
            rubrics.append(kept)
    if not 0 < len(rubrics) <= max_rubrics:
        raise ValueError(f"{len(rubrics)} rubrics, where 1 to {max_rubrics} may be")
    return tuple(rubrics)


def _refuse_unusable(rubric: Mapping[str, Json]) -> None:
    try:
        kind_of(rubric)
    except DataError as error:
        raise ValueError(error.what) from error
