"""A reward model from Hugging Face: a sequence classifier with one label, such as Skywork-Reward-V2 (RM-R1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from rufus_core.errors import ConfigError
from rufus_core.rewards.extract import Extraction, extract
from rufus_core.types import Message

Response = tuple[Sequence[Message], str]


class ChatRenderer:
    """Conversations as token ids and as text, by the chat template that a reward model brings. Raises ConfigError."""

    def __init__(self, folder: Path) -> None:
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError) as error:
            raise ConfigError("there is no tokenizer of a reward model", where=str(folder)) from error
        if not self._tokenizer.chat_template:
            raise ConfigError("the reward model brings no chat template", where=str(folder))
        added = self._tokenizer.added_tokens_decoder.values()
        self._control = sorted({token.content for token in added if token.special}, key=len, reverse=True)

    def text(self, prompt: Sequence[Message], response: str) -> str:
        """The whole conversation. Of the response the text after its reasoning counts; without any it is empty."""
        answer = Message(role="assistant", content=extract(response, Extraction.TEXT) or "")
        turns = [{"role": message.role, "content": self._plain(message.content)} for message in (*prompt, answer)]
        return str(self._tokenizer.apply_chat_template(turns, tokenize=False))

    def ids(self, prompt: Sequence[Message], response: str) -> list[int]:
        """The template wrote all special tokens, so that none is added."""
        return list(self._tokenizer(self.text(prompt, response), add_special_tokens=False)["input_ids"])

    def _plain(self, text: str) -> str:
        """Without control tokens, by which a response would write turns of its own: a zero-width space breaks them."""
        for token in self._control:
            text = text.replace(token, f"{token[0]}\u200b{token[1:]}")
        return text


class SequenceRewardModel:
    """Scores in batches of like lengths. A score depends neither on the batch nor on its padding.

    Args:
        folder: model and tokenizer, as `save_pretrained` writes them.
        identity: under which numbers made with it are reported.

    Raises:
        ConfigError: it isn't there, has more than one label, or brings no chat template.
    """

    def __init__(self, folder: Path, identity: str, batch_size: int = 8, device: str = "cpu") -> None:
        self.identity = identity
        self._batch_size, self._device = batch_size, device
        try:
            config = AutoConfig.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError) as error:
            raise ConfigError("there is no reward model", where=str(folder)) from error
        if config.num_labels != 1:
            raise ConfigError(f"a reward model has one label, this one {config.num_labels}", where=str(folder))
        self._renderer = ChatRenderer(folder)
        self._model = AutoModelForSequenceClassification.from_pretrained(folder, config=config, local_files_only=True)
        self._model.eval().to(device)
        self._most_tokens = int(getattr(config, "max_position_embeddings", 0)) or 2**31

    def scores(self, responses: Sequence[Response]) -> list[float]:
        """NaN for a conversation that is longer than the model's context."""
        rows = [self._renderer.ids(prompt, response) for prompt, response in responses]
        scores = [math.nan] * len(rows)
        fitting = [index for index, ids in enumerate(rows) if 0 < len(ids) <= self._most_tokens]
        fitting.sort(key=lambda index: len(rows[index]))
        for start in range(0, len(fitting), self._batch_size):
            batch = fitting[start : start + self._batch_size]
            for index, score in zip(batch, self._forward([rows[i] for i in batch]), strict=True):
                scores[index] = score
        return scores

    @torch.no_grad()
    def _forward(self, rows: Sequence[list[int]]) -> list[float]:
        """The head at each row's last token: found by its length, for a padding id may also be a real one."""
        lengths = torch.tensor([len(row) for row in rows], device=self._device)
        width = int(lengths.max())
        ids_BT = torch.tensor([row + [0] * (width - len(row)) for row in rows], device=self._device)
        mask_BT = (torch.arange(width, device=self._device) < lengths[:, None]).long()
        hidden_BTD = self._model.base_model(input_ids=ids_BT, attention_mask=mask_BT, use_cache=False).last_hidden_state
        last_BD = hidden_BTD[torch.arange(len(rows), device=self._device), lengths - 1]
        return [float(score) for score in self._model.score(last_BD)[:, 0]]
