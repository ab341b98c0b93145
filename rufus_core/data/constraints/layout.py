"""Paragraphs, lines and length."""

from __future__ import annotations

import itertools
import random
import textwrap

from rufus_core.data.constraints.keywords import one_word
from rufus_core.data.constraints.kind import Args, Kind, Unit, counts, exactly
from rufus_core.data.constraints.sentences import NUMBER_OF_SENTENCES
from rufus_core.data.constraints.text import (
    add_sentence,
    draft,
    drop_word,
    insert_block,
    join_paragraphs,
    lines_of,
    paragraphs_of,
    pick,
    put,
    sentence,
    words_of,
)
from rufus_core.data.constraints.words import NUMBER_OF_WORDS

DIVIDER = "***"


def _join_two(text: str, by: str, rng: random.Random) -> str:
    parts = text.split(by)
    if len(parts) < 2:
        return text
    place = rng.randrange(len(parts) - 1)
    return by.join([*parts[:place], f"{parts[place].rstrip()} {parts[place + 1].lstrip()}", *parts[place + 2 :]])


PARAGRAPHS = Unit(
    count=lambda text, _: len(paragraphs_of(text)),
    add=lambda text, _, rng: insert_block(text, sentence(rng), rng),
    drop=lambda text, _, rng: _join_two(join_paragraphs(paragraphs_of(text)), "\n\n", rng),
)
LINES = Unit(
    count=lambda text, _: len(lines_of(text)),
    add=lambda text, _, rng: f"{sentence(rng)}\n{text}",
    drop=lambda text, _, rng: _join_two("\n".join(lines_of(text)), "\n", rng),
)
DIVIDERS = Unit(
    count=lambda text, _: sum(line.strip() == DIVIDER for line in text.splitlines()),
    add=lambda text, _, rng: insert_block(
        text if len(paragraphs_of(text)) > 1 else f"{text}\n\n{sentence(rng)}", DIVIDER, rng
    ),
    drop=lambda text, _, __: text.replace(f"{DIVIDER}\n", "", 1),
)


def _per_paragraph(unit: Unit, text: str, args: Args, rng: random.Random, at_most: bool = False) -> str:
    def resized(paragraph: str) -> str:
        have = unit.count(paragraph, args)
        return unit.resize(paragraph, args, min(have, args["count"]) if at_most else args["count"], rng)

    return join_paragraphs([resized(paragraph) for paragraph in paragraphs_of(text)])


def _grow_one_paragraph(unit: Unit, text: str, args: Args, rng: random.Random) -> str:
    paragraphs = paragraphs_of(text)
    index = rng.randrange(len(paragraphs))
    paragraphs[index] = unit.resize(paragraphs[index], args, args["count"] + 1, rng)
    return join_paragraphs(paragraphs)


def _starts_paragraph(text: str, args: Args) -> bool:
    paragraphs, place = paragraphs_of(text), args["position"]
    return 1 <= place <= len(paragraphs) and words_of(paragraphs[place - 1])[:1] == [args["word"].casefold()]


def _start_paragraph(text: str, word: str, args: Args, rng: random.Random) -> str:
    paragraphs = paragraphs_of(PARAGRAPHS.resize(text, args, max(args["position"], len(paragraphs_of(text))), rng))
    index = args["position"] - 1
    if words_of(paragraphs[index]):
        paragraphs[index] = put(paragraphs[index], 0, word)
    return join_paragraphs(paragraphs)


def _wrap(text: str, args: Args, _rng: random.Random) -> str:
    return "\n".join(piece for line in text.splitlines() for piece in textwrap.wrap(line, args["count"]) or [""])


def _by_words(text: str, sizes: list[int], rng: random.Random) -> str:
    """The text's words, on lines of these numbers of words."""
    words = text.split()
    while len(words) < sum(sizes):
        words += draft(rng).split()
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return "\n".join(" ".join(words[end - size : end]) for end, size in zip(ends, sizes, strict=True))


