"""A small search engine over stored pages: an inverted index with ranked results, in memory and deterministic."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

_WORD = re.compile(r"\w+")
_TITLE_WEIGHT = 3.0  # a word in the title tells more than one in the text
_SNIPPET_WORDS = 20


@dataclass(frozen=True, slots=True)
class Page:
    url: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class SearchHit:
    url: str
    title: str
    snippet: str


class PageIndex:
    """Ranks pages by the inverse document frequency of the query's words, and of its word pairs found in a title."""

    def __init__(self, pages: Iterable[Page]) -> None:
        self._pages = {page.url: page for page in pages}
        self._weights: dict[str, dict[str, float]] = defaultdict(dict)  # term to url to weight
        for page in self._pages.values():
            for term in _WORD.findall(page.text.casefold()):
                self._weights[term][page.url] = 1.0
            for term in _terms(page.title):
                self._weights[term][page.url] = _TITLE_WEIGHT

    def search(self, query: str, limit: int) -> list[SearchHit]:
        """At most `limit` hits, best first; equal ones by url."""
        scores: dict[str, float] = defaultdict(float)
        for term in dict.fromkeys(_terms(query)):
            matches = self._weights.get(term, {})
            for url, weight in matches.items():
                scores[url] += weight * math.log(1.0 + len(self._pages) / len(matches))
        best = sorted(scores, key=lambda url: (-scores[url], url))[:limit]
        return [SearchHit(url, self._pages[url].title, _snippet(self._pages[url].text)) for url in best]

    def fetch(self, url: str) -> str | None:
        """A page's text; None where there is no such page."""
        page = self._pages.get(url)
        return page.text if page else None


def format_hits(hits: Sequence[SearchHit]) -> str:
    """Hits as the policy reads them, one a line."""
    return "\n".join(f"{hit.title} | {hit.url} | {hit.snippet}" for hit in hits) or "no results"


def _terms(text: str) -> list[str]:
    words = _WORD.findall(text.casefold())
    return words + [f"{first} {second}" for first, second in pairwise(words)]


def _snippet(text: str) -> str:
    """The first sentence, cut to a few words: enough to choose a page, too little to answer from."""
    sentence, end, _ = text.partition(". ")
    words = sentence.split()
    return sentence + end.strip() if len(words) <= _SNIPPET_WORDS else " ".join(words[:_SNIPPET_WORDS]) + " ..."
