"""Benchmark items as the decontamination sees them: question texts without answers or boilerplate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rufus_core.errors import DataError

MIN_ITEMS = 8  # fewer items are no evidence that a shared run of words is boilerplate
MIN_WORDS = 4  # a shorter shared run may be chance


@dataclass(frozen=True, slots=True)
class Benchmark:
    """`items` maps an item's id to its text: the question with any choices, or an agent's instruction."""

    name: str
    items: dict[str, str]
    boilerplate: tuple[str, ...] = ()  # what was stripped from the items' starts and ends

    @classmethod
    def build(cls, name: str, items: Mapping[str, str]) -> Benchmark:
        """Strip the opening and the closing words that at least half of the items share.

        An instruction such as "put your final answer within \\boxed{}" appended to every item would otherwise match
        all training samples that carry it. Raises DataError when there are no items.
        """
        if not items:
            raise DataError("the benchmark has no items", where=name)
        split = {item_id: text.split() for item_id, text in items.items()}
        opening = _shared_run(list(split.values()))
        closing = _shared_run([words[::-1] for words in split.values()])[::-1]
        stripped = {item_id: " ".join(_strip(words, opening, closing)) for item_id, words in split.items()}
        boilerplate = tuple(" ".join(run) for run in (opening, closing) if run)
        return cls(name=name, items=stripped, boilerplate=boilerplate)


def _shared_run(items: Sequence[Sequence[str]]) -> list[str]:
    """The longest run of words at the start of at least half of the items."""
    if len(items) < MIN_ITEMS:
        return []
    run: list[str] = []
    sharing = items
    while True:
        following = Counter(words[len(run)] for words in sharing if len(words) > len(run))
        word, count = following.most_common(1)[0] if following else ("", 0)
        if 2 * count < len(items):
            return run if len(run) >= MIN_WORDS else []
        sharing = [words for words in sharing if len(words) > len(run) and words[len(run)] == word]
        run.append(word)


def _strip(words: list[str], opening: list[str], closing: list[str]) -> list[str]:
    """The item without boilerplate; an item that is nothing else keeps its words."""
    rest = words
    if opening and rest[: len(opening)] == opening:
        rest = rest[len(opening) :]
    if closing and rest[-len(closing) :] == closing:
        rest = rest[: -len(closing)]
    return rest or words
