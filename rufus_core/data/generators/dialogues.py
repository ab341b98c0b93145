"""Dialogues in which a user tries to make the assistant fail, by rule (IF-D4, IF-D5): no model is asked.

User and assistants follow scripts over the library in `data/constraints`. Requirements are layered, revised and
obscured; some dialogues have a system prompt, whose rule must hold although the user challenges it. The rubrics are
what holds at the last turn and nothing else (IF-D7); the witness is a text that meets them all.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping

from rufus_core.data.constraints.library import negative
from rufus_core.data.generators.constraints import demonstrate, read_queries
from rufus_core.data.generators.sampling import distinct, refuse_unknown
from rufus_core.data.synthesis.dialogue import FAMILY, Tactic, draw_tactics
from rufus_core.data.synthesis.script import Turn, write_script
from rufus_core.errors import DataError
from rufus_core.types import Json, Message, Problem

__all__ = ["demonstrate", "problems"]

SOURCE = "dialogues"
MIN_TURNS, MAX_TURNS, SYSTEM_SHARE = 2, 6, 0.3
_MOST_TURNS = 12  # a user's; more say nothing new


def problems(seed: int, count: int, options: Mapping[str, Json]) -> Iterator[Problem]:
    """Practically without end.

    Args:
        options: `queries`, a list of requests to begin with; `min_turns` (2) and `max_turns` (6) of the user;
            `system_share` (0.3), the share with a system prompt.

    Raises:
        DataError: an unknown option, or one that can't be used.
    """
    refuse_unknown(options, "queries", "min_turns", "max_turns", "system_share")
    queries = read_queries(options)
    least, most = options.get("min_turns", MIN_TURNS), options.get("max_turns", MAX_TURNS)
    if not (isinstance(least, int) and isinstance(most, int) and 2 <= least <= most <= _MOST_TURNS):
        raise DataError(f"from {least!r} to {most!r} turns can't be asked for", hint=f"2 to {_MOST_TURNS}")
    share = options.get("system_share", SYSTEM_SHARE)
    if not (isinstance(share, int | float) and 0 <= share <= 1):
        raise DataError(f"a share of {share!r} can't have a system prompt", hint="from 0 to 1")
    return distinct(
        lambda rng: _problem(rng, rng.choice(queries), rng.randint(least, most), rng.random() < share), seed, count
    )


def _problem(rng: random.Random, query: str, num_turns: int, has_system: bool) -> Problem:
    tactics = (Tactic.OPEN, *draw_tactics(rng, num_turns - 1, has_system))
    script = write_script(rng, query, tactics, has_system)
    reply = ASSISTANTS[rng.choice(sorted(ASSISTANTS))]
    prompt = [] if script.system is None else [Message(role="system", content=script.system)]
    for turn in script.turns[:-1]:
        prompt.append(Message(role="user", content=turn.said))
        prompt.append(Message(role="assistant", content=reply(turn, rng)))
    last = script.turns[-1]
    prompt.append(Message(role="user", content=last.said))
    return Problem.build(FAMILY, SOURCE, prompt, {"rubrics": list(last.holds), "witness": last.witness})


def _obedient(turn: Turn, _rng: random.Random) -> str:
    return turn.witness


def _careless(turn: Turn, rng: random.Random) -> str:
    """Misses a requirement, as the policy may be tempted to do again."""
    return negative(rng.choice(turn.holds), turn.witness, rng)


def _wavering(turn: Turn, rng: random.Random) -> str:
    return rng.choice((_obedient, _careless))(turn, rng)


# They rotate over the problems (IF-D4).
ASSISTANTS: dict[str, Callable[[Turn, random.Random], str]] = {
    "obedient": _obedient,
    "careless": _careless,
    "wavering": _wavering,
}
