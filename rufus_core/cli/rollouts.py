"""`rufus rollouts show`: every rollout that a training issued, as a table, and one of them turn by turn."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from rufus_core.cli.changes import printable
from rufus_core.cli.output import chosen, console, print_json
from rufus_core.cli.parts import Home, Shared, open_home
from rufus_core.errors import LineageError, RufusError
from rufus_core.lineage.home import rufus_home
from rufus_core.lineage.record import Record
from rufus_core.lineage.sharing import fetch
from rufus_core.lineage.trainings import training_of
from rufus_core.types import Fate, Json, Termination

if TYPE_CHECKING:
    from rufus_core.rollout.stored import RolloutFacts

rollouts = typer.Typer(name="rollouts", no_args_is_help=True, help="Look at what a policy said while it was trained.")

LIMIT = 20
PROBLEM_DIGITS = 8  # of a problem's id in the table; `--problem` takes them
_ID = re.compile(r"(\d+)/(\d+)/(\d+)")
_BOUND = re.compile(r"\s*(<=|>=|<|>|=)?\s*(-?\d+(?:\.\d*)?|-?\.\d+)\s*")
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<": lambda value, bound: value < bound,
    "<=": lambda value, bound: value <= bound,
    ">": lambda value, bound: value > bound,
    ">=": lambda value, bound: value >= bound,
    "=": lambda value, bound: math.isclose(value, bound, abs_tol=1e-9),
}


class Sort(StrEnum):
    """What the table is sorted by; equal ones stay in the order in which they were sampled."""

    STEP = "step"
    REWARD = "reward"
    ADVANTAGE = "advantage"
    TOKENS = "tokens"
    CALLS = "calls"


_KEYS: dict[Sort, Callable[[RolloutFacts], float]] = {
    Sort.STEP: lambda facts: facts.step,
    Sort.REWARD: lambda facts: facts.reward,
    Sort.ADVANTAGE: lambda facts: facts.advantage or 0.0,
    Sort.TOKENS: lambda facts: facts.num_response_tokens,
    Sort.CALLS: lambda facts: facts.num_calls,
}


@rollouts.command()
def show(
    checkpoint: Annotated[str, typer.Argument(help="A stage, a digest, or the name of a checkpoint or training.")],
    rollout: Annotated[
        str | None, typer.Argument(metavar="[ROLLOUT]", help="One rollout, as the table names it: step/group/sample.")
    ] = None,
    stage: Annotated[str | None, typer.Option(metavar="STAGE", help="An earlier stage's training on the way.")] = None,
    step: Annotated[int | None, typer.Option(metavar="N", help="Of this training step.")] = None,
    problem: Annotated[
        str | None, typer.Option(metavar="ID", help="Of this problem; the first digits will do.")
    ] = None,
    sample: Annotated[
        int | None, typer.Option(metavar="N", help="Of this sample; with --step and --problem it is shown whole.")
    ] = None,
    reward: Annotated[
        str | None, typer.Option(metavar="BOUND", help="Reward after shaping, for example 1, '>0.5' or '<=0'.")
    ] = None,
    passed: Annotated[bool | None, typer.Option("--passed/--failed", help="What passed its verifier, or not.")] = None,
    termination: Annotated[Termination | None, typer.Option(help="Why the episode ended.")] = None,
    fate: Annotated[Fate | None, typer.Option(help="What became of it.")] = None,
    sort: Annotated[Sort, typer.Option(help="Smallest first, but for `--descending`.")] = Sort.STEP,
    descending: Annotated[bool, typer.Option("--descending", help="Largest first.")] = False,
    limit: Annotated[int, typer.Option(min=0, metavar="N", help="Rows at most; 0 for all.")] = LIMIT,
    tokens: Annotated[bool, typer.Option("--tokens", help="Of one rollout also its tokens, with log-probs.")] = False,
    home: Home = None,
    shared: Shared = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON; of one rollout with tokens and messages.")] = False,
) -> None:
    """Show the rollouts of a training: those that match, as a table, or a single one turn by turn."""
    from rufus_core.rollout.stored import read_rollout, step_file

    place, store = open_home(home, shared)
    record = training_of(store, chosen(store, checkpoint).record, stage)
    folder = fetch(store, record)
    group = None
    if rollout is not None:
        if step is not None or sample is not None:
            raise RufusError("a rollout's name says its step and sample", hint="leave out --step and --sample")
        step, group, sample = _parsed_id(rollout)
    admits = _bound(reward)
    facts = _read(record, folder, step)
    found = [
        each
        for each in facts
        if each.problem_id.startswith((problem or "").lower())
        and group in (None, each.group)
        and sample in (None, each.sample_index)
        and passed in (None, each.passed)
        and termination in (None, each.termination)
        and fate in (None, each.fate)
        and admits(each.reward)
    ]
    if not found:
        raise LineageError(f"none of the {len(facts)} rollouts matches", where=record.id, hint=_known(facts))
    if rollout is not None or None not in (step, problem, sample):
        if len(found) > 1:
            names = ", ".join(each.id for each in found[:8])
            raise LineageError(f"{len(found)} rollouts match", where=record.id, hint=f"name one of them: {names}")
        whole = read_rollout(step_file(folder, found[0].step), facts.index(found[0]))  # facts are of its step alone
        if json_:
            print_json(_json(whole))
            return
        from rufus_core.cli.transcript import show_rollout

        show_rollout(whole, record.id, folder, tokens, console())
        return
    found.sort(key=_KEYS[sort], reverse=descending)
    rows = found[:limit] if limit else found
    if json_:
        print_json([_json(each) for each in rows])
        return
    out = console()
    out.print(_table(rows))
    more = "" if len(rows) == len(found) else f", the first {len(rows)} of them here (--limit)"
    typer.echo(f"{len(found)} of {len(facts)} rollouts of {record.id}{more}")
    there = "" if place == rufus_home() else f" --home {shlex.quote(str(place))}"
    typer.echo(f"next:  rufus rollouts show {record.id if stage else checkpoint} {rows[0].id}{there}")


def _read(record: Record, folder: Path, step: int | None) -> list[RolloutFacts]:
    """The rollouts of a training, or of one of its steps. Raises LineageError where they aren't there."""
    from rufus_core.rollout.stored import FOLDER, read_facts, step_file, steps_in

    steps = steps_in(folder)
    if not steps:
        raise _absence(record, folder, FOLDER)
    if step is not None and step not in steps:
        raise LineageError(f"there is no step {step}", where=record.id, hint=f"there are steps {_ranges(steps)}")
    return [each for one in (steps if step is None else [step]) for each in read_facts(step_file(folder, one))]


