"""Words that must be said or must not: how often, where, in which order."""

from __future__ import annotations

import itertools
import random
import re

from rufus_core.data.constraints.kind import Args, Kind, Sampler, Unit, at_least, at_most, exactly
from rufus_core.data.constraints.text import (
    insert,
    insert_inside,
    join_paragraphs,
    map_sentences,
    paragraphs_of,
    pick,
    put,
    replace_one,
    replace_words,
    sentences_of,
    words_of,
)
from rufus_core.data.constraints.vocabulary import KEYWORDS, PHRASES
from rufus_core.data.constraints.words import NUMBER_OF_WORDS


def _mentions(text: str, args: Args) -> int:
    return words_of(text).count(str(args["word"]).casefold())


def _without(text: str, words: list[str], rng: random.Random) -> str:
    gone = {word.casefold() for word in words}
    return replace_words(text, lambda word: word in gone, rng, lambda _: True)


MENTIONS = Unit(
    count=_mentions,
    add=lambda text, args, rng: insert_inside(text, args["word"], rng),
    drop=lambda text, args, rng: replace_one(text, lambda word: word == args["word"].casefold(), rng),
)


def one_word(rng: random.Random) -> dict[str, object]:
    return {"word": rng.choice(KEYWORDS)}


def _several(low: int, high: int) -> Sampler:
    return lambda rng: {"words": rng.sample(KEYWORDS, rng.randint(low, high))}


def _missing(text: str, args: Args) -> list[str]:
    said = set(words_of(text))
    return [word for word in args["words"] if word.casefold() not in said]


def _add_missing(text: str, args: Args, rng: random.Random) -> str:
    for word in _missing(text, args):
        text = insert_inside(text, word, rng)
    return text


def _keep_one(text: str, args: Args, rng: random.Random) -> str:
    said = [word for word in args["words"] if word not in _missing(text, args)]
    kept = rng.choice(said or args["words"])
    text = _without(text, [word for word in args["words"] if word != kept], rng)
    return text if said else insert_inside(text, kept, rng)


def _word_at(text: str, args: Args) -> bool:
    words, position = words_of(text), args["position"]
    return bool(1 <= position <= len(words) and words[position - 1] == args["word"].casefold())


def _put_at(text: str, args: Args, rng: random.Random) -> str:
    text = NUMBER_OF_WORDS.resize(text, args, max(args["position"], len(words_of(text))), rng)
    return put(text, args["position"] - 1, args["word"])


def _in_order(text: str, args: Args) -> bool:
    """By the first place where each is said."""
    words = words_of(text)
    first = {word: place for place, word in reversed(list(enumerate(words)))}
    places = [first.get(word.casefold(), -1) for word in args["words"]]
    return -1 not in places and all(a < b for a, b in itertools.pairwise(places))


def _put_in_order(text: str, words: list[str], rng: random.Random) -> str:
    text = _without(text, words, rng)
    for word in reversed(words):  # each before those that follow it
        places = [place for place, said in enumerate(words_of(text)) if said in words]
        text = insert(text, rng.randint(0, max(0, min(places, default=len(words_of(text)) - 1) - 1)), word)
    return text


def _in_each_paragraph(text: str, args: Args) -> bool:
    return all(_mentions(paragraph, args) for paragraph in paragraphs_of(text)) and bool(text.strip())


def _add_to_each_paragraph(text: str, args: Args, rng: random.Random) -> str:
    return join_paragraphs(
        [p if _mentions(p, args) else insert_inside(p, args["word"], rng) for p in paragraphs_of(text)]
    )


def _drop_from_one_paragraph(text: str, args: Args, rng: random.Random) -> str:
    paragraphs = paragraphs_of(text)
    index = rng.randrange(len(paragraphs))
    paragraphs[index] = _without(paragraphs[index], [args["word"]], rng)
    return join_paragraphs(paragraphs)


def _in_sentence(text: str, args: Args, place: int) -> bool:
    sentences = sentences_of(text)
    return bool(sentences) and _mentions(sentences[place], args) > 0


def _drop_from_sentence(text: str, args: Args, rng: random.Random, place: int) -> str:
    index = place % len(sentences_of(text))
    return map_sentences(text, lambda i, sentence: _without(sentence, [args["word"]], rng) if i == index else sentence)


def _drop_phrase(text: str, args: Args, rng: random.Random) -> str:
    return re.sub(re.escape(args["phrase"]), lambda _: pick(rng, lambda _: True), text, flags=re.IGNORECASE)


