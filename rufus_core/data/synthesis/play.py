"""Holds dialogues: a user model plans and speaks, an assistant answers, and the user model says what must hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rufus_core.data.synthesis.dialogue import (
    Dialogue,
    DialogueSpec,
    Failure,
    FailureReason,
    SynthesisSettings,
    specifications,
)
from rufus_core.data.synthesis.journal import Journal
from rufus_core.data.synthesis.requests import (
    plan_request,
    read_plan,
    read_rubrics,
    read_turn,
    rubrics_request,
    turn_request,
)
from rufus_core.errors import ConfigError, InfrastructureError
from rufus_core.ports import ChatModel
from rufus_core.types import Message

_ATTEMPTS = 3  # at a reply that can be read; a client's own retries come on top

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class Synthesis:
    """In the order of the specifications: every one of them is a dialogue or a failure."""

    dialogues: tuple[Dialogue, ...]
    failures: tuple[Failure, ...]

    @property
    def counts(self) -> dict[str, int]:
        failed = Counter(f"failed_{failure.reason}" for failure in self.failures)
        return {"asked": len(self.dialogues) + len(self.failures), "dialogues": len(self.dialogues), **failed}


class _Failed(Exception):
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
) -> Synthesis:
    """Hold `settings.count` dialogues, `workers` at a time; what `journal` has of them isn't asked for again.

    Args:
        kinds: of rubrics that may be named, each with a line on what it needs.

    Raises:
        ConfigError: there is no assistant, two of them are the same, or an endpoint refuses us.
        DataError: the journal can't be read.
    """
    by_identity = {assistant.identity: assistant for assistant in assistants}
    if not assistants or len(by_identity) < len(assistants):
        raise ConfigError("the dialogues need assistants that differ", hint="name each model once")
    specs = specifications(settings, seed, user.identity, list(by_identity))
    with Journal(journal) as kept:

        def hold(spec: DialogueSpec) -> Dialogue | Failure:
            if finished := kept.finished.get(spec.id):
                return finished
            outcome = hold_dialogue(spec, user, by_identity[spec.assistant], kinds, settings.max_rubrics)
            kept.keep(outcome)
            return outcome

        threads = ThreadPoolExecutor(workers, thread_name_prefix="dialogue")
        try:
            outcomes = list(threads.map(hold, specs))
        finally:
            threads.shutdown(cancel_futures=True)
    return Synthesis(
        tuple(outcome for outcome in outcomes if isinstance(outcome, Dialogue)),
        tuple(outcome for outcome in outcomes if isinstance(outcome, Failure)),
    )


def hold_dialogue(
    spec: DialogueSpec, user: ChatModel, assistant: ChatModel, kinds: Mapping[str, str], max_rubrics: int
) -> Dialogue | Failure:
    """A whole dialogue, or why there is none; never half of one. Raises ConfigError when an endpoint refuses us."""
    messages: list[Message] = []

    def ask(request: list[Message], read: Callable[[str], ResultT], reason: FailureReason) -> ResultT:
        return _ask(user, request, read, spec.seed + len(messages), reason, FailureReason.NO_USER)

    try:
        plan = ask(plan_request(spec), lambda reply: read_plan(reply, spec), FailureReason.PLAN)
        if plan.system is not None:
            messages.append(Message(role="system", content=plan.system))
        for step in range(len(spec.tactics)):
            if step:
                seed, lost = spec.seed + len(messages), FailureReason.NO_ASSISTANT
                messages.append(
                    Message(role="assistant", content=_ask(assistant, messages, read_turn, seed, lost, lost))
                )
            turn = ask(turn_request(spec, plan, messages, step), read_turn, FailureReason.TURN)
            messages.append(Message(role="user", content=turn))
        rubrics = ask(
            rubrics_request(spec, plan, messages, kinds, max_rubrics),
            lambda reply: read_rubrics(reply, kinds, max_rubrics),
            FailureReason.RUBRICS,
        )
    except _Failed as failed:
        return Failure(id=spec.id, reason=failed.reason, detail=failed.detail)
    return Dialogue(spec=spec, user=user.identity, messages=tuple(messages), rubrics=rubrics, declines=plan.decline)


def _ask(
    model: ChatModel,
    request: Sequence[Message],
    read: Callable[[str], ResultT],
    seed: int,
    unreadable: FailureReason,
    silent: FailureReason,
) -> ResultT:
    """What `read` makes of a reply. Another seed gives another reply, where the model samples."""
    failed = _Failed(silent, "")
    for attempt in range(_ATTEMPTS):
        try:
            return read(model.complete(request, seed=seed + 1000 * attempt))
        except InfrastructureError as error:
            failed = _Failed(silent, error.what)
        except ValueError as error:
            failed = _Failed(unreadable, str(error).splitlines()[0])
    raise failed
