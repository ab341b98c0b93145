"""What is synthesised: the specification of a dialogue, and how it ended. A single turn is a dialogue of one."""

from __future__ import annotations

import enum
import random
from collections.abc import Sequence
from typing import Self

from pydantic import Field, model_validator

from rufus_core.data.generators.constraints import QUERIES
from rufus_core.types import Frozen, Json, Message, Problem, content_id

FAMILY = "instructions"
SINGLE_TURN, MULTI_TURN = "single_turn", "multi_turn"  # sources: the two sets of IF-D1
PROMPT_VERSION = "v2"  # part of a dialogue's id: raise it with every change of what the models are told
MAX_RUBRICS = 6  # IF-D7: about ten, with optional ones among them, gave a length bias; the paper's mean is 2.7


class Tactic(enum.StrEnum):
    """What a user turn does to make the assistant fail (IF-D4); `challenge` is for a system prompt (IF-D5)."""

    OPEN = "open"
    LAYER = "layer"
    REVISE = "revise"
    DISTRACT = "distract"
    CHALLENGE = "challenge"


class Query(Frozen):
    """What a dialogue is about: a user's request, and where it is known who asks."""

    query: str
    persona: str = ""


OWN_QUERIES = tuple(Query(query=query) for query in QUERIES)


class SynthesisSettings(Frozen):
    """Turns are the user's: the paper's conversations have 6.1 turns on average, and it doesn't say whose it counts."""

    count: int = Field(gt=0)
    min_turns: int = Field(default=4, ge=2)
    max_turns: int = Field(default=8, ge=2)
    system_share: float = Field(default=0.3, ge=0.0, le=1.0)  # the paper: "a portion"
    max_rubrics: int = Field(default=MAX_RUBRICS, gt=0)

    @model_validator(mode="after")
    def _turns_are_in_order(self) -> Self:
        if self.max_turns < self.min_turns:
            raise ValueError(f"max_turns {self.max_turns} is below min_turns {self.min_turns}")
        return self


class DialogueSpec(Frozen):
    """What is settled before a model is asked. `tactics` has one for each user turn; `assistant` is a model's identity.

    With `has_system` the system prompt must hold for the whole dialogue, and a user turn challenges it. In a dialogue
    of one turn no assistant speaks.
    """

    id: str
    seed: int
    query: str
    persona: str = ""
    tactics: tuple[Tactic, ...]
    has_system: bool
    assistant: str


class Entry(Frozen):
    """What a journal keeps a line of."""

    @property
    def id(self) -> str:
        raise NotImplementedError


class Dialogue(Entry):
    """A finished dialogue, which ends with a user turn.

    `declines`: the right answer is to decline (IF-D6). `refused` counts the checkers that a teacher wrote for it in
    vain, by what is wrong with them.
    """

    spec: DialogueSpec
    user: str  # the identity of the model that played the user
    messages: tuple[Message, ...]
    rubrics: tuple[dict[str, Json], ...]
    declines: bool = False
    refused: dict[str, int] = Field(default_factory=dict)

    @property
    def id(self) -> str:
        return self.spec.id

    @property
    def problem(self) -> Problem:
        """The policy is trained on the answer to the last user turn (IF-D4)."""
        return Problem.build(FAMILY, self.source, self.messages, {"rubrics": list(self.rubrics)})

    @property
    def source(self) -> str:
        return SINGLE_TURN if len(self.spec.tactics) == 1 else MULTI_TURN


class FailureReason(enum.StrEnum):
    """What failed after its retries, so that there is no dialogue, or no attempts at it."""

    NO_USER = "no_user"  # the user model gave no reply
    NO_ASSISTANT = "no_assistant"
    PLAN = "plan"  # the user model's replies can't be read as what was asked for
    TURN = "turn"
    RUBRICS = "rubrics"  # neither: unreadable, none, an unknown kind, or too many
    CONSTRAINTS = "constraints"  # nor the constraints of a single turn
    NO_SOLVER = "no_solver"  # who should attempt it gave no reply
    NO_VERDICT = "no_verdict"  # neither the judge nor the sandbox, on an attempt


SILENT = frozenset({FailureReason.NO_USER, FailureReason.NO_ASSISTANT, FailureReason.NO_SOLVER})


class Failure(Frozen):
    id: str
    reason: FailureReason
    detail: str = ""


def specifications(
    settings: SynthesisSettings,
    seed: int,
    user: str,
    assistants: Sequence[str],
    queries: Sequence[Query] = OWN_QUERIES,
) -> tuple[DialogueSpec, ...]:
    """One for each dialogue. Assistants and queries rotate over the data points; the seed orders the assistants.

    Args:
        user, assistants: identities of the models.
    """
    order = list(assistants)
    random.Random(f"assistants {seed}").shuffle(order)
    shape = settings.model_dump(exclude={"count", "max_rubrics"})
    specs = []
    for index in range(settings.count):
        asked = queries[index % len(queries)]
        key = (shape, seed, index, user, sorted(assistants), asked.model_dump())
        id = content_id("dialogue", PROMPT_VERSION, *key)
        rng = random.Random(id)
        has_system = rng.random() < settings.system_share
        num_turns = rng.randint(settings.min_turns, settings.max_turns)
        specs.append(
            DialogueSpec(
                id=id,
                seed=rng.getrandbits(31),
                query=asked.query,
                persona=asked.persona,
                tactics=(Tactic.OPEN, *draw_tactics(rng, num_turns - 1, has_system)),
                has_system=has_system,
                assistant=order[index % len(order)],
            )
        )
    return tuple(specs)


def draw_tactics(rng: random.Random, count: int, has_system: bool) -> list[Tactic]:
    """Of the turns after the first: any, and where there is a system prompt at least one that challenges it."""
    choice = (Tactic.LAYER, Tactic.REVISE, Tactic.DISTRACT)
    tactics = rng.choices((*choice, Tactic.CHALLENGE) if has_system else choice, k=count)
    if has_system and Tactic.CHALLENGE not in tactics:
        tactics[rng.randrange(count)] = Tactic.CHALLENGE
    return tactics
