"""Mixes sources by counts, removes duplicates, orders epochs and reports the composition (MIX-02, MIX-03)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

import numpy as np

from rufus_core.data.text import normalised
from rufus_core.errors import DataError
from rufus_core.types import Category, Conversation, Json, content_id

Item = TypeVar("Item")


def epoch_order(num_items: int, seed: int, epoch: int) -> list[int]:
    """The order of an epoch: a permutation of range(num_items) that depends on seed and epoch alone."""
    order: list[int] = np.random.default_rng([seed, epoch]).permutation(num_items).tolist()
    return order


class EndlessOrder:
    """Indices of `num_items` items without end, epoch after epoch; the first `taken` of them were taken before."""

    def __init__(self, num_items: int, seed: int, taken: int = 0) -> None:
        self._num_items, self._seed, self.taken = num_items, seed, taken
        self._epoch, self._order = -1, list[int]()

    def take(self, count: int) -> list[int]:
        indices: list[int] = []
        while len(indices) < count:
            epoch, start = divmod(self.taken, self._num_items)
            if epoch != self._epoch:
                self._epoch, self._order = epoch, epoch_order(self._num_items, self._seed, epoch)
            part = self._order[start : start + count - len(indices)]
            indices += part
            self.taken += len(part)
        return indices


def mix(sources: Mapping[str, Sequence[Item]], counts: Mapping[str, int | None], seed: int) -> list[Item]:
    """Take `counts[name]` items of each source (None or absent: all of it), chosen by seed; sources keep their order.

    Raises:
        DataError: a source holds fewer items than asked for, or `counts` names no source.
    """
    if unknown := sorted(set(counts) - set(sources)):
        raise DataError(f"there is no source {unknown[0]!r}", hint=f"known: {', '.join(sources)}")
    mixed: list[Item] = []
    for name, items in sources.items():
        count = counts.get(name)
        if count is None:
            mixed.extend(items)
            continue
        if count > len(items):
            raise DataError(
                f"{count} items are asked for, {len(items)} found", where=name, hint="lower the count or add data"
            )
        # The source's name enters the seed, so that another source never changes this one's choice.
        chosen = epoch_order(len(items), int(content_id(seed, name), 16), 0)[:count]
        mixed.extend(items[index] for index in sorted(chosen))
    return mixed


def deduplicate(conversations: Iterable[Conversation], counts: Counter[str]) -> Iterator[Conversation]:
    """Keep the first of the conversations that share first user turn and final answer, up to case and whitespace.

    `counts` gains `duplicates`, and `duplicates/SOURCE` for each source.
    """
    seen: set[str] = set()
    for conversation in conversations:
        key = _duplicate_key(conversation)
        if key in seen:
            counts["duplicates"] += 1
            counts[f"duplicates/{conversation.source}"] += 1
            continue
        seen.add(key)
        yield conversation


def _duplicate_key(conversation: Conversation) -> str:
    asked = next((m.content for m in conversation.messages if m.role == "user"), "")
    replies = [m for m in conversation.messages if m.role == "assistant"]
    last = replies[-1] if replies else None
    answer = normalised(last.content) if last else ""
    calls = [call.model_dump() for call in last.tool_calls] if last else []
    return content_id(normalised(asked), answer, calls)


@dataclass(frozen=True, slots=True)
class Share:
    """One category's part of a mix. Shares are in [0, 1]; `supervised_tokens` carry loss."""

    samples: int
    sample_share: float
    supervised_tokens: int
    token_share: float


@dataclass(frozen=True, slots=True)
class Composition:
    """The two distributions of a mix (MIX-03), categories by falling number of samples."""

    samples: int
    supervised_tokens: int
    categories: dict[Category, Share]

    def as_dict(self) -> dict[str, Json]:
        """The composition as a JSON object."""
        return asdict(self)


def composition(samples: Iterable[tuple[Category, int]]) -> Composition:
    """The composition of a mix, given each sample's category and number of supervised tokens."""
    num_samples: Counter[Category] = Counter()
    num_tokens: defaultdict[Category, int] = defaultdict(int)
    for category, supervised_tokens in samples:
        num_samples[category] += 1
        num_tokens[category] += supervised_tokens
    all_samples, all_tokens = num_samples.total(), sum(num_tokens.values())
    categories = {
        category: Share(
            samples=count,
            sample_share=count / all_samples,
            supervised_tokens=num_tokens[category],
            token_share=num_tokens[category] / all_tokens if all_tokens else 0.0,
        )
        for category, count in num_samples.most_common()
    }
    return Composition(samples=all_samples, supervised_tokens=all_tokens, categories=categories)
