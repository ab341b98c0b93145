"""How many words, which and how long."""

from __future__ import annotations

import random
from collections import Counter

from rufus_core.data.constraints.kind import Args, Kind, Unit, at_least, at_most, counts, exactly
from rufus_core.data.constraints.text import (
    add_word,
    drop_word,
    insert_inside,
    pick,
    put,
    replace_one,
    replace_words,
    words_of,
)
from rufus_core.data.constraints.vocabulary import COMPOUNDS, LONG_WORDS, WORDS

WORD_COUNT = frozenset({"word count"})


def _distinct(text: str, _args: Args) -> int:
    return len(set(words_of(text)))


def _unsaid(text: str, rng: random.Random) -> str:
    said = set(words_of(text))
    return pick(rng, lambda word: word not in said)


def _drop_distinct(text: str, _args: Args, rng: random.Random) -> str:
    """One word becomes another one of the text, everywhere."""
    words = sorted(set(words_of(text)))
    if len(words) < 2:
        return text
    gone, kept = rng.sample(words, 2)
    for index, word in enumerate(words_of(text)):
        if word == gone:
            text = put(text, index, kept)
    return text


def _is_long(word: str, args: Args) -> bool:
    return len(word) >= int(args["length"])


NUMBER_OF_WORDS = Unit(
    count=lambda text, _: len(words_of(text)),
    add=lambda text, _, rng: add_word(text, rng),
    drop=lambda text, _, rng: drop_word(text, rng),
)
DISTINCT_WORDS = Unit(
    count=_distinct,
    add=lambda text, _, rng: insert_inside(text, _unsaid(text, rng), rng),
    drop=_drop_distinct,
)
LONG = Unit(
    count=lambda text, args: sum(_is_long(word, args) for word in words_of(text)),
    add=lambda text, _, rng: insert_inside(text, rng.choice(LONG_WORDS), rng),
    drop=lambda text, args, rng: replace_one(text, lambda word: _is_long(word, args), rng),
)
COMPOUND = Unit(
    count=lambda text, _: sum("-" in word for word in words_of(text)),
    add=lambda text, _, rng: insert_inside(text, rng.choice(COMPOUNDS), rng),
    drop=lambda text, _, rng: replace_one(text, lambda word: "-" in word, rng),
)


def _into_range(text: str, args: Args, rng: random.Random) -> str:
    target = min(max(len(words_of(text)), args["low"]), args["high"])
    return NUMBER_OF_WORDS.resize(text, args, target, rng)


def _out_of_range(text: str, args: Args, rng: random.Random) -> str:
    return NUMBER_OF_WORDS.resize(text, args, rng.choice((args["low"] - 1, args["high"] + 1)), rng)


def _up_to_multiple(text: str, args: Args, rng: random.Random) -> str:
    have, divisor = len(words_of(text)), args["divisor"]
    return NUMBER_OF_WORDS.resize(text, args, max(divisor, have + -have % divisor), rng)


def _is_multiple(text: str, args: Args) -> bool:
    have = len(words_of(text))
    return have > 0 and args["divisor"] > 0 and have % args["divisor"] == 0


def _spread(text: str, args: Args, rng: random.Random) -> str:
    """What is said too often becomes a word that isn't said yet."""
    seen: Counter[str] = Counter()
    for index, word in enumerate(words_of(text)):
        seen[word] += 1
        if seen[word] > args["count"]:
            text = put(text, index, _unsaid(text, rng))
    return text


def _repeat(text: str, args: Args, rng: random.Random) -> str:
    return insert_inside(text, " ".join([rng.choice(WORDS)] * (args["count"] + 1)), rng)


KINDS: dict[str, Kind] = {
    "num_words": exactly(
        NUMBER_OF_WORDS,
        counts(15, 80),
        "Write exactly {count} words.",
        "Your answer must be {count} words long, no more and no fewer.",
        claims=WORD_COUNT,
        order=5,
    ),
    "min_words": at_least(
        NUMBER_OF_WORDS,
        counts(20, 90),
        "Write at least {count} words.",
        "Don't answer in fewer than {count} words.",
        claims=WORD_COUNT,
    ),
    "max_words": at_most(
        NUMBER_OF_WORDS,
        counts(25, 90),
        "Stay within {count} words.",
        "Answer in no more than {count} words.",
        claims=WORD_COUNT,
        order=5,
    ),
    "words_between": Kind(
        phrasings=(
            "Keep the answer between {low} and {high} words.",
            "Use no fewer than {low} and no more than {high} words.",
        ),
        check=lambda text, args: args["low"] <= len(words_of(text)) <= args["high"],
        mend=_into_range,
        spoil=_out_of_range,
        sample=lambda rng: {"low": (low := rng.randint(20, 60)), "high": low + rng.randint(5, 25)},
        arguments={"low": int, "high": int},
        claims=WORD_COUNT,
        order=5,
    ),
    "words_multiple": Kind(
        phrasings=(
            "The number of words in your answer must be a multiple of {divisor}.",
            "Make the word count divisible by {divisor}.",
        ),
        check=_is_multiple,
        mend=_up_to_multiple,
        spoil=lambda text, _, rng: add_word(text, rng),
        sample=lambda rng: {"divisor": rng.randint(2, 9)},
        arguments={"divisor": int},
        claims=WORD_COUNT,
        order=5,
    ),
    "distinct_words": at_least(
        DISTINCT_WORDS,
        counts(15, 40),
        "Use at least {count} different words.",
        "Your vocabulary must have {count} distinct words or more.",
    ),
    "word_limit": Kind(
        phrasings=("Use no word more than {count} times.", "No single word may occur over {count} times."),
        check=lambda text, args: max(Counter(words_of(text)).values(), default=0) <= args["count"],
        mend=_spread,
        spoil=_repeat,
        sample=counts(2, 5),
        arguments={"count": int},
        order=6,
    ),
    "max_word_length": Kind(
        phrasings=("Use only words of at most {length} letters.", "No word may have over {length} characters."),
        check=lambda text, args: all(len(word) <= args["length"] for word in words_of(text)),
        mend=lambda text, args, rng: replace_words(
            text, lambda word: len(word) > args["length"], rng, lambda word: len(word) <= args["length"]
        ),
        spoil=lambda text, _, rng: insert_inside(text, rng.choice(LONG_WORDS), rng),
        sample=lambda rng: {"length": rng.randint(6, 10)},
        arguments={"length": int},
        order=4,
    ),
    "long_words": at_least(
        LONG,
        lambda rng: {"count": rng.randint(2, 4), "length": rng.randint(9, 13)},
        "Use at least {count} words of {length} letters or more.",
        "Include {count} or more words that have at least {length} letters.",
        length=int,
    ),
    "compound_words": at_least(
        COMPOUND,
        counts(2, 4),
        "Include at least {count} hyphenated words.",
        "Use {count} or more words that are joined by a hyphen.",
    ),
}
