"""How an answer begins and ends, and how its parts hang together."""

from __future__ import annotations

import itertools
import random
import re

from rufus_core.data.constraints.keywords import one_word
from rufus_core.data.constraints.kind import Args, Kind, Unit, at_least, counts, exactly
from rufus_core.data.constraints.punctuation import spans
from rufus_core.data.constraints.text import (
    add_sentence,
    insert_block,
    item,
    lines_of,
    map_sentences,
    paragraphs_of,
    pick,
    put,
    sentence,
    sentences_of,
    words_of,
)
from rufus_core.data.constraints.vocabulary import ACROSTICS, NAMES, PHRASES, SENTENCES, WORDS

FIRST, LAST = frozenset({"first"}), frozenset({"last"})
SEPARATOR = "======"
_PLACEHOLDER = re.compile(r"\[[^\[\]\n]+\]")
_STEP = re.compile(r"Step (\d{1,6}): *\S", re.ASCII)
_SPEAKER = re.compile(r"(\w+): *\S")


def _put_word(text: str, place: int, word: str, rng: random.Random) -> str:
    text = text if words_of(text) else sentence(rng)
    return put(text, place % len(words_of(text)), word)


def _without_start(text: str, start: str) -> str:
    return text[len(start) :].lstrip() if text.startswith(start) else text


def _mirror(text: str, _args: Args, rng: random.Random) -> str:
    return _put_word(text, -1, words_of(text)[0] if words_of(text) else "now", rng)


def _is_chain(text: str) -> bool:
    words = [words_of(said) for said in sentences_of(text)]
    return len(words) > 1 and all(a[-1] == b[0] for a, b in itertools.pairwise(words))


def _chain(text: str, _args: Args, rng: random.Random) -> str:
    text = text if len(sentences_of(text)) > 1 else add_sentence(text, rng)
    ends = [words_of(said)[-1] for said in sentences_of(text)]
    return map_sentences(text, lambda place, said: put(said, 0, ends[place - 1]) if place else said)


def _break_chain(text: str, _args: Args, rng: random.Random) -> str:
    last = words_of(sentences_of(text)[0])[-1]
    other = pick(rng, lambda word: word != last)
    return map_sentences(text, lambda place, said: put(said, 0, other) if place == 1 else said)


def _initials(text: str) -> str:
    """The first letter of each line."""
    return "".join(words[0][0] for line in lines_of(text) if (words := words_of(line)))


