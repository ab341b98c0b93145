"""A conversation with a served policy, one answer at a time: what `rufus chat` holds."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator

from pydantic import Field

from rufus_core.ports.engine import GenerateRequest, SamplingParams
from rufus_core.rollout.server.body import Input, validated
from rufus_core.rollout.server.completion import Snapshot, TextOptions, snapshots
from rufus_core.rollout.server.protocol import check_prompt, fixed_seed
from rufus_core.rollout.server.served import Served
from rufus_core.rollout.server.turn_stream import Part, TurnStream
from rufus_core.types import Json, Message


class ChatSettings(Input):
    """How answers are sampled. `max_tokens` None: as many as the context holds; `seed` None: another one each time."""

    temperature: float = Field(default=0.7, ge=0.0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = Field(default=-1, ge=-1)
    max_tokens: int | None = Field(default=None, ge=1)
    seed: int | None = Field(default=None, ge=0, lt=2**63)

    def changed(self, name: str, value: Json) -> ChatSettings:
        """Raises Refusal for an unknown setting or a value it can't have."""
        return validated(ChatSettings, self.model_dump() | {name: value})


class Conversation:
    """Messages so far. An answer that was interrupted stays as far as it came."""

    def __init__(self, served: Served, settings: ChatSettings, system: str = "") -> None:
        self._served, self.settings, self.system = served, settings, system
        self._turns: list[Message] = []

    def reset(self) -> None:
        """Forget what was said; the system prompt stays."""
        self._turns = []

    async def answer(self, text: str) -> AsyncGenerator[tuple[Part, str]]:
        """Pieces of the answer as they come.

        Raises:
            EngineError: the conversation has become longer than the context.
            TemplateError: the chat template can't show it.
        """
        asked = Message(role="user", content=text)
        system = [Message(role="system", content=self.system)] if self.system else []
        messages = [*system, *self._turns, asked]
        served = self._served
        served.check_length("".join(m.content for m in messages), "the conversation")
        prompt = served.policy.chat.prompt_ids(messages)
        room = check_prompt(prompt, served.limits.context_length, "the conversation")
        settings = self.settings
        params = SamplingParams(
            max_new_tokens=min(settings.max_tokens or room, room),
            temperature=settings.temperature,
            top_p=settings.top_p,
            top_k=settings.top_k or -1,
            stop_token_ids=served.policy.chat.stop_token_ids,
            sampling_seed=fixed_seed(settings.seed),
        )
        request = GenerateRequest(f"chat_{secrets.token_hex(8)}", prompt, params)
        options = TextOptions(served.decode(skip_special_tokens=True))
        turn = TurnStream(served.opens_thinking(prompt), tools=False)
        snapshot: Snapshot | None = None
        shown = 0
        try:
            async with served.service.running([request], every_token=True) as [generation]:
                async for snapshot in snapshots(served.service, generation, options, growing=True):
                    pieces = turn.push(snapshot.text[shown:])
                    shown = max(shown, len(snapshot.text))
                    for piece in pieces + (turn.end() if snapshot.result else []):
                        yield piece
        finally:
            if snapshot is not None:
                self._turns += [asked, served.policy.chat.parse(snapshot.output_ids, ()).message]
