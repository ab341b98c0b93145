"""Finds training samples that hold benchmark items: detectors A (sampled) and B (every phrase) of DECON-01..08.

A phrase hits a sample iff it is a substring of the sample's lowercased, whitespace-normalised turns. All words of a
phrase but its first and last have a space on both sides, so they must match whole words of one turn; the first must
match the end of the word before them and the last the start of the word after them. Looking inner words up in a
dictionary and comparing the two outer ones is therefore exactly the substring test, in time linear in the sample.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from rufus_core.data.benchmarks import Benchmark
from rufus_core.data.text import words
from rufus_core.errors import ConfigError
from rufus_core.types import Conversation, Message, Problem

Sample = TypeVar("Sample")
NUM_EXAMPLES = 3  # matched samples quoted for each item
REVIEW_ABOVE = 100  # an item that flags more samples than this is listed for manual review (DECON-06)


@dataclass(frozen=True, slots=True)
class Match:
    """The distinct phrases of one item that one sample holds."""

    item_id: str
    phrases: tuple[str, ...]
    num_phrases: int  # the item's distinct phrases

    @property
    def share(self) -> float:
        return len(self.phrases) / self.num_phrases


@dataclass(slots=True)
class ItemEvidence:
    """What one item matched. `examples` holds (index of the sample in the input, share, a matched phrase)."""

    num_phrases: int
    num_flagged: int = 0  # samples at or above the threshold
    num_borderline: int = 0  # samples with a hit below the threshold
    allowed: bool = False
    max_share: float = 0.0
    examples: list[tuple[int, float, str]] = field(default_factory=list)

    @property
    def needs_review(self) -> bool:
        return self.num_flagged > REVIEW_ABOVE and not self.allowed


@dataclass(slots=True)
class ScreenReport:
    """One pass. `borderline` lists the kept samples that need a look (detector B's "any hit").

    Such filters can't exclude residual leakage (DECON-13).
    """

    benchmark: str
    num_items: int
    num_skipped_items: int  # too short for any phrase
    num_samples: int = 0
    num_removed: int = 0
    num_allowed: int = 0  # kept because only allow-listed items flag them
    borderline: list[int] = field(default_factory=list)
    items: dict[str, ItemEvidence] = field(default_factory=dict)  # items with a hit only

    @classmethod
    def empty(cls, screen: Screen) -> ScreenReport:
        num_items = len(screen.benchmark.items)
        return cls(screen.benchmark.name, num_items, num_skipped_items=num_items - len(screen.num_phrases))


class Screen:
    """One benchmark's phrases, ready to be looked up.

    Args:
        benchmark: the items.
        phrases_per_item: detector A's number of evenly spaced phrases; None takes every phrase (detector B).
        drop_share: a sample is flagged from this share of an item's distinct phrases on.
        phrase_words: words in a phrase.
        whole_item_min_words: an item shorter than a phrase is one phrase; below this length it is skipped.
        allowed: ids of items whose matches were reviewed and found to be false positives (DECON-06).

    Raises:
        ConfigError: a phrase would have fewer than two words.
    """

    def __init__(
        self,
        benchmark: Benchmark,
        *,
        phrases_per_item: int | None = 20,
        drop_share: float = 0.5,
        phrase_words: int = 8,
        whole_item_min_words: int = 5,
        allowed: Iterable[str] = (),
    ) -> None:
        if min(phrase_words, whole_item_min_words) < 2:
            raise ConfigError("a phrase needs at least two words", where=benchmark.name)
        self.benchmark = benchmark
        self.drop_share = drop_share
        self.allowed = frozenset(allowed)
        self.num_phrases: dict[str, int] = {}
        self._items_of: dict[str, list[str]] = defaultdict(list)  # phrase -> ids of the items that hold it
        self._outer: dict[tuple[str, ...], list[tuple[str, str, str]]] = defaultdict(list)  # inner -> first, last, all
        for item_id, text in benchmark.items.items():
            found = phrases(text, phrases_per_item, phrase_words, whole_item_min_words)
            if found:
                self.num_phrases[item_id] = len(found)
            for phrase in found:
                if phrase not in self._items_of:
                    first, *inner, last = phrase.split(" ")
                    self._outer[tuple(inner)].append((first, last, phrase))
                self._items_of[phrase].append(item_id)
        self._inner_lengths = sorted({len(inner) for inner in self._outer})

    def matches(self, turns: Iterable[Sequence[str]]) -> list[Match]:
        """The items of which a sample, given as the words of each turn, holds at least one phrase."""
        hits = {phrase for turn in turns for phrase in self._hits(turn)}
        of_item: dict[str, list[str]] = defaultdict(list)
        for phrase in sorted(hits):
            for item_id in self._items_of[phrase]:
                of_item[item_id].append(phrase)
        return [Match(item_id, tuple(found), self.num_phrases[item_id]) for item_id, found in sorted(of_item.items())]

    def _hits(self, turn: Sequence[str]) -> Iterable[str]:
        for length in self._inner_lengths:
            for start in range(1, len(turn) - length):
                for first, last, phrase in self._outer.get(tuple(turn[start : start + length]), ()):
                    if turn[start - 1].endswith(first) and turn[start + length].startswith(last):
                        yield phrase


def phrases(text: str, phrases_per_item: int | None, phrase_words: int, whole_item_min_words: int) -> list[str]:
    """An item's distinct phrases in order; those repeated in the item count once."""
    split = words(text)
    num_starts = len(split) - phrase_words + 1
    if num_starts < 1:
        return [" ".join(split)] if len(split) >= whole_item_min_words else []
    if phrases_per_item is None or num_starts <= phrases_per_item:
        starts = range(num_starts)
    else:
        starts = np.unique(np.round(np.linspace(0, num_starts - 1, phrases_per_item)).astype(int)).tolist()
    return list(dict.fromkeys(" ".join(split[start : start + phrase_words]) for start in starts))


def decontaminate(
    samples: Sequence[Sample], screens: Sequence[Screen], turns: Callable[[Sample], Iterable[str]]
) -> tuple[list[Sample], list[ScreenReport]]:
    """Drop every sample that a screen flags; return the rest and one report per screen.

    The screens are chained (DECON-04): each sees only what those before it kept. What a screen says of a sample
    depends on that sample alone, so one walk over the samples gives the same result as one walk per screen.
    `turns` gives a sample's texts (`conversation_turns`, `problem_turns`); a phrase never matches across two of them.
    """
    reports = [ScreenReport.empty(screen) for screen in screens]
    kept = []
    for index, sample in enumerate(samples):
        split = [words(turn) for turn in turns(sample)]
        if not any(_flags(screen, report, index, split) for screen, report in zip(screens, reports, strict=True)):
            kept.append(sample)
    return kept, reports


def _flags(screen: Screen, report: ScreenReport, index: int, turns: Sequence[Sequence[str]]) -> bool:
    """Whether the sample is removed; notes the evidence in the report."""
    report.num_samples += 1
    outcomes: Counter[str] = Counter()
    for match in screen.matches(turns):
        allowed = match.item_id in screen.allowed
        evidence = report.items.setdefault(match.item_id, ItemEvidence(match.num_phrases, allowed=allowed))
        flagged = match.share >= screen.drop_share
        evidence.num_flagged += flagged
        evidence.num_borderline += not flagged
        evidence.max_share = max(evidence.max_share, match.share)
        if len(evidence.examples) < NUM_EXAMPLES:
            evidence.examples.append((index, match.share, match.phrases[0]))
        outcomes["allowed" if flagged and allowed else "removed" if flagged else "borderline"] += 1
    if outcomes["removed"]:
        report.num_removed += 1
        return True
    if outcomes["allowed"]:
        report.num_allowed += 1
    elif outcomes["borderline"]:
        report.borderline.append(index)
    return False


def conversation_turns(conversation: Conversation) -> list[str]:
    """The texts of all turns: reasoning, content and the arguments of tool calls (DECON-02)."""
    return [text for message in conversation.messages for text in _message_texts(message)]


def problem_turns(problem: Problem) -> list[str]:
    """The texts of a problem's prompt (DECON-12)."""
    return [text for message in problem.prompt for text in _message_texts(message)]


def _message_texts(message: Message) -> list[str]:
    arguments = [str(value) for call in message.tool_calls for value in call.arguments.values()]
    return [text for text in (message.reasoning or "", message.content, *arguments) if text]
