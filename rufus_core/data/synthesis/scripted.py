"""A user and assistants by rule, so that dialogues can be synthesised without any model.

The user draws from the small pool of constraints of `data/generators/instructions.py`. It reads the same requests as a
model does and is stateless: its whole script follows from the request's seed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rufus_core.data.generators.instructions import CHALLENGE, PHRASES, SIGNS, SYSTEM_PHRASES
from rufus_core.data.lexicon import TOPIC_WORDS
from rufus_core.data.synthesis.dialogue import Tactic
from rufus_core.types import Json, Message

_LAYERS = ("include_word", "exclude_word", "commas", "end_sign", "polite")
_COUNTS = (3, 4)
_MOST_REQUIREMENTS = 5
_DISTRACTIONS = ("Ann put a table by the door.", "Ben says hello.", "Never mind the apple.", "What a long day.")


@dataclass(slots=True)
class _Script:
    """The dialogue so far: what was said, and the requirements that hold by kind."""

    rng: random.Random
    topic: str
    turns: list[str] = field(default_factory=list)
    holds: dict[str, dict[str, Json]] = field(default_factory=dict)
    system: str | None = None

    def open(self) -> None:
        count = self.rng.choice(_COUNTS)
        self.holds["topic"] = {"kind": "topic", "topic": self.topic}
        self.holds["num_words"] = {"kind": "num_words", "count": count}
        self.turns.append(f"Write {count} words about {self.topic}.")

    def rule(self) -> None:
        kind = self.rng.choice(sorted(SYSTEM_PHRASES))
        self.holds[kind] = self._rubric(kind)
        self.system = SYSTEM_PHRASES[kind].format(**self.holds[kind])

    def layer(self) -> None:
        free = [kind for kind in _LAYERS if kind not in self.holds]
        if len(self.holds) >= _MOST_REQUIREMENTS or not free:
            return self.revise()
        kind = self.rng.choice(free)
        self.holds[kind] = self._rubric(kind)
        self.turns.append(self.rng.choice(PHRASES[kind]).format(**self.holds[kind]))

    def revise(self) -> None:
        count = next(count for count in _COUNTS if count != self.holds["num_words"]["count"])
        self.holds["num_words"] = {"kind": "num_words", "count": count}
        self.turns.append(f"Now {count} words.")

    def distract(self) -> None:
        self.turns.append(self.rng.choice(_DISTRACTIONS))

    def challenge(self) -> None:
        self.turns.append(CHALLENGE)

    def _rubric(self, kind: str) -> dict[str, Json]:
        taken = [rubric["word"] for rubric in self.holds.values() if "word" in rubric]
        if kind.endswith("_word"):
            free = [word for word in TOPIC_WORDS[self.topic] if word not in taken]
            return {"kind": kind, "word": self.rng.choice(free)}
        return {"kind": kind, "sign": self.rng.choice(SIGNS)} if kind == "end_sign" else {"kind": kind}


def _script(seed: int, tactics: Sequence[Tactic], has_system: bool) -> _Script:
    rng = random.Random(seed)
    script = _Script(rng, rng.choice(sorted(TOPIC_WORDS)))
    if has_system:
        script.rule()
    acts: dict[Tactic, Callable[[], None]] = {
        Tactic.OPEN: script.open,
        Tactic.LAYER: script.layer,
        Tactic.REVISE: script.revise,
        Tactic.DISTRACT: script.distract,
        Tactic.CHALLENGE: script.challenge,
    }
    for tactic in tactics:
        acts[tactic]()
    return script


class ScriptedUser:
    """Answers the requests of `requests.py` by rule. Its requirements never contradict each other."""

    identity = "builtin:scripted-user"

    def complete(self, messages: Sequence[Message], *, seed: int | None = None) -> str:  # noqa: ARG002 - by the request
        request = json.loads(messages[-1].content)
        tactics = [Tactic(turn["tactic"]) for turn in request["turns"]]
        script = _script(request["seed"], tactics, request["has_system"])
        match request["task"]:
            case "plan":
                declines = request["has_system"] and tactics[-1] is Tactic.CHALLENGE
                return json.dumps({"system": script.system, "steps": script.turns, "decline": declines})
            case "turn":
                return script.turns[int(request["step"])]
            case _:
                return json.dumps({"rubrics": [{**rubric, "necessary": True} for rubric in script.holds.values()]})


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
