"""The terminal side of `rufus chat`: reading lines, commands, showing an answer as it comes."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import aclosing
from typing import TYPE_CHECKING

from rich.console import Console

from rufus_core.errors import ConfigError, RufusError

if TYPE_CHECKING:
    from rufus_core.rollout.server.conversation import Conversation

HELP = """\
/system TEXT        say what the assistant is; without TEXT, nothing
/set NAME VALUE     temperature, top_p, top_k, max_tokens or seed
/settings           show them
/reset              forget what was said
/quit               leave, as does Ctrl-D; Ctrl-C stops an answer"""

# What a policy says may not move the cursor or change the terminal.
_NO_CONTROL = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def talk(runner: asyncio.Runner, conversation: Conversation, out: Console) -> bool:
    """Read and answer until the end of the input. Returns whether every message was answered."""
    terminal = sys.stdin.isatty()
    fine = True
    while True:
        try:
            line = input("> " if terminal else "").strip()
        except EOFError:
            break
        except KeyboardInterrupt:  # Ctrl-C where nothing is to be stopped
            out.print("\nCtrl-D or /quit leaves.", style="dim")
            continue
        if line == "/quit":
            return fine
        try:
            if line.startswith("/"):
                obey(conversation, line, out)
            elif line:
                runner.run(show_answer(conversation, line, out))
        except KeyboardInterrupt:
            out.print("\n[stopped]", style="dim", markup=False)
        except RufusError as error:
            fine = False
            Console(stderr=True, highlight=False).print(f"error: {error}", markup=False, soft_wrap=True)
    if terminal:
        out.print()
    return fine


def obey(conversation: Conversation, line: str, out: Console) -> None:
    """Carry out one command. Raises ConfigError for an unknown one, EngineError for a wrong value."""
    command, _, rest = line.partition(" ")
    rest = rest.strip()
    match command:
        case "/reset":
            conversation.reset()
        case "/system":
            conversation.system = rest
        case "/set":
            name, _, value = rest.partition(" ")
            conversation.settings = conversation.settings.changed(name, _value(value))
        case "/settings":
            for name, value in conversation.settings.model_dump().items():
                out.print(f"{name} {value}", markup=False)
        case "/help":
            out.print(HELP, markup=False)
        case _:
            raise ConfigError(f"there is no {command}", hint="/help shows the commands")


async def show_answer(conversation: Conversation, text: str, out: Console) -> None:
    """Print an answer as it comes; what the policy thinks is dim."""
    last = ""
    async with aclosing(conversation.answer(text)) as pieces:
        async for part, piece in pieces:
            if last and part != last:
                out.print("\n")
            last = part
            piece = piece.translate(_NO_CONTROL)
            out.print(piece, end="", style="dim" if part == "reasoning" else None, markup=False, soft_wrap=True)
    out.print()


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None if text == "none" else text
