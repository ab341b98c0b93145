"""A user and assistants by rule, so that dialogues can be synthesised without any model.

The user reads the same requests as a model does and is stateless: its whole script (`script.py`) follows from what the
request says of the dialogue.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import lru_cache

from rufus_core.data.lexicon import TOPIC_WORDS
from rufus_core.data.synthesis.dialogue import Tactic
from rufus_core.data.synthesis.script import Script, write_script
from rufus_core.types import Json, Message


class ScriptedUser:
    """Answers the requests of `requests.py` by rule. Its requirements never contradict each other."""

    identity = "builtin:scripted-user"

    def complete(self, messages: Sequence[Message], *, seed: int | None = None) -> str:  # noqa: ARG002 - by the request
        request = json.loads(messages[-1].content)
        script = _script(request)
        match request["task"]:
            case "plan":
                # The right answer is never to decline: it keeps to the system prompt and answers all the same.
                steps = [turn.said for turn in script.turns]
                return json.dumps({"system": script.system, "steps": steps, "decline": False})
            case "turn":
                return script.turns[int(request["step"])].said
            case _:
                return json.dumps({"rubrics": [{**rubric, "necessary": True} for rubric in script.turns[-1].holds]})


def _script(request: dict[str, Json]) -> Script:
    tactics = tuple(Tactic(turn["tactic"]) for turn in request["turns"])
    return _written(request["seed"], request["query"], tactics, request["has_system"])


@lru_cache(maxsize=64)  # the requests of one dialogue come one after the other
def _written(seed: int, query: str, tactics: tuple[Tactic, ...], has_system: bool) -> Script:
    return write_script(random.Random(seed), query, tactics, has_system)


class ScriptedAssistant:
    """Says a few words that follow from what it was told, by its style: a number of words."""

    def __init__(self, num_words: int = 3) -> None:
        self._num_words = num_words

    @property
    def identity(self) -> str:
        return f"builtin:scripted-assistant-{self._num_words}"

    def complete(self, messages: Sequence[Message], *, seed: int | None = None) -> str:
        rng = random.Random(f"{seed} {messages[-1].content}")
        words = [word for group in TOPIC_WORDS.values() for word in group]
        return " ".join(rng.choices(words, k=self._num_words)) + "."
