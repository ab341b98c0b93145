"""Holds dialogues: a user model plans and speaks, an assistant answers, and the user model says what must hold."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from rufus_core.data.synthesis.dialogue import (
    OWN_QUERIES,
    SILENT,
    Dialogue,
    DialogueSpec,
    Failure,
    FailureReason,
    Query,
    SynthesisSettings,
    specifications,
)
from rufus_core.data.synthesis.journal import EntryT, Journal
from rufus_core.data.synthesis.requests import (
    plan_request,
    read_plan,
    read_rubrics,
    read_turn,
    rubrics_request,
    turn_request,
)
from rufus_core.errors import ConfigError, InfrastructureError
from rufus_core.ports.engine import ChatModel
from rufus_core.types import Message

_ATTEMPTS = 3  # at a reply that can be read; a client's own retries come on top
GIVE_UP = 64  # items in a row that nobody replied to: the endpoint is down

ResultT = TypeVar("ResultT")


class Item(Protocol):
    @property
    def id(self) -> str: ...


ItemT = TypeVar("ItemT", bound=Item)


@dataclass(frozen=True, slots=True)
class Synthesis:
    """In the order of the specifications: every one of them is a dialogue or a failure."""

    dialogues: tuple[Dialogue, ...]
    failures: tuple[Failure, ...]

    @classmethod
    def of(cls, outcomes: Sequence[Dialogue | Failure]) -> Synthesis:
        return cls(
            tuple(outcome for outcome in outcomes if isinstance(outcome, Dialogue)),
            tuple(outcome for outcome in outcomes if isinstance(outcome, Failure)),
        )

    @property
    def counts(self) -> dict[str, int]:
        failed = Counter(f"failed_{failure.reason}" for failure in self.failures)
        return {"asked": len(self.dialogues) + len(self.failures), "dialogues": len(self.dialogues), **failed}


class Failed(Exception):
    """An item can't be finished; it becomes a `Failure`."""

    def __init__(self, reason: FailureReason, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


def synthesise(
    settings: SynthesisSettings,
    seed: int,
    user: ChatModel,
    assistants: Sequence[ChatModel],
    kinds: Mapping[str, str],
    journal: Path,
    workers: int = 8,
    queries: Sequence[Query] = OWN_QUERIES,
    on_done: Callable[[], None] = lambda: None,
) -> Synthesis:
    """Hold `settings.count` dialogues, `workers` at a time; what `journal` has of them isn't asked for again.

    Args:
        kinds: of rubrics that may be named, each with a line on what it needs.

    Raises:
        ConfigError: there is no assistant, two of them are the same, or an endpoint refuses us.
        DataError: the journal can't be read.
    """
    specs, hold = dialogue_maker(settings, seed, user, assistants, kinds, queries)
    with Journal(journal, Dialogue) as kept:
        outcomes: list[Dialogue | Failure] = finish(specs, hold, kept, workers, on_done)
    return Synthesis.of(outcomes)


def dialogue_maker(
    settings: SynthesisSettings,
    seed: int,
    user: ChatModel,
    assistants: Sequence[ChatModel],
    kinds: Mapping[str, str],
    queries: Sequence[Query],
) -> tuple[tuple[DialogueSpec, ...], Callable[[DialogueSpec], Dialogue | Failure]]:
    """The specifications of the dialogues, and what holds one. Raises ConfigError as `synthesise` does."""
    by_identity = {assistant.identity: assistant for assistant in assistants}
    if not assistants or len(by_identity) < len(assistants):
        raise ConfigError("the dialogues need assistants that differ", hint="name each model once")
    specs = specifications(settings, seed, user.identity, list(by_identity), queries)
    return specs, lambda spec: hold_dialogue(spec, user, by_identity[spec.assistant], kinds, settings.max_rubrics)


def finish(
    items: Sequence[ItemT],
    make: Callable[[ItemT], EntryT | Failure],
    journal: Journal[EntryT],
    workers: int,
    on_done: Callable[[], None] = lambda: None,
) -> list[EntryT | Failure]:
    """What becomes of each item, in order; what the journal has by its id isn't made again.

    Raises what `make` does, and InfrastructureError once `GIVE_UP` items in a row got no reply.
    """
    silence: list[str] = []
    lock = threading.Lock()

    def outcome(item: ItemT) -> EntryT | Failure:
        made: EntryT | Failure | None = journal.finished.get(item.id)
        if made is None:
            if len(silence) >= GIVE_UP:
                what = f"{GIVE_UP} items in a row got no reply: {silence[-1]}"
                raise InfrastructureError(what, hint="the same command goes on where it was")
            made = make(item)
            journal.keep(made)
            with lock:
                if isinstance(made, Failure) and made.reason in SILENT:
                    silence.append(made.detail)
                else:
                    silence.clear()
        on_done()
        return made

    threads = ThreadPoolExecutor(workers, thread_name_prefix="synthesis")
    try:
        outcomes = list(threads.map(outcome, items))
    except BaseException:
        # An item may take minutes yet: it ends at its next request, as soon as whoever opened its models closes them.
        threads.shutdown(wait=False, cancel_futures=True)
        raise
    threads.shutdown()
    return outcomes


def hold_dialogue(
    spec: DialogueSpec, user: ChatModel, assistant: ChatModel, kinds: Mapping[str, str], max_rubrics: int
) -> Dialogue | Failure:
    """A whole dialogue, or why there is none; never half of one. Raises ConfigError when an endpoint refuses us."""
    messages: list[Message] = []

    def ask_user(request: list[Message], read: Callable[[str], ResultT], reason: FailureReason) -> ResultT:
        return ask(user, request, read, spec.seed + len(messages), reason, FailureReason.NO_USER)

    try:
        plan = ask_user(plan_request(spec), lambda reply: read_plan(reply, spec), FailureReason.PLAN)
        if plan.system is not None:
            messages.append(Message(role="system", content=plan.system))
        for step in range(len(spec.tactics)):
            if step:
                seed, lost = spec.seed + len(messages), FailureReason.NO_ASSISTANT
                messages.append(
                    Message(role="assistant", content=ask(assistant, messages, read_turn, seed, lost, lost))
                )
            turn = ask_user(turn_request(spec, plan, messages, step), read_turn, FailureReason.TURN)
            messages.append(Message(role="user", content=turn))
        rubrics = ask_user(
            rubrics_request(spec, plan, messages, kinds, max_rubrics),
            lambda reply: read_rubrics(reply, kinds, max_rubrics),
            FailureReason.RUBRICS,
        )
    except Failed as failed:
        return Failure(id=spec.id, reason=failed.reason, detail=failed.detail)
    return Dialogue(spec=spec, user=user.identity, messages=tuple(messages), rubrics=rubrics, declines=plan.decline)


def ask(
    model: ChatModel,
    request: Sequence[Message],
    read: Callable[[str], ResultT],
    seed: int,
    unreadable: FailureReason,
    silent: FailureReason,
) -> ResultT:
    """What `read` makes of a reply. Another seed gives another reply, where the model samples. Raises Failed."""
    failed = Failed(silent, "")
    for attempt in range(_ATTEMPTS):
        try:
            return read(model.complete(request, seed=seed + 1000 * attempt))
        except InfrastructureError as error:
            failed = Failed(silent, error.what)
        except ValueError as error:
            failed = Failed(unreadable, str(error).splitlines()[0])
    raise failed