def _line_words(text: str, args: Args, rng: random.Random) -> str:
    return _by_words(text, [args["count"]] * max(2, -(-len(text.split()) // max(1, args["count"]))), rng)


def _rising(text: str, args: Args) -> bool:
    sizes = [len(words_of(line)) for line in lines_of(text)]
    return len(sizes) >= args["count"] and all(a < b for a, b in itertools.pairwise(sizes))


def _rise(text: str, args: Args, rng: random.Random) -> str:
    start = rng.randint(1, 3)
    return _by_words(text, list(range(start, start + args["count"])), rng)


def _up_to_chars(text: str, args: Args, rng: random.Random) -> str:
    while len(text) < args["count"]:
        text = add_sentence(text, rng)
    return text


def _down_to_chars(text: str, args: Args, rng: random.Random) -> str:
    while len(text) > args["count"] and words_of(text):
        text = drop_word(text, rng).strip()
    return text


KINDS: dict[str, Kind] = {
    "num_paragraphs": exactly(
        PARAGRAPHS,
        counts(2, 5),
        "Write exactly {count} paragraphs, divided by blank lines.",
        "Your answer must have {count} paragraphs with a blank line between them.",
        claims=frozenset({"paragraphs"}),
        order=1,
    ),
    "paragraph_sentences": Kind(
        phrasings=("Every paragraph must have exactly {count} sentences.",),
        check=lambda text, args: all(
            NUMBER_OF_SENTENCES.count(paragraph, args) == args["count"] for paragraph in paragraphs_of(text)
        ),
        mend=lambda text, args, rng: _per_paragraph(NUMBER_OF_SENTENCES, text, args, rng),
        spoil=lambda text, args, rng: _grow_one_paragraph(NUMBER_OF_SENTENCES, text, args, rng),
        sample=counts(2, 4),
        arguments={"count": int},
        claims=frozenset({"sentence count"}),
        order=2,
    ),
    "paragraph_max_words": Kind(
        phrasings=("No paragraph may have more than {count} words.", "Keep each paragraph to at most {count} words."),
        check=lambda text, args: all(len(words_of(paragraph)) <= args["count"] for paragraph in paragraphs_of(text)),
        mend=lambda text, args, rng: _per_paragraph(NUMBER_OF_WORDS, text, args, rng, at_most=True),
        spoil=lambda text, args, rng: _grow_one_paragraph(NUMBER_OF_WORDS, text, args, rng),
        sample=counts(10, 30),
        arguments={"count": int},
        order=4,
    ),
    "paragraph_first_word": Kind(
        phrasings=('Paragraph {position} must begin with the word "{word}".',),
        check=_starts_paragraph,
        mend=lambda text, args, rng: _start_paragraph(text, args["word"], args, rng),
        spoil=lambda text, args, rng: _start_paragraph(text, pick(rng, lambda _: True), args, rng),
        sample=lambda rng: {**one_word(rng), "position": rng.randint(2, 3)},
        arguments={"word": str, "position": int},
        order=6,
    ),
    "dividers": exactly(
        DIVIDERS,
        counts(1, 3),
        "Put a line of three asterisks (***) between parts of your answer, {count} in all.",
        "Use {count} divider lines that consist of *** and nothing else.",
        claims=frozenset({"paragraphs"}),
        order=1,
    ),
    "num_lines": exactly(
        LINES,
        counts(3, 8),
        "Write exactly {count} lines, blank ones not counted.",
        "Leaving blank lines aside, your answer must have {count} lines.",
        claims=frozenset({"lines", "paragraphs"}),
        order=2,
    ),
    "line_max_chars": Kind(
        phrasings=(
            "No line may be longer than {count} characters.",
            "Break lines at {count} characters at the latest.",
        ),
        check=lambda text, args: all(len(line) <= args["count"] for line in text.splitlines()),
        mend=_wrap,
        spoil=lambda text, args, _: f"{text}\n{'word ' * (args['count'] // 5 + 1)}end",
        sample=counts(40, 80),
        arguments={"count": int},
        claims=frozenset({"lines"}),
        order=7,
    ),
    "line_words": Kind(
        phrasings=("Put exactly {count} words on every line.", "Each line must have {count} words."),
        check=lambda text, args: all(len(words_of(line)) == args["count"] for line in lines_of(text)),
        mend=_line_words,
        spoil=lambda text, _, rng: f"{pick(rng, lambda _: True)} {text}",
        sample=counts(4, 8),
        arguments={"count": int},
        claims=frozenset({"lines", "paragraphs", "sentence count", "sentence length"}),
        order=2,
    ),
    "rising_lines": Kind(
        phrasings=("Write at least {count} lines, and make each line have more words than the line before it.",),
        check=_rising,
        mend=_rise,
        spoil=lambda text, _, rng: f"{text}\n{pick(rng, lambda _: True)}",
        sample=counts(4, 6),
        arguments={"count": int},
        claims=frozenset({"lines", "paragraphs", "sentence count", "sentence length"}),
        order=2,
    ),
    "no_blank_lines": Kind(
        phrasings=("Leave no blank line in your answer.", "Don't use blank lines."),
        check=lambda text, _: all(line.strip() for line in text.strip().splitlines()),
        mend=lambda text, _, __: "\n".join(lines_of(text)),
        spoil=lambda text, _, rng: f"{text}\n\n{sentence(rng)}",
        claims=frozenset({"paragraphs"}),
        order=8,
    ),
    "min_chars": Kind(
        phrasings=("Write at least {count} characters.", "Your answer must be {count} characters or longer."),
        check=lambda text, args: len(text) >= args["count"],
        mend=_up_to_chars,
        spoil=lambda text, args, rng: _down_to_chars(text, {"count": args["count"] - 1}, rng),
        sample=counts(150, 500),
        arguments={"count": int},
        claims=frozenset({"characters"}),
    ),
    "max_chars": Kind(
        phrasings=("Stay within {count} characters.", "Your answer may have {count} characters at most."),
        check=lambda text, args: len(text) <= args["count"],
        mend=_down_to_chars,
        spoil=lambda text, args, rng: _up_to_chars(text, {"count": args["count"] + 1}, rng),
        sample=counts(150, 500),
        arguments={"count": int},
        claims=frozenset({"characters"}),
        order=5,
    ),
}
