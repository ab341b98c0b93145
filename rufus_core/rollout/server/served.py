"""What all endpoints share: the service, the policy whose tokenizer they speak through, and what it is called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rufus_core.rollout.policy import Policy
from rufus_core.rollout.server.completion import Decode, TextOptions
from rufus_core.rollout.server.protocol import Limits, Stops
from rufus_core.rollout.server.refusal import Refusal
from rufus_core.rollout.server.service import EngineService


@dataclass(slots=True)
class Served:
    """`model_path` is where the weights came from last; `most_bytes` bounds a request's body."""

    service: EngineService
    policy: Policy
    name: str
    model_path: str
    most_bytes: int = 16 * 2**20
    _longest_token: int = field(init=False)

    def __post_init__(self) -> None:
        self._longest_token = max(map(len, self.policy.chat.tokenizer.get_vocab()))

    @property
    def limits(self) -> Limits:
        return Limits(self.service.context_length, self.service.vocab_size, self.policy.chat.stop_token_ids)

    def encode(self, text: str) -> list[int]:
        """Ids of a plain text. Raises Refusal for one that is too long, whatever its ids are."""
        self.check_length(text, "text")
        return list(self.policy.chat.tokenizer(text)["input_ids"])

    def check_length(self, text: str, param: str) -> None:
        """Raises Refusal, before any work, for a text that no tokenization fits into the context."""
        most = self.service.context_length * self._longest_token
        if len(text) > most:
            what = (
                f"a text of {len(text)} characters exceeds the context length of {self.service.context_length} tokens"
            )
            raise Refusal(what, param=param)

    def opens_thinking(self, prompt_ids: Sequence[int]) -> bool:
        """Whether a prompt ends inside a think block, which some templates begin for the policy."""
        return self.policy.chat.decode(prompt_ids[-4:]).rstrip().endswith("<think>")

    def decode(self, skip_special_tokens: bool) -> Decode:
        tokenizer = self.policy.chat.tokenizer

        def decode(ids: Sequence[int]) -> str:
            text = tokenizer.decode(
                list(ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
            )
            return str(text)

        return decode

    def text_options(self, stops: Stops) -> TextOptions:
        return TextOptions(self.decode(stops.skip_special_tokens), tuple(stops.stop), stops.no_stop_trim)
