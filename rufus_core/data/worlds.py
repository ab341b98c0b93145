"""Scenario worlds of the General Agent stage: a SQLite schema each, and tools that read and write it (GA-E1).

A tool is a function of a database and its arguments. Its name, docstring and signature are what the policy sees, so
they are short. The gym (`rufus_core.gym.mcp_world`) serves these tools; the problem generator replays solutions on them
to learn what the tools say and what state they leave behind.
"""

from __future__ import annotations

import inspect
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from rufus_core.errors import DataError
from rufus_core.types import Frozen, Json, ToolCall, ToolSchema

Tool = Callable[..., str]
Rows = Mapping[str, Sequence[Sequence[Json]]]  # table name to rows

_JSON_TYPES = {"str": "string", "int": "integer"}


class Check(Frozen):
    """A query of the final database and the rows it must return."""

    query: str
    rows: list[list[Json]]


class WorldTruth(Frozen):
    """Ground truth of a General Agent problem. Success means that every check holds (GA-R1)."""

    world: str
    rows: dict[str, list[list[Json]]]  # what the database holds at first
    checks: list[Check]
    solution: tuple[ToolCall, ...] = ()  # calls that succeed, for demonstrations


class ToolFailure(Exception):
    """A tool can't do what it was asked to; the message is what the policy reads."""


@dataclass(frozen=True, slots=True)
class World:
    name: str
    schema: str  # SQL
    tables: tuple[str, ...]
    tools: tuple[Tool, ...]

    def connect(self, rows: Rows) -> sqlite3.Connection:
        """A fresh in-memory database that holds `rows`. Raises sqlite3.Error for rows that don't fit the schema."""
        database = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        try:
            database.executescript(self.schema)
            for table in self.tables:
                for row in rows.get(table, ()):
                    database.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)  # noqa: S608
        except BaseException:
            database.close()
            raise
        return database

    def tool_schemas(self) -> tuple[ToolSchema, ...]:
        return tuple(_schema(tool) for tool in self.tools)

    def run(self, database: sqlite3.Connection, name: str, arguments: Mapping[str, Json]) -> str:
        """What the tool `name` says. The arguments must fit its schema. Raises ToolFailure."""
        tool = next(tool for tool in self.tools if tool.__name__ == name)
        try:
            return tool(database, **arguments)
        except (OverflowError, UnicodeEncodeError) as error:  # valid JSON that SQLite can't hold
            raise ToolFailure("error: bad value") from error


def _schema(tool: Tool) -> ToolSchema:
    parameters = list(inspect.signature(tool).parameters.values())[1:]  # the first is the database
    return ToolSchema(
        name=tool.__name__,
        description=inspect.getdoc(tool) or "",
        parameters={
            "type": "object",
            "properties": {p.name: {"type": _JSON_TYPES[p.annotation]} for p in parameters},
            "required": [p.name for p in parameters],
            "additionalProperties": False,
        },
    )


def _change(database: sqlite3.Connection, missing: str, sql: str, *values: Json) -> str:
    """Run a write that must touch a row."""
    if database.execute(sql, values).rowcount == 0:
        raise ToolFailure(f"error: no {missing}")
    return "done"


def _find(database: sqlite3.Connection, missing: str, sql: str, *values: Json) -> tuple[Json, ...]:
    row: tuple[Json, ...] | None = database.execute(sql, values).fetchone()
    if row is None:
        raise ToolFailure(f"error: no {missing}")
    return row


# -- shop -------------------------------------------------------------------------------------------------------------


def get_price(database: sqlite3.Connection, item: str) -> str:
    """Price of an item."""
    (price,) = _find(database, "item", "SELECT price FROM items WHERE name = ?", item)
    return f"price {price}"


def set_price(database: sqlite3.Connection, item: str, price: int) -> str:
    """Change the price of an item."""
    return _change(database, "item", "UPDATE items SET price = ? WHERE name = ?", price, item)


