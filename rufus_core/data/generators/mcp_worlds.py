"""General Agent problems: one small change of a scenario world, told in one sentence (GA-E1).

The state that counts as success is found by replaying the solution: every table must read as it does afterwards, so
nothing else may change. The initial rows are a function of the sentence: numbers in observations can't be guessed, and
two problems never share a sentence.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import product
from typing import Any

from rufus_core.data.generators.enumeration import take_in_turn
from rufus_core.data.generators.sampling import refuse_unknown
from rufus_core.data.words import NAMES, NOUNS, PLACES
from rufus_core.data.worlds import WORLDS, Check, ToolFailure, World, WorldTruth
from rufus_core.errors import DataError
from rufus_core.types import Json, Message, Problem, ToolCall, content_id

SOURCE = "mcp_worlds"

_NUM_ROWS = 4
_IDS = range(10, 100)
_PRICES = range(2, 100)
_HOURS = range(8, 19)
_DAYS = range(2, 10)

Scenario = tuple[dict[str, list[list[Json]]], list[ToolCall]]  # initial rows, solution


@dataclass(frozen=True, slots=True)
class _Task:
    """A kind of change: its phrasings, what can be filled in, and the scenario behind a filled-in sentence."""

    world: str
    phrasings: tuple[str, ...]
    slots: dict[str, Sequence[Any]]
    scenario: Callable[[random.Random, dict[str, Any]], Scenario]


def problems(seed: int, count: int, options: Mapping[str, Json]) -> Iterator[Problem]:
    """`count` distinct problems, the kinds in turn.

    Args:
        options: `worlds`, a list of world names; all of them by default.

    Raises:
        DataError: an unknown option or world, or `count` exceeds the space (38,640 sentences).
    """
    refuse_unknown(options, "worlds")
    wanted = options.get("worlds", list(WORLDS))
    if unknown := [name for name in wanted if name not in WORLDS]:
        raise DataError(f"unknown world {unknown[0]!r}", where="options.worlds", hint=f"known: {', '.join(WORLDS)}")
    for task, phrasing, fill in take_in_turn(map(_sentences, [t for t in _TASKS if t.world in wanted]), count, seed):
        yield _problem(task, phrasing, fill)


def demonstrate(problem: Problem, rng: random.Random, wrong: bool) -> list[Message]:
    """The solution with the observations it meets; `wrong` spoils or leaves out a call."""
    truth = WorldTruth.model_validate(problem.ground_truth)
    calls = _spoil(truth.solution, rng) if wrong else truth.solution
    messages: list[Message] = []
    world = WORLDS[truth.world]
    with closing(world.connect(truth.rows)) as database:
        for call in calls:
            messages.append(Message(role="assistant", reasoning="", tool_calls=(call,)))
            messages.append(Message(role="tool", content=_observe(world, database, call)))
    messages.append(Message(role="assistant", reasoning="", content="Done."))
    return messages


def _observe(world: World, database: sqlite3.Connection, call: ToolCall) -> str:
    try:
        return world.run(database, call.name, call.arguments)
    except ToolFailure as failure:
        return str(failure)


def _spoil(calls: Sequence[ToolCall], rng: random.Random) -> list[ToolCall]:
    """Leave out the change, or change one argument of it to another word or number of its kind."""
    *before, change = calls
    if rng.random() < 0.25:
        return before
    key = rng.choice(sorted(change.arguments))
    right = change.arguments[key]
    wrong = rng.choice([value for value in _alternatives(right) if value != right])
    return [*before, ToolCall(name=change.name, arguments={**change.arguments, key: wrong})]


def _alternatives(value: Json) -> Sequence[Json]:
    if isinstance(value, int):
        return range(max(1, value - 9), value + 10)
    return next(words for words in (NAMES, NOUNS, PLACES) if value in words)


def _sentences(task: _Task) -> Iterator[tuple[_Task, str, dict[str, Any]]]:
    for phrasing, values in product(task.phrasings, product(*task.slots.values())):
        fill = dict(zip(task.slots, values, strict=True))
        if len(set(values)) == len(values):  # `other` is another one
            yield task, phrasing, fill


def _problem(task: _Task, phrasing: str, fill: dict[str, Any]) -> Problem:
    sentence = phrasing.format(**fill)
    rows, solution = task.scenario(random.Random(content_id(sentence)), fill)
    world = WORLDS[task.world]
    queries = [f"SELECT * FROM {table} ORDER BY 1" for table in world.tables]  # noqa: S608
    with closing(world.connect(rows)) as database:
        for call in solution:
            world.run(database, call.name, call.arguments)
        checks = [Check(query=query, rows=[list(row) for row in database.execute(query)]) for query in queries]
    return Problem.build(
        family=task.world,
        source=SOURCE,
        prompt=(Message(role="user", content=sentence),),
        ground_truth=WorldTruth(world=task.world, rows=rows, checks=checks, solution=tuple(solution)).model_dump(),
        tools=world.tool_schemas(),
    )


# -- scenarios ------------------------------------------------------------------------------------------------------


def _call(name: str, **arguments: Json) -> ToolCall:
    return ToolCall(name=name, arguments=arguments)


def _pairs(rng: random.Random, own: Sequence[tuple[str, str]], others: Sequence[str]) -> list[tuple[str, str]]:
    """`own` pairs and distractors that share a name or a thing with the first of them, shuffled."""
    name, thing = own[0]
    pairs = list(own)
    while len(pairs) < _NUM_ROWS:
        pair = (name, rng.choice(others)) if rng.random() < 0.5 else (rng.choice(NAMES), thing)
        if pair not in pairs:
            pairs.append(pair)
    rng.shuffle(pairs)
    return pairs


def _items(rng: random.Random, *items: str) -> list[list[Json]]:
    names = {*items, *rng.sample(NOUNS, _NUM_ROWS - len(items))}
    prices = rng.sample(_PRICES, len(names))
    return [[name, price] for name, price in zip(sorted(names), prices, strict=True)]


def _set_price(rng: random.Random, fill: dict[str, Any]) -> Scenario:
    items = _items(rng, fill["item"])
    for row in items:  # the new price is new, or there is nothing to do
        row[1] = row[1] if row[1] != fill["price"] else 1
    return {"items": items, "orders": []}, [_call("set_price", item=fill["item"], price=fill["price"])]


def _copy_price(rng: random.Random, fill: dict[str, Any]) -> Scenario:
    items = _items(rng, fill["item"], fill["other"])
    price = dict(items)[fill["other"]]
    calls = [
        _call("get_price", item=fill["other"]),
        _call("set_price", item=fill["item"], price=price),
    ]
    return {"items": items, "orders": []}, calls


def _cancel_order(rng: random.Random, fill: dict[str, Any]) -> Scenario:
    pairs = _pairs(rng, [(fill["name"], fill["item"])], NOUNS)
    ids = sorted(rng.sample(_IDS, len(pairs)))
    orders = [[key, *pair] for key, pair in zip(ids, pairs, strict=True)]
    order = ids[pairs.index((fill["name"], fill["item"]))]
    calls = [
        _call("find_order", customer=fill["name"], item=fill["item"]),
        _call("cancel_order", order=order),
    ]
    return {"items": _items(rng, fill["item"]), "orders": orders}, calls


def _loans(rng: random.Random, fill: dict[str, Any]) -> tuple[list[list[Json]], int]:
    pairs = _pairs(rng, [(fill["name"], fill["item"])], NOUNS)
    ids = sorted(rng.sample(_IDS, len(pairs)))
    loans = [[key, *pair, rng.choice(_DAYS)] for key, pair in zip(ids, pairs, strict=True)]
    return loans, ids[pairs.index((fill["name"], fill["item"]))]


def _end_loan(rng: random.Random, fill: dict[str, Any]) -> Scenario:
    loans, loan = _loans(rng, fill)
    return {"loans": loans}, [
        _call("find_loan", reader=fill["name"], thing=fill["item"]),
        _call("end_loan", loan=loan),
    ]


def _extend_loan(rng: random.Random, fill: dict[str, Any]) -> Scenario:
    loans, loan = _loans(rng, fill)
    return {"loans": loans}, [
        _call("find_loan", reader=fill["name"], thing=fill["item"]),
        _call("extend_loan", loan=loan, days=fill["days"]),
    ]


def _lend(rng: random.Random, fill: dict[str, Any]) -> Scenario:
    loans, loan = _loans(rng, fill)
    return {"loans": [row for row in loans if row[0] != loan]}, [_call("lend", reader=fill["name"], thing=fill["item"])]


def _meetings(rng: random.Random, *own: tuple[str, str]) -> tuple[list[list[Json]], list[tuple[int, int]]]:
    """All meetings, and number and hour of each of `own`. All hours differ."""
    pairs = _pairs(rng, own, PLACES)
    ids = sorted(rng.sample(_IDS, len(pairs)))
    hours = rng.sample(_HOURS, len(pairs))
    meetings = [[key, *pair, hour] for key, pair, hour in zip(ids, pairs, hours, strict=True)]
    places = [pairs.index(pair) for pair in own]
    return meetings, [(ids[index], hours[index]) for index in places]


def _cancel_meeting(rng: random.Random, fill: dict[str, Any]) -> Scenario:
    meetings, [(meeting, _)] = _meetings(rng, (fill["name"], fill["place"]))
    return {"meetings": meetings}, [
        _call("find_meeting", person=fill["name"], place=fill["place"]),
        _call("cancel_meeting", meeting=meeting),
    ]


def _move_meeting(rng: random.Random, fill: dict[str, Any]) -> Scenario:
    meetings, [(meeting, _)] = _meetings(rng, (fill["name"], fill["place"]))
    for row in meetings:  # as for prices: the new hour is new
        row[3] = row[3] if row[3] != fill["hour"] else 7
    return {"meetings": meetings}, [
        _call("find_meeting", person=fill["name"], place=fill["place"]),
        _call("move_meeting", meeting=meeting, hour=fill["hour"]),
    ]


def _match_meeting(rng: random.Random, fill: dict[str, Any]) -> Scenario:
    place = fill["place"]
    meetings, [(meeting, _), (_, hour)] = _meetings(rng, (fill["name"], place), (fill["other"], place))
    return {"meetings": meetings}, [
        _call("find_meeting", person=fill["other"], place=place),
        _call("find_meeting", person=fill["name"], place=place),
        _call("move_meeting", meeting=meeting, hour=hour),
    ]


_TASKS = (
    _Task(
        world="shop",
        phrasings=("Set the price of {item} to {price}.", "Let the {item} cost {price} from now on."),
        slots={"item": NOUNS, "price": _PRICES},
        scenario=_set_price,
    ),
    _Task(
        world="shop",
        phrasings=("Set the price of {item} to that of {other}.", "Let the {item} cost as much as the {other}."),
        slots={"item": NOUNS, "other": NOUNS},
        scenario=_copy_price,
    ),
    _Task(
        world="shop",
        phrasings=("Cancel the {item} order of {name}.", "{name} no longer wants the {item}."),
        slots={"item": NOUNS, "name": NAMES},
        scenario=_cancel_order,
    ),
    _Task(
        world="library",
        phrasings=("{name} brought back the {item}.", "End the {item} loan of {name}."),
        slots={"name": NAMES, "item": NOUNS},
        scenario=_end_loan,
    ),
    _Task(
        world="library",
        phrasings=("Extend the {item} loan of {name} by {days} days.", "{name} needs the {item} {days} more days."),
        slots={"name": NAMES, "item": NOUNS, "days": _DAYS},
        scenario=_extend_loan,
    ),
    _Task(
        world="library",
        phrasings=("Lend the {item} to {name}.", "{name} borrows the {item}."),
        slots={"name": NAMES, "item": NOUNS},
        scenario=_lend,
    ),
    _Task(
        world="calendar",
        phrasings=("Cancel the {place} meeting of {name}.", "{name} won't come to {place}. Cancel it."),
        slots={"name": NAMES, "place": PLACES},
        scenario=_cancel_meeting,
    ),
    _Task(
        world="calendar",
        phrasings=("Move the {place} meeting of {name} to {hour}.", "Meet {name} in {place} at {hour} instead."),
        slots={"name": NAMES, "place": PLACES, "hour": _HOURS},
        scenario=_move_meeting,
    ),
    _Task(
        world="calendar",
        phrasings=(
            "Move the {place} meeting of {name} to the hour of {other}.",
            "Meet {name} in {place} when {other} is there.",
        ),
        slots={"name": NAMES, "other": NAMES, "place": PLACES},
        scenario=_match_meeting,
    ),
)