KINDS: dict[str, Kind] = {
    "include_word": Kind(
        phrasings=('Use the word "{word}".', 'The word "{word}" must occur in your answer.'),
        check=lambda text, args: _mentions(text, args) > 0,
        mend=MENTIONS.add,
        spoil=lambda text, args, rng: _without(text, [args["word"]], rng),
        sample=one_word,
        arguments={"word": str},
        order=3,
    ),
    "exclude_word": Kind(
        phrasings=('Never use the word "{word}".', 'Answer without saying "{word}".'),
        check=lambda text, args: _mentions(text, args) == 0,
        mend=lambda text, args, rng: _without(text, [args["word"]], rng),
        spoil=MENTIONS.add,
        sample=one_word,
        arguments={"word": str},
        order=3,
    ),
    "include_words": Kind(
        phrasings=("Work all of these words in: {words}.", "Each of the following words must occur: {words}."),
        check=lambda text, args: not _missing(text, args),
        mend=_add_missing,
        spoil=lambda text, args, rng: _without(text, [rng.choice(args["words"])], rng),
        sample=_several(2, 4),
        arguments={"words": list},
        order=3,
    ),
    "exclude_words": Kind(
        phrasings=("Use none of these words: {words}.", "The following words are not allowed: {words}."),
        check=lambda text, args: len(_missing(text, args)) == len(args["words"]),
        mend=lambda text, args, rng: _without(text, args["words"], rng),
        spoil=lambda text, args, rng: insert_inside(text, rng.choice(args["words"]), rng),
        sample=_several(2, 4),
        arguments={"words": list},
        order=3,
    ),
    "one_of_words": Kind(
        phrasings=("Use exactly one of these words and none of the others: {words}.",),
        check=lambda text, args: len(_missing(text, args)) == len(args["words"]) - 1,
        mend=_keep_one,
        spoil=_add_missing,
        sample=_several(2, 4),
        arguments={"words": list},
        order=3,
    ),
    "word_exactly": exactly(
        MENTIONS,
        lambda rng: {**one_word(rng), "count": rng.randint(2, 5)},
        'Say "{word}" exactly {count} times.',
        'The word "{word}" must occur {count} times, neither more nor less.',
        order=3,
        word=str,
    ),
    "word_at_least": at_least(
        MENTIONS,
        lambda rng: {**one_word(rng), "count": rng.randint(2, 5)},
        'Say "{word}" at least {count} times.',
        'Use the word "{word}" {count} times or more.',
        order=3,
        word=str,
    ),
    "word_at_most": at_most(
        MENTIONS,
        lambda rng: {**one_word(rng), "count": rng.randint(2, 4)},
        'Say "{word}" no more than {count} times.',
        'You may use the word "{word}" up to {count} times.',
        order=3,
        word=str,
    ),
    "word_position": Kind(
        phrasings=(
            'Word number {position} of your answer must be "{word}".',
            'Make "{word}" the word at place {position}.',
        ),
        check=_word_at,
        mend=_put_at,
        spoil=lambda text, args, rng: put(text, args["position"] - 1, pick(rng, lambda _: True)),
        sample=lambda rng: {**one_word(rng), "position": rng.randint(2, 12)},
        arguments={"word": str, "position": int},
        order=6,
    ),
    "words_in_order": Kind(
        phrasings=("Mention these words in this order: {words}.",),
        check=_in_order,
        mend=lambda text, args, rng: _put_in_order(text, args["words"], rng),
        spoil=lambda text, args, rng: _put_in_order(text, args["words"][::-1], rng),
        sample=_several(2, 4),
        arguments={"words": list},
        order=3,
    ),
    "phrase": Kind(
        phrasings=('Include the phrase "{phrase}".', 'Somewhere in your answer, write "{phrase}" word for word.'),
        check=lambda text, args: args["phrase"].casefold() in text.casefold(),
        mend=lambda text, args, rng: insert_inside(text, args["phrase"], rng),
        spoil=_drop_phrase,
        sample=lambda rng: {"phrase": rng.choice(PHRASES)},
        arguments={"phrase": str},
        order=3,
    ),
    "word_in_each_paragraph": Kind(
        phrasings=('Use the word "{word}" in every paragraph.', 'No paragraph may be without the word "{word}".'),
        check=_in_each_paragraph,
        mend=_add_to_each_paragraph,
        spoil=_drop_from_one_paragraph,
        sample=one_word,
        arguments={"word": str},
        order=4,
    ),
    "word_in_first_sentence": Kind(
        phrasings=('Use the word "{word}" in your first sentence.',),
        check=lambda text, args: _in_sentence(text, args, 0),
        mend=lambda text, args, _: insert(text, 0, args["word"]),
        spoil=lambda text, args, rng: _drop_from_sentence(text, args, rng, 0),
        sample=one_word,
        arguments={"word": str},
        order=6,
    ),
    "word_in_last_sentence": Kind(
        phrasings=('Use the word "{word}" in your last sentence.',),
        check=lambda text, args: _in_sentence(text, args, -1),
        mend=lambda text, args, _: insert(
            text, len(words_of(text)) - 2 if len(words_of(text)) > 1 else 0, args["word"]
        ),
        spoil=lambda text, args, rng: _drop_from_sentence(text, args, rng, -1),
        sample=one_word,
        arguments={"word": str},
        order=6,
    ),
}
