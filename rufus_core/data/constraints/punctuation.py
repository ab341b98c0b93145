"""Signs: required, counted, forbidden, in pairs."""

from __future__ import annotations

import random
import re
import unicodedata

from rufus_core.data.constraints.kind import Args, Kind, Unit, at_least, counts, exactly
from rufus_core.data.constraints.text import WORD, insert_inside, item, strip_signs, words_of

SIGNS = (",", ";", ":")
_ASIDE = re.compile(r"\([^()\n]+\)")
_QUOTATION = re.compile(r'"[^"\n]+"')


def _after_word(text: str, sign: str, rng: random.Random) -> str:
    """With the sign after some word that only a space follows."""
    ends = [match.end() for match in WORD.finditer(text) if text[match.end() : match.end() + 1] == " "]
    if not ends:
        return f"{text}{sign}"
    end = rng.choice(ends)
    return text[:end] + sign + text[end:]


def spans(pattern: re.Pattern[str], template: str) -> Unit:
    """Marked spans: added as `template` around a few words, dropped by taking the marks away."""
    marks = sorted(set(template.replace("{}", "")))

    def drop(text: str, _args: Args, _rng: random.Random) -> str:
        return pattern.sub(lambda match: strip_signs(match[0], "".join(marks)), text, count=1)

    return Unit(
        count=lambda text, _: sum(1 for _ in pattern.finditer(text)),
        add=lambda text, _, rng: insert_inside(text, template.replace("{}", item(rng)), rng),
        drop=drop,
    )


SIGN_COUNT = Unit(
    count=lambda text, args: text.count(args["sign"]),
    add=lambda text, args, rng: _after_word(text, args["sign"], rng),
    drop=lambda text, args, _: text.replace(args["sign"], "", 1),
)


def _commas(text: str, _args: Args) -> bool:
    """A comma between any two neighbouring words."""
    return all(len(words_of(part)) == 1 for part in text.split(","))


def _is_punctuation(sign: str) -> bool:
    return unicodedata.category(sign).startswith("P")


def _is_quoted(text: str) -> bool:
    return len(text) > 1 and text.startswith('"') and text.endswith('"')


KINDS: dict[str, Kind] = {
    "commas": Kind(
        phrasings=("Put a comma between any two words.",),
        check=_commas,
        mend=lambda text, _, __: ", ".join(WORD.findall(text)),
        spoil=lambda text, _, rng: insert_inside(text, item(rng), rng),
        claims=frozenset({"layout", "punctuation", "paragraphs", "lines", "sentence count", "sentence length", "last"}),
        order=7,
    ),
    "exclude_sign": Kind(
        phrasings=('Don\'t use the sign "{sign}".', 'The sign "{sign}" must not occur in your answer.'),
        check=lambda text, args: args["sign"] not in text,
        mend=lambda text, args, _: text.replace(args["sign"], ""),
        spoil=lambda text, args, rng: _after_word(text, args["sign"], rng),
        sample=lambda rng: {"sign": rng.choice((*SIGNS, "!", "?", "."))},
        arguments={"sign": str},
        order=7,
    ),
    "sign_exactly": exactly(
        SIGN_COUNT,
        lambda rng: {"sign": rng.choice(SIGNS), "count": rng.randint(2, 5)},
        'Use the sign "{sign}" exactly {count} times.',
        'The sign "{sign}" must occur {count} times, no more and no fewer.',
        order=7,
        sign=str,
    ),
    "asides": at_least(
        spans(_ASIDE, "({})"),
        counts(2, 4),
        "Put at least {count} remarks in parentheses.",
        "Include {count} or more asides in round brackets.",
        order=3,
    ),
    "quotations": at_least(
        spans(_QUOTATION, '"{}"'),
        counts(2, 4),
        'Put at least {count} expressions in double quotes (").',
        order=3,
    ),
    "quoted": Kind(
        phrasings=("Put your whole answer in double quotes.", 'The answer must begin and end with the sign ".'),
        check=lambda text, _: _is_quoted(text.strip()),
        mend=lambda text, _, __: f'"{strip_signs(text, chr(34)).strip()}"',
        spoil=lambda text, _, rng: rng.choice((text[1:], text[:-1])),
        claims=frozenset({"first", "last", "layout"}),
        order=9,
    ),
    "no_punctuation": Kind(
        phrasings=("Use no punctuation marks at all.", "Leave out all punctuation."),
        check=lambda text, _: not any(map(_is_punctuation, text)),
        mend=lambda text, _, __: "".join(sign for sign in text if not _is_punctuation(sign)),
        spoil=lambda text, _, rng: _after_word(text, rng.choice(SIGNS), rng),
        claims=frozenset({"layout", "punctuation", "last", "sentence count", "sentence length"}),
        order=8,
    ),
}
