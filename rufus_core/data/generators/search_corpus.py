r"""Search Agent problems: questions about made-up people and things, and the corpus that answers them (section 9).

The corpus is a function of a seed: 288 people and 192 things, a page each. A person's page tells a home, a birth town
and a liking; a thing's page tells its owner and where it was made. No fact is asked for in two phrasings, so a held-out
answer isn't known from a paraphrase of the question in training: it has to be looked up.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations

from rufus_core.data.generators.enumeration import take_in_turn
from rufus_core.data.generators.sampling import refuse_unknown
from rufus_core.data.pages import Page, PageIndex, format_hits
from rufus_core.data.words import NAMES, NOUNS, PLACES
from rufus_core.errors import DataError
from rufus_core.types import Frozen, Json, Message, Problem, ToolCall, ToolSchema, content_id

SOURCE = "search_corpus"
NUM_RESULTS = 3
UNREACHABLE = "error: page not reachable"

COLOURS = ("red", "blue", "green", "black", "white", "pink", "gray", "gold")

SYSTEM = Message(
    role="system",
    content="Split the question, search, scrape pages, reword failed searches, note progress, box the answer.",  # SA-E6
)


def _tool(name: str, description: str, argument: str) -> ToolSchema:
    return ToolSchema(
        name=name,
        description=description,
        parameters={
            "type": "object",
            "properties": {argument: {"type": "string"}},
            "required": [argument],
            "additionalProperties": False,
        },
    )


TOOLS = (  # SA-E1
    _tool("search", "Search the web.", "query"),
    _tool("scrape", "Read a page.", "url"),
    _tool("python", "Run a Python program without network or files.", "code"),
)


class SearchTruth(Frozen):
    """Ground truth of a packaged question. `solution` finds `answer` in the corpus of seed `corpus`."""

    answer: str  # items of a list are separated by commas
    corpus: int
    solution: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class Corpus:
    people: dict[str, dict[str, str]]  # name to home, birth and liking
    things: dict[str, dict[str, str]]  # name to owner and origin
    index: PageIndex


@lru_cache(maxsize=8)
def build_corpus(seed: int) -> Corpus:
    rng = random.Random(seed)
    people = {}
    for name in (f"{first} {last}" for first in NAMES for last in PLACES):
        home, birth = rng.sample(PLACES, 2)
        people[name] = {"home": home, "birth": birth, "liking": rng.choice(NOUNS)}
    things = {
        f"{colour} {noun}": {"owner": rng.choice(list(people)), "origin": rng.choice(PLACES)}
        for colour in COLOURS
        for noun in NOUNS
    }
    pages = [
        Page(page_url(name), name, f"Person. Lives in {p['home']}. Born in {p['birth']}. Likes {p['liking']}.")
        for name, p in people.items()
    ]
    pages += [
        Page(
            page_url(name),
            name,
            f"Thing. Owned by {t['owner']}, {page_url(t['owner'])}. Made in {t['origin']}.",
        )
        for name, t in things.items()
    ]
    return Corpus(people, things, PageIndex(pages))


def page_url(name: str) -> str:
    return f"wiki/{name.replace(' ', '-')}"


# -- questions --------------------------------------------------------------------------------------------------------

_OF_A_PERSON = {
    "home": ("Where does {who} live?", "Name the home town of {who}."),
    "birth": ("Where was {who} born?", "Name the birth town of {who}."),
    "liking": ("What does {who} like?", "Name what {who} likes."),
}
_OF_TWO_PEOPLE = {
    "home": ("Where do {who} live?", "Name the home towns of {who}."),
    "birth": ("Where were {who} born?", "Name the birth towns of {who}."),
}
_OF_A_THING = {
    "owner": ("Who owns {who}?", "Name the owner of {who}."),
    "origin": ("Where was {who} made?", "Name the town that made {who}."),
}


@dataclass(frozen=True, slots=True)
class _Question:
    family: str
    phrasings: tuple[str, ...]
    who: str
    search: str
    scrapes: tuple[str, ...]
    answer: str


def problems(seed: int, count: int, options: Mapping[str, Json]) -> Iterator[Problem]:
    """`count` distinct questions, the families in turn: `person`, `thing`, `owner` (two hops) and `pair` (a list).

    A corpus has some 5,500 questions.

    Args:
        options: `corpus`, the corpus's seed (default 0); `families`, a list of them (default all).

    Raises:
        DataError: an unknown option or family, or `count` exceeds the space.
    """
    refuse_unknown(options, "corpus", "families")
    corpus_seed = int(options.get("corpus", 0))
    wanted = options.get("families", list(_FAMILIES))
    if unknown := [name for name in wanted if name not in _FAMILIES]:
        known = ", ".join(_FAMILIES)
        raise DataError(f"unknown family {unknown[0]!r}", where="options.families", hint=f"known: {known}")
    corpus = build_corpus(corpus_seed)
    for question in take_in_turn([_FAMILIES[name](corpus) for name in wanted], count, seed):
        yield _problem(question, corpus_seed)


def _problem(question: _Question, corpus_seed: int) -> Problem:
    # one phrasing for each question, whatever the seed
    phrasing = question.phrasings[int(content_id(question.phrasings, question.who), 16) % len(question.phrasings)]
    calls = (
        ToolCall(name="search", arguments={"query": question.search}),
        *(ToolCall(name="scrape", arguments={"url": page_url(name)}) for name in question.scrapes),
    )
    return Problem.build(
        family=question.family,
        source=SOURCE,
        prompt=(SYSTEM, Message(role="user", content=phrasing.format(who=question.who))),
        ground_truth=SearchTruth(answer=question.answer, corpus=corpus_seed, solution=calls).model_dump(),
        tools=TOOLS,
    )


def _person_questions(corpus: Corpus) -> Iterator[_Question]:
    for name, facts in corpus.people.items():
        for attribute, phrasings in _OF_A_PERSON.items():
            yield _Question("person", phrasings, name, name, (name,), facts[attribute])


def _thing_questions(corpus: Corpus) -> Iterator[_Question]:
    for name, facts in corpus.things.items():
        for attribute, phrasings in _OF_A_THING.items():
            yield _Question("thing", phrasings, f"the {name}", name, (name,), facts[attribute])


def _owner_questions(corpus: Corpus) -> Iterator[_Question]:
    for name, facts in corpus.things.items():
        owner = facts["owner"]
        for attribute, phrasings in _OF_A_PERSON.items():
            answer = corpus.people[owner][attribute]
            yield _Question("owner", phrasings, f"the owner of the {name}", name, (name, owner), answer)


def _pair_questions(corpus: Corpus) -> Iterator[_Question]:
    """Two people in one question; both answers make the list."""
    rng = random.Random(content_id(sorted(corpus.people)))
    pairs = rng.sample(list(permutations(corpus.people, 2)), 2000)
    for first, second in pairs:
        for attribute, phrasings in _OF_TWO_PEOPLE.items():
            answers = corpus.people[first][attribute], corpus.people[second][attribute]
            if answers[0] != answers[1]:
                who, search = f"{first} and {second}", f"{first} {second}"
                yield _Question("pair", phrasings, who, search, (first, second), ", ".join(answers))


_FAMILIES = {
    "person": _person_questions,
    "thing": _thing_questions,
    "owner": _owner_questions,
    "pair": _pair_questions,
}


# -- demonstrations ---------------------------------------------------------------------------------------------------


def demonstrate(problem: Problem, rng: random.Random, wrong: bool) -> list[Message]:
    """The calls that find the answer, with their observations; `wrong` misreads a page or answers too early."""
    truth = SearchTruth.model_validate(problem.ground_truth)
    index = build_corpus(truth.corpus).index
    calls, answer = truth.solution, truth.answer
    if wrong:
        answer = ", ".join(_other(item, answer, rng) for item in answer.split(", "))
        calls = rng.choice((calls, calls, calls[:-1], ()))
    messages: list[Message] = []
    for call in calls:
        messages.append(Message(role="assistant", reasoning="", tool_calls=(call,)))
        messages.append(Message(role="tool", content=_observe(index, call)))
    messages.append(Message(role="assistant", reasoning="", content=f"\\boxed{{{answer}}}"))
    return messages


def _observe(index: PageIndex, call: ToolCall) -> str:
    if call.name == "search":
        return format_hits(index.search(call.arguments["query"], NUM_RESULTS))
    return index.fetch(call.arguments["url"]) or UNREACHABLE


def _other(item: str, answer: str, rng: random.Random) -> str:
    """Another word of the item's kind that is no part of the answer."""
    vocabularies: tuple[Sequence[str], ...] = (PLACES, NOUNS, [f"{first} {last}" for first in NAMES for last in PLACES])
    words = next(words for words in vocabularies if item in words)
    return rng.choice([word for word in words if word not in answer.split(", ")])