def _absence(record: Record, folder: Path, kept: str) -> LineageError:
    if "rollouts.jsonl" in record.files:
        what = "this training kept only the first rollouts of each step, without tokens: an earlier release made it"
        hint = f"read {folder / 'rollouts.jsonl'}, or train anew: rufus run"
        return LineageError(what, where=record.id, hint=hint)
    if any(path.startswith(f"{kept}/") for path in record.files):
        return LineageError("its rollouts were collected", where=record.id, hint="rufus run makes them again")
    return LineageError(
        "this training has no rollouts",
        where=record.id,
        hint="supervised fine-tuning samples nothing; name an RL stage",
    )


def _parsed_id(text: str) -> tuple[int, int, int]:
    parts = _ID.fullmatch(text)
    if parts is None:
        raise RufusError(f"{text!r} names no rollout", hint="step/group/sample, as the table shows: 3/0/2")
    return int(parts[1]), int(parts[2]), int(parts[3])


def _bound(text: str | None) -> Callable[[float], bool]:
    """What a bound admits, for example `>0.5`; without one, everything."""
    if text is None:
        return lambda _: True
    parts = _BOUND.fullmatch(text)
    if parts is None:
        raise RufusError(f"{text!r} is no bound of a reward", where="--reward", hint="for example 1, '>0.5' or '<=0'")
    compare, bound = _COMPARE[parts[1] or "="], float(parts[2])
    return lambda value: compare(value, bound)


def _known(facts: Sequence[RolloutFacts]) -> str:
    """What there is, as a hint to who asked for something else."""
    rewards = [each.reward for each in facts]
    ends = ", ".join(sorted({each.termination.value for each in facts}))
    problems = len({each.problem_id for each in facts})
    return f"{problems} problems, rewards from {min(rewards):g} to {max(rewards):g}, ended by {ends}"


def _ranges(steps: Sequence[int]) -> str:
    """For example `1 to 4, 9`."""
    parts: list[str] = []
    first = previous = steps[0]
    for step in [*steps[1:], -1]:
        if step != previous + 1:
            parts.append(f"{first} to {previous}" if previous > first else str(first))
            first = step
        previous = step
    return ", ".join(parts)


def _table(rows: Sequence[RolloutFacts]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for name in ("rollout", "problem", "family", "fate"):
        table.add_column(name, no_wrap=True)
    for name in ("reward", "adv.", "tokens", "calls"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("ended")  # the only one that gives way where a terminal is narrow
    for each in rows:
        table.add_row(
            each.id,
            each.problem_id[:PROBLEM_DIGITS],
            Text(printable(each.family)),
            each.fate,
            f"{each.reward:.3g}",
            "-" if each.advantage is None else f"{each.advantage:+.2f}",
            str(each.num_response_tokens),
            str(each.num_calls),
            "pass" if each.passed else "",
            Text(_end(each), no_wrap=True, overflow="ellipsis"),
        )
    return table


def _end(facts: RolloutFacts) -> str:
    return facts.termination.value + ("" if facts.extracted is None else f": {printable(facts.extracted)}")


def _json(rollout: RolloutFacts) -> Json:
    return _plain({"id": rollout.id, **asdict(rollout)})


def _plain(value: object) -> Json:
    """As JSON can say it: a number that isn't finite is a string, as in a training's metrics."""
    import numpy as np
    from pydantic import BaseModel

    match value:
        case float() if not math.isfinite(value):
            return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
        case dict():
            return {key: _plain(each) for key, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case BaseModel():
            return value.model_dump(mode="json", exclude_defaults=True)
        case np.ndarray():
            return value.tolist()
        case _:
            return value
