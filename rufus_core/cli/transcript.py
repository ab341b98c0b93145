"""One rollout, turn by turn, as a person reads it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rufus_core.cli.changes import printable
from rufus_core.lineage.names import CHECKPOINTS
from rufus_core.types import Message, Termination

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from rufus_core.rollout.stored import StoredRollout

_ROLE = {"system": "magenta", "user": "blue", "assistant": "green", "tool": "yellow"}
_CUT_OFF = (Termination.MAX_GENERATION_LENGTH, Termination.MAX_CONTEXT_LENGTH)
# Log-prob from which on a token has this colour; the rest was unlikely.
_LIKELY = ((-0.1, "green"), (-1.0, "yellow"), (-3.0, "dark_orange"))
_UNLIKELY = "red"


def show_rollout(rollout: StoredRollout, training: str, folder: Path, tokens: bool, out: Console) -> None:
    """Print what was said, who said it, and what came of it.

    Args:
        folder: of the training, whose tokenizer tells what a token says; without one, its id stands for it.
        tokens: also each token, with its log-prob.
    """
    tokenizer = _tokenizer(folder)
    for line in _head(rollout, training):
        out.print(line, soft_wrap=True)
    for message in rollout.messages:
        print_message(message, out)
    if cut_off := _cut_off(rollout):
        text = tokenizer.decode(cut_off, skip_special_tokens=False) if tokenizer else f"{len(cut_off)} tokens"
        _print_role("assistant", "cut off", out)
        _print_text(text, "", out)
    out.print()
    out.print(Text(_end(rollout), style="bold"), soft_wrap=True)
    if tokens:
        out.print()
        out.print(_tokens_table(rollout, tokenizer))


def _head(rollout: StoredRollout, training: str) -> Iterator[Text]:
    yield Text(f"rollout {rollout.id} of {training}", style="bold")
    where = f"group {rollout.group}, sample {rollout.sample_index}, round {rollout.round}"
    yield Text(printable(f"problem {rollout.problem_id}, {rollout.family} of {rollout.source}; {where}"))
    advantage = "" if rollout.advantage is None else f", advantage {rollout.advantage:+.4g}"
    why = f" ({rollout.why})" if rollout.why else ""
    yield Text(f"{rollout.fate}{why}: reward {rollout.reward:.4g}, score {rollout.score:.4g}{advantage}")
    told = [rollout.verdict.value]
    told += [rollout.reason] if rollout.reason else []
    told += [] if rollout.extracted is None else [f"answer {rollout.extracted!r}"]
    yield Text(printable(f"verdict: {', '.join(told)}"))
    if rollout.reward_parts:
        parts = ", ".join(f"{name} {value:.4g}" for name, value in rollout.reward_parts.items())
        yield Text(printable(f"reward parts: {parts}"))


def _end(rollout: StoredRollout) -> str:
    calls = f"{rollout.num_calls} calls ({rollout.num_malformed_calls} malformed)"
    sampled = f"{rollout.num_response_tokens} of {len(rollout.token_ids)} tokens sampled by weights "
    return f"ended: {rollout.termination}; {sampled}{printable(rollout.weight_version)}, {calls}"


def print_message(message: Message, out: Console) -> None:
    _print_role(message.role, "", out)
    if message.reasoning:
        _print_text(message.reasoning, "dim italic", out)
    if message.content:
        _print_text(message.content, "", out)
    for call in message.tool_calls:
        _print_text(f"-> {call.name}({json.dumps(call.arguments, ensure_ascii=False)})", "cyan", out)


def _print_role(role: str, note: str, out: Console) -> None:
    out.print()
    out.print(Text(role, style=f"bold {_ROLE[role]}"), Text(note, style="red"))


def _print_text(text: str, style: str, out: Console) -> None:
    safe = "\n".join(map(printable, text.split("\n")))  # a policy's text must not steer the terminal
    out.print(Padding(Text(safe, style=style), (0, 0, 0, 2)))


def _cut_off(rollout: StoredRollout) -> list[int]:
    """Ids of a last turn that no message holds, for it was never finished."""
    sampled = [
        [id_ for id_, _ in run]
        for mask, run in groupby(zip(rollout.token_ids, rollout.loss_mask, strict=True), key=lambda pair: pair[1])
        if mask
    ]
    roles = [message.role for message in rollout.messages]
    asked = len(roles) - roles[::-1].index("user") if "user" in roles else 0
    finished = roles[asked:].count("assistant")
    return sampled[-1] if rollout.termination in _CUT_OFF and len(sampled) > finished else []


def _tokens_table(rollout: StoredRollout, tokenizer: Tokenizer | None) -> Table:
    """Sampled tokens have a log-prob, by which they are coloured; the rest was given."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("position", "id"):
        table.add_column(name, justify="right")
    table.add_column("token", overflow="fold")
    table.add_column("mask", justify="right")
    table.add_column("log-prob", justify="right")
    table.add_column("weights")
    columns = zip(rollout.token_ids, rollout.loss_mask, rollout.logprobs, strict=True)
    for position, (id_, mask, logprob) in enumerate(columns):
        said = tokenizer.decode([id_], skip_special_tokens=False) if tokenizer else ""
        shown = Text(printable(repr(said)), style=_colour(logprob) if mask else "dim")
        given = (f"{logprob:.4f}", printable(rollout.weight_version)) if mask else ("", "")
        table.add_row(str(position), str(id_), shown, str(mask), *given)
    return table


def _colour(logprob: float) -> str:
    return next((colour for bound, colour in _LIKELY if logprob >= bound), _UNLIKELY)


def _tokenizer(folder: Path) -> Tokenizer | None:
    """That of the steps which a training kept: they all have the same."""
    from tokenizers import Tokenizer

    files: Sequence[Path] = sorted((folder / CHECKPOINTS).glob("*/tokenizer.json"))
    return Tokenizer.from_file(str(files[0])) if files else None
