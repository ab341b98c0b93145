"""A reward model that SGLang serves (`--is-embedding`), by its `/classify`: texts in, `embedding`s of one number out.

The shape is that of SGLang's documentation of reward models: `{"model": ..., "text": [...]}`, answered by a list of
`{"embedding": [score], "meta_info": ...}` in the order of the texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

from rufus_core.rewards.json_client import JsonClient
from rufus_core.types import Json, Message

Response = tuple[Sequence[Message], str]


class RemoteRewardModel:
    """Used from several threads at once.

    Args:
        url: the server's root.
        render: a conversation as the text that the model was trained on, by its own chat template.
        options: how requests are sent and repeated, as JsonClient takes them.
    """

    def __init__(
        self,
        model: str,
        url: str,
        render: Callable[[Sequence[Message], str], str],
        api_key: str | None = None,
        *,
        batch_size: int = 32,
        **options: Any,
    ) -> None:
        self.identity = model
        self._render, self._batch_size = render, batch_size
        self._client = JsonClient(url.rstrip("/") + "/classify", model, api_key, **options)

    def scores(self, responses: Sequence[Response]) -> list[float]:
        """Raises InfrastructureError when they can't be had, ConfigError when the server refuses us."""
        texts = [self._render(prompt, response) for prompt, response in responses]
        scores: list[float] = []
        for start in range(0, len(texts), self._batch_size):
            batch = texts[start : start + self._batch_size]
            body = {"model": self.identity, "text": batch}
            scores += self._client.post(body, partial(_read, len(batch)))
        return scores

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _read(size: int, reply: Json) -> list[float]:
    """Raises ValueError for another number of scores, and for embeddings that are no scores."""
    scores = [_number(row["embedding"]) for row in reply]
    if len(scores) != size:
        raise ValueError(f"{len(scores)} scores for {size} texts")
    return scores


def _number(embedding: Json) -> float:
    if not isinstance(embedding, list) or len(embedding) != 1:
        raise ValueError("the embedding isn't one number: is this a reward model?")
    [score] = embedding
    if isinstance(score, bool) or not isinstance(score, int | float):
        raise ValueError(f"the score is {score!r}")
    return float(score)
