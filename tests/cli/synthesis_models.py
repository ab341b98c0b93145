"""Models for synthesis behind a real HTTP server: a teacher, assistants and a policy by rule."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

from rufus_core.data.constraints.compose import find_witness
from rufus_core.data.constraints.library import KINDS, negative
from rufus_core.data.synthesis.dialogue import Dialogue
from rufus_core.data.synthesis.scripted import ScriptedAssistant, ScriptedUser
from rufus_core.types import Message
from tests.rewards.endpoint import Reply, said

GOOD, BAD = "Don't mention a zeppelin.", "Be beautiful."
SOURCES = {
    GOOD: "def holds(text):\n    return 'zeppelin' not in text.lower()\n",
    BAD: "def holds(text):\n    return True\n",
}


class Models:
    """Answers by the request's content. Attempts are right, and the policy's of every other problem are wrong."""

    def __init__(self, folder: Path) -> None:
        self.journal = folder / "dialogues.jsonl"

    def __call__(self, body: dict[str, Any]) -> Reply:
        messages = [Message.model_validate(message) for message in body["messages"]]
        return said(self._text(body["model"], messages, int(body.get("seed") or 0)))

    def _text(self, model: str, messages: list[Message], seed: int) -> str:
        if model.startswith("words-"):
            return ScriptedAssistant(int(model.removeprefix("words-"))).complete(messages, seed=seed)
        if model == "judge":
            return json.dumps({"verdict": "yes"})
        task = task_of(messages[-1].content) if model == "teacher" else None
        match task:
            case {"task": "plan" | "turn" | "rubrics"}:
                return ScriptedUser().complete(messages, seed=seed)
            case {"task": "constraints"}:
                return json.dumps({"constraints": [GOOD, BAD][: task["num"]]})
            case {"task": "checker", "constraint": wanted}:
                examples = {"positive": "a ship", "negative": "a zeppelin"}
                return json.dumps({"source": SOURCES[wanted], "function": "holds", **examples})
        return self._attempt(messages, spoilt=model == "policy" and not is_easy(messages))

    def _attempt(self, messages: list[Message], spoilt: bool) -> str:
        lines = self.journal.read_text().splitlines()
        made = [Dialogue.model_validate(json.loads(line)["dialogue"]) for line in lines if '"dialogue"' in line[:12]]
        dialogue = next(each for each in made if list(each.messages) == messages)
        rubrics = [rubric for rubric in dialogue.rubrics if rubric["kind"] in KINDS]
        text = next(found for seed in range(20) if (found := find_witness(rubrics, random.Random(seed))))
        return negative(rubrics[0], text, random.Random(0)) if spoilt else text


def task_of(content: str) -> dict[str, Any] | None:
    try:
        found = json.loads(content)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "task" in found else None


def is_easy(messages: list[Message]) -> bool:
    return hashlib.sha256(messages[-1].content.encode()).digest()[0] % 2 == 0
