"""How many sentences, of which kind, how long, how they begin."""

from __future__ import annotations

import random

from rufus_core.data.constraints.keywords import one_word
from rufus_core.data.constraints.kind import Args, Kind, Unit, at_least, at_most, counts, exactly
from rufus_core.data.constraints.text import (
    add_sentence,
    drop_sentence,
    ends_with_sign,
    map_sentences,
    pick,
    put,
    sentence,
    sentences_of,
    words_of,
)
from rufus_core.data.constraints.words import NUMBER_OF_WORDS

SENTENCE_COUNT = frozenset({"sentence count"})

NUMBER_OF_SENTENCES = Unit(
    count=lambda text, _: len(sentences_of(text)),
    add=lambda text, _, rng: add_sentence(text, rng),
    drop=lambda text, _, rng: drop_sentence(text, rng),
)


def _ending_in(sign: str) -> Unit:
    def turn(text: str, before: str, after: str, rng: random.Random) -> str:
        found = [place for place, said in enumerate(sentences_of(text)) if ends_with_sign(said, before)]
        if not found:
            return add_sentence(text, rng) if before == "." else text
        chosen = rng.choice(found)

        def change(place: int, said: str) -> str:
            head, _, tail = said.rpartition(before)
            return head.rstrip(before) + after + tail if place == chosen else said

        return map_sentences(text, change)

    return Unit(
        count=lambda text, _: sum(ends_with_sign(said, sign) for said in sentences_of(text)),
        add=lambda text, _, rng: turn(text, ".", sign, rng),
        drop=lambda text, _, rng: turn(text, sign, ".", rng),
    )


def _shorten(text: str, args: Args, rng: random.Random) -> str:
    def change(_: int, said: str) -> str:
        return NUMBER_OF_WORDS.resize(said, args, min(args["count"], len(words_of(said))), rng)

    return map_sentences(text, change)


def _lengthen(text: str, args: Args, rng: random.Random) -> str:
    def change(_: int, said: str) -> str:
        return NUMBER_OF_WORDS.resize(said, args, max(args["count"], len(words_of(said))), rng)

    return map_sentences(text, change)


def _resize_one(text: str, args: Args, target: int, rng: random.Random) -> str:
    chosen = rng.randrange(len(sentences_of(text)))
    return map_sentences(
        text, lambda place, said: NUMBER_OF_WORDS.resize(said, args, target, rng) if place == chosen else said
    )


def _starts(text: str) -> list[str]:
    return [words_of(said)[0] for said in sentences_of(text)]


def _start_with_word(text: str, args: Args, _rng: random.Random) -> str:
    def change(_: int, said: str) -> str:
        return said if words_of(said)[0] == args["word"].casefold() else put(said, 0, args["word"])

    return map_sentences(text, change)


def _start_one_otherwise(text: str, _args: Args, rng: random.Random) -> str:
    chosen = rng.randrange(len(sentences_of(text)))
    return map_sentences(text, lambda place, said: put(said, 0, pick(rng, lambda _: True)) if place == chosen else said)


def _vary_starts(text: str, _args: Args, rng: random.Random) -> str:
    starts = _starts(text)
    used = set(starts)
    fresh: dict[int, str] = {}
    for place, start in enumerate(starts):
        if start in starts[:place]:
            fresh[place] = pick(rng, lambda word: word not in used)
            used.add(fresh[place])
    return map_sentences(text, lambda place, said: put(said, 0, fresh[place]) if place in fresh else said)


def _repeat_start(text: str, _args: Args, rng: random.Random) -> str:
    text = text if len(_starts(text)) > 1 else f"{text.rstrip()}\n{sentence(rng)}"
    first = _starts(text)[0]
    return map_sentences(text, lambda place, said: put(said, 0, first) if place else said)


KINDS: dict[str, Kind] = {
    "num_sentences": exactly(
        NUMBER_OF_SENTENCES,
        counts(2, 8),
        "Write exactly {count} sentences.",
        "Your answer must have {count} sentences, no more and no fewer.",
        claims=SENTENCE_COUNT,
        order=2,
    ),
    "min_sentences": at_least(
        NUMBER_OF_SENTENCES,
        counts(3, 10),
        "Write at least {count} sentences.",
        "Use {count} sentences or more.",
        claims=SENTENCE_COUNT,
    ),
    "max_sentences": at_most(
        NUMBER_OF_SENTENCES,
        counts(3, 9),
        "Write no more than {count} sentences.",
        "Limit yourself to {count} sentences.",
        claims=SENTENCE_COUNT,
        order=2,
    ),
    "sentence_max_words": Kind(
        phrasings=("No sentence may have more than {count} words.", "Keep every sentence to {count} words at most."),
        check=lambda text, args: all(len(words_of(said)) <= args["count"] for said in sentences_of(text)),
        mend=_shorten,
        spoil=lambda text, args, rng: _resize_one(text, args, args["count"] + 1, rng),
        sample=counts(6, 15),
        arguments={"count": int},
        claims=frozenset({"sentence length"}),
        order=4,
    ),
    "sentence_min_words": Kind(
        phrasings=("Every sentence must have at least {count} words.", "Write no sentence of under {count} words."),
        check=lambda text, args: all(len(words_of(said)) >= args["count"] for said in sentences_of(text)),
        mend=_lengthen,
        spoil=lambda text, args, rng: _resize_one(text, args, args["count"] - 1, rng),
        sample=counts(5, 12),
        arguments={"count": int},
        claims=frozenset({"sentence length"}),
        order=4,
    ),
    "sentence_first_word": Kind(
        phrasings=('Begin every sentence with the word "{word}".', 'Each sentence must start with "{word}".'),
        check=lambda text, args: all(start == args["word"].casefold() for start in _starts(text)),
        mend=_start_with_word,
        spoil=_start_one_otherwise,
        sample=one_word,
        arguments={"word": str},
        claims=frozenset({"first", "sentence starts"}),
        order=6,
    ),
    "distinct_starts": Kind(
        phrasings=("No two sentences may begin with the same word.", "Start every sentence with a different word."),
        check=lambda text, _: len(set(_starts(text))) == len(_starts(text)),
        mend=_vary_starts,
        spoil=_repeat_start,
        claims=frozenset({"sentence starts"}),
        order=6,
    ),
    "questions": exactly(
        _ending_in("?"),
        counts(2, 4),
        "Ask exactly {count} questions.",
        "Exactly {count} of your sentences must end with a question mark.",
        order=4,
    ),
    "exclamations": exactly(
        _ending_in("!"),
        counts(2, 4),
        "Write exactly {count} exclamations.",
        "Exactly {count} of your sentences must end with an exclamation mark.",
        order=4,
    ),
}