def find_order(database: sqlite3.Connection, customer: str, item: str) -> str:
    """Number of an order."""
    sql = "SELECT id FROM orders WHERE customer = ? AND item = ? ORDER BY id"
    (order,) = _find(database, "order", sql, customer, item)
    return f"order {order}"


def cancel_order(database: sqlite3.Connection, order: int) -> str:
    """Cancel an order by number."""
    return _change(database, "order", "DELETE FROM orders WHERE id = ?", order)


# -- library ----------------------------------------------------------------------------------------------------------


def find_loan(database: sqlite3.Connection, reader: str, thing: str) -> str:
    """Number of a loan."""
    sql = "SELECT id FROM loans WHERE reader = ? AND thing = ? ORDER BY id"
    (loan,) = _find(database, "loan", sql, reader, thing)
    return f"loan {loan}"


def end_loan(database: sqlite3.Connection, loan: int) -> str:
    """End a loan by number."""
    return _change(database, "loan", "DELETE FROM loans WHERE id = ?", loan)


def extend_loan(database: sqlite3.Connection, loan: int, days: int) -> str:
    """Give a loan more days."""
    return _change(database, "loan", "UPDATE loans SET days = days + ? WHERE id = ?", days, loan)


def lend(database: sqlite3.Connection, reader: str, thing: str) -> str:
    """Lend a thing to a reader."""
    database.execute("INSERT INTO loans (reader, thing, days) VALUES (?, ?, 7)", (reader, thing))
    return "done"


# -- calendar ---------------------------------------------------------------------------------------------------------


def find_meeting(database: sqlite3.Connection, person: str, place: str) -> str:
    """Number and hour of a meeting."""
    sql = "SELECT id, hour FROM meetings WHERE person = ? AND place = ? ORDER BY id"
    meeting, hour = _find(database, "meeting", sql, person, place)
    return f"meeting {meeting} hour {hour}"


def move_meeting(database: sqlite3.Connection, meeting: int, hour: int) -> str:
    """Move a meeting to an hour."""
    return _change(database, "meeting", "UPDATE meetings SET hour = ? WHERE id = ?", hour, meeting)


def cancel_meeting(database: sqlite3.Connection, meeting: int) -> str:
    """Cancel a meeting by number."""
    return _change(database, "meeting", "DELETE FROM meetings WHERE id = ?", meeting)


WORLDS: dict[str, World] = {
    "shop": World(
        name="shop",
        schema="""
            CREATE TABLE items (name TEXT PRIMARY KEY, price INTEGER NOT NULL);
            CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT NOT NULL, item TEXT NOT NULL);
        """,
        tables=("items", "orders"),
        tools=(get_price, set_price, find_order, cancel_order),
    ),
    "library": World(
        name="library",
        schema="CREATE TABLE loans (id INTEGER PRIMARY KEY, reader TEXT NOT NULL, thing TEXT NOT NULL, days INTEGER)",
        tables=("loans",),
        tools=(find_loan, end_loan, extend_loan, lend),
    ),
    "calendar": World(
        name="calendar",
        schema="CREATE TABLE meetings (id INTEGER PRIMARY KEY, person TEXT NOT NULL, place TEXT, hour INTEGER)",
        tables=("meetings",),
        tools=(find_meeting, move_meeting, cancel_meeting),
    ),
}


def read_world(
    truth: Mapping[str, Json], worlds: Mapping[str, World] = WORLDS
) -> tuple[WorldTruth, sqlite3.Connection]:
    """A General Agent problem's ground truth, and a fresh database with its rows.

    Raises DataError for a world that doesn't exist, and for rows that don't fit it.
    """
    try:
        read = WorldTruth.model_validate(truth)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(("ground_truth", *map(str, first["loc"])))
        raise DataError(f"{field}: {first['msg']}") from error
    if read.world not in worlds:
        raise DataError(f"unknown world {read.world!r}", hint=f"known: {', '.join(worlds)}")
    try:
        return read, worlds[read.world].connect(read.rows)
    except (sqlite3.Error, OverflowError, ValueError) as error:
        raise DataError(f"the rows don't fit the world {read.world!r}: {error}") from error