def _acrostic(text: str, word: str, rng: random.Random) -> str:
    words = text.split()
    size = max(1, len(words) // len(word))
    lines = []
    for place, letter in enumerate(word.casefold()):
        start = pick(rng, lambda other: other.startswith(letter), WORDS)  # noqa: B023 - called at once
        end = None if place == len(word) - 1 else (place + 1) * size
        lines.append(" ".join([start.capitalize(), *words[place * size : end]]))
    return "\n".join(lines)


def _steps(text: str) -> list[int]:
    return [int(match[1]) for line in text.splitlines() if (match := _STEP.match(line))]


def _put_steps(text: str, count: int, rng: random.Random) -> str:
    kept = "\n".join(line for line in text.splitlines() if not _STEP.match(line))
    return insert_block(kept, "\n".join(f"Step {place + 1}: {item(rng)}" for place in range(count)), rng)


def _is_dialogue(text: str, args: Args) -> bool:
    """Every line is said by one of the speakers, in turns."""
    speakers = [match[1] if (match := _SPEAKER.match(line)) else "" for line in lines_of(text)]
    turns = [args["names"][place % len(args["names"])] for place in range(len(speakers))]
    return len(speakers) >= 2 and speakers == turns


def _as_dialogue(text: str, names: list[str], rng: random.Random) -> str:
    said = [line.partition(": ")[2] or line for line in lines_of(text)]
    said += [sentence(rng)] * (len(names) - len(said))
    return "\n".join(f"{names[place % len(names)]}: {line}" for place, line in enumerate(said))


def _answers(text: str) -> list[str]:
    return [part.strip() for part in text.split(SEPARATOR)]


def _are_different(text: str, args: Args) -> bool:
    answers = _answers(text)
    return len(answers) == args["count"] == len(set(answers)) and all(map(words_of, answers))


def _several_answers(text: str, args: Args, rng: random.Random) -> str:
    answers = _answers(text)[: args["count"]]
    while len(answers) < args["count"] or len(set(answers)) < len(answers):
        answers = [*dict.fromkeys(answers), f"{sentence(rng)} {sentence(rng)}"][: args["count"]]
    return f"\n{SEPARATOR}\n".join(answers)


def _start_last_paragraph(text: str, start: str, rng: random.Random) -> str:
    paragraphs = paragraphs_of(text) or [sentence(rng)]
    return "\n\n".join([*paragraphs[:-1], f"{start} {paragraphs[-1]}"])


REFRAIN = Unit(
    count=lambda text, args: text.count(args["sentence"]),
    add=lambda text, args, rng: insert_block(text, args["sentence"], rng),
    drop=lambda text, args, _: text.replace(args["sentence"], "", 1),
)

KINDS: dict[str, Kind] = {
    "first_word": Kind(
        phrasings=('Begin with the word "{word}".', 'The first word of your answer must be "{word}".'),
        check=lambda text, args: words_of(text)[:1] == words_of(args["word"]),
        mend=lambda text, args, rng: _put_word(text, 0, args["word"], rng),
        spoil=lambda text, _, rng: _put_word(text, 0, pick(rng, lambda _: True), rng),
        sample=one_word,
        arguments={"word": str},
        claims=FIRST,
        order=7,
    ),
    "last_word": Kind(
        phrasings=('Finish with the word "{word}".', 'The last word of your answer must be "{word}".'),
        check=lambda text, args: words_of(text)[-1:] == words_of(args["word"]),
        mend=lambda text, args, rng: _put_word(text, -1, args["word"], rng),
        spoil=lambda text, _, rng: _put_word(text, -1, pick(rng, lambda _: True), rng),
        sample=one_word,
        arguments={"word": str},
        claims=LAST,
        order=7,
    ),
    "mirrored": Kind(
        phrasings=("Begin and end with the same word.", "The last word of your answer must repeat the first one."),
        check=lambda text, _: bool(words_of(text)) and words_of(text)[0] == words_of(text)[-1],
        mend=_mirror,
        spoil=lambda text, _, rng: _put_word(text, -1, pick(rng, lambda word: word != words_of(text)[0]), rng),
        claims=LAST,
        order=7,
    ),
    "begin_with": Kind(
        phrasings=('Begin your answer with exactly this: "{phrase}"',),
        check=lambda text, args: text.lstrip().startswith(args["phrase"]),
        mend=lambda text, args, _: f"{args['phrase']} {text}",
        spoil=lambda text, args, _: _without_start(text.lstrip(), args["phrase"]),
        sample=lambda rng: {"phrase": f"{rng.choice(PHRASES).capitalize()}:"},
        arguments={"phrase": str},
        claims=FIRST | {"case"},
        order=7,
    ),
    "end_with": Kind(
        phrasings=('End your answer with exactly this, and nothing after it: "{phrase}"',),
        check=lambda text, args: text.rstrip().endswith(args["phrase"]),
        mend=lambda text, args, _: f"{text.rstrip()} {args['phrase']}",
        spoil=lambda text, args, _: text.rstrip().removesuffix(args["phrase"]).rstrip(),
        sample=lambda rng: {"phrase": rng.choice(SENTENCES)},
        arguments={"phrase": str},
        claims=LAST | {"case"},
        order=7,
    ),
    "end_sign": Kind(
        phrasings=('End with the sign "{sign}".', 'The very last sign of your answer must be "{sign}".'),
        check=lambda text, args: text.endswith(args["sign"]),
        mend=lambda text, args, _: text.rstrip().rstrip(".!?") + args["sign"],
        spoil=lambda text, args, _: text.removesuffix(args["sign"]),
        sample=lambda rng: {"sign": rng.choice(("!", "?", "*", "~"))},
        arguments={"sign": str},
        claims=LAST,
        order=8,
    ),
    "title": Kind(
        phrasings=('Make the first line a title in the form "Title: ...".',),
        check=lambda text, _: bool(re.match(r"Title: *\S", text.lstrip())),
        mend=lambda text, _, rng: f"Title: {item(rng)}\n{text}",
        spoil=lambda text, _, __: _without_start(text.lstrip(), "Title:"),
        claims=FIRST | {"case"},
        order=2,
    ),
    "postscript": Kind(
        phrasings=("Add a postscript: a last paragraph that begins with {marker}",),
        check=lambda text, args: len(paragraphs_of(text)) > 1 and paragraphs_of(text)[-1].startswith(args["marker"]),
        mend=lambda text, args, rng: f"{text.rstrip()}\n\n{args['marker']} {sentence(rng)}",
        spoil=lambda text, _, rng: f"{text.rstrip()}\n\n{sentence(rng)}",
        sample=lambda rng: {"marker": rng.choice(("P.S.", "PS:", "N.B.:"))},
        arguments={"marker": str},
        claims=LAST | {"case"},
        order=2,
    ),
    "signature": Kind(
        phrasings=("Sign your answer: its last line must be a dash, a space and the name {name}.",),
        check=lambda text, args: lines_of(text)[-1:] in ([f"- {args['name']}"], [f"— {args['name']}"]),
        mend=lambda text, args, _: f"{text.rstrip()}\n— {args['name']}",
        spoil=lambda text, args, __: text.rstrip().removesuffix(f"— {args['name']}"),
        sample=lambda rng: {"name": rng.choice(NAMES)},
        arguments={"name": str},
        claims=LAST | {"case", "bullets"},
        order=7,
    ),
    "last_paragraph_start": Kind(
        phrasings=('Your last paragraph must begin with "{start}".',),
        check=lambda text, args: bool(text.strip()) and paragraphs_of(text)[-1].startswith(args["start"]),
        mend=lambda text, args, rng: _start_last_paragraph(text, args["start"], rng),
        spoil=lambda text, _, rng: f"{text.rstrip()}\n\n{sentence(rng)}",
        sample=lambda rng: {"start": rng.choice(("In short:", "To sum up:", "In the end,"))},
        arguments={"start": str},
        claims=frozenset({"case"}),
        order=7,
    ),
    "acrostic": Kind(
        phrasings=("The first letters of your lines, read downwards, must spell {word}.",),
        check=lambda text, args: _initials(text) == args["word"].casefold(),
        mend=lambda text, args, rng: _acrostic(text, args["word"], rng),
        spoil=lambda text, _, __: "\n".join(lines_of(text)[1:]),
        sample=lambda rng: {"word": rng.choice(ACROSTICS)},
        arguments={"word": str},
        claims=frozenset({"first", "lines", "paragraphs", "sentence count", "layout"}),
        order=5,
    ),
    "sentence_chain": Kind(
        phrasings=("Begin each sentence, from the second on, with the last word of the sentence before it.",),
        check=lambda text, _: _is_chain(text),
        mend=_chain,
        spoil=_break_chain,
        claims=frozenset({"sentence starts", "last"}),
        order=7,
    ),
    "steps": Kind(
        phrasings=('Give {count} steps, each on a line of its own: "Step 1: ...", "Step 2: ..." and so on.',),
        check=lambda text, args: _steps(text) == list(range(1, args["count"] + 1)),
        mend=lambda text, args, rng: _put_steps(text, args["count"], rng),
        spoil=lambda text, args, rng: _put_steps(text, args["count"] + rng.choice((1, -1)), rng),
        sample=counts(3, 5),
        arguments={"count": int},
        claims=frozenset({"case", "digits"}),
        order=2,
    ),
    "dialogue": Kind(
        phrasings=('Write a dialogue in which these speak in turns, each line as "Name: ...": {names}.',),
        check=_is_dialogue,
        mend=lambda text, args, rng: _as_dialogue(text, args["names"], rng),
        spoil=lambda text, args, rng: _as_dialogue(text, args["names"][::-1], rng),
        sample=lambda rng: {"names": rng.sample(NAMES, 2)},
        arguments={"names": list},
        claims=frozenset({"first", "lines", "paragraphs", "case", "layout"}),
        order=8,
    ),
    "several_answers": Kind(
        phrasings=("Give {count} different answers, with a line of six equals signs (======) between them.",),
        check=_are_different,
        mend=_several_answers,
        spoil=lambda text, _, rng: f"{text}\n{SEPARATOR}\n{sentence(rng)}",
        sample=counts(2, 3),
        arguments={"count": int},
        claims=frozenset({"paragraphs"}),
        order=3,
    ),
    "repeat_first": Kind(
        phrasings=('First repeat this sentence word for word, then answer: "{sentence}"',),
        check=lambda text, args: (
            text.lstrip().startswith(args["sentence"]) and bool(words_of(text.lstrip()[len(args["sentence"]) :]))
        ),
        mend=lambda text, args, _: f"{args['sentence']}\n\n{text}",
        spoil=lambda text, args, rng: rng.choice((_without_start(text.lstrip(), args["sentence"]), args["sentence"])),
        sample=lambda rng: {"sentence": rng.choice(SENTENCES)},
        arguments={"sentence": str},
        claims=FIRST | {"case"},
        order=7,
    ),
    "refrain": exactly(
        REFRAIN,
        lambda rng: {"sentence": rng.choice(SENTENCES), "count": rng.randint(2, 4)},
        'Write this sentence, word for word, exactly {count} times: "{sentence}"',
        claims=frozenset({"case"}),
        order=2,
        sentence=str,
    ),
    "placeholders": at_least(
        spans(_PLACEHOLDER, "[{}]"),
        counts(2, 4),
        "Leave at least {count} placeholders in square brackets, such as [name].",
        order=3,
    ),
}
