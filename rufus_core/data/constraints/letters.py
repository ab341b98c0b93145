"""Letters, case and the look of words."""

from __future__ import annotations

import itertools
import random

from rufus_core.data.constraints.kind import Args, Kind, Unit, at_least, at_most, counts
from rufus_core.data.constraints.text import WORD, insert_inside, pick, put, replace_one, replace_words, words_of
from rufus_core.data.constraints.vocabulary import PALINDROMES, WORDS

CASE = frozenset({"case"})
COMMON_LETTERS = "abcdefghiklmnoprstuvw"


def _letters(text: str, args: Args) -> int:
    return text.casefold().count(args["letter"].casefold())


LETTERS = Unit(
    count=_letters,
    add=lambda text, args, rng: insert_inside(text, pick(rng, lambda word: word.count(args["letter"]) == 1), rng),
    drop=lambda text, args, rng: replace_one(text, lambda word: args["letter"] in word, rng),
)


def _is_capital(word: str) -> bool:
    return len(word) > 1 and word.isupper()


def _turn_case(text: str, rng: random.Random, before: bool) -> str:
    """One word in capitals more, or one fewer."""
    words = WORD.findall(text)
    found = [place for place, word in enumerate(words) if len(word) > 1 and _is_capital(word) is before]
    if not found:
        return text
    place = rng.choice(found)
    return put(text, place, words[place].lower() if before else words[place].upper())


CAPITAL_WORDS = Unit(
    count=lambda text, _: sum(map(_is_capital, WORD.findall(text))),
    add=lambda text, _, rng: _turn_case(text, rng, before=False),
    drop=lambda text, _, rng: _turn_case(text, rng, before=True),
)


def is_palindrome(word: str) -> bool:
    return len(word) >= 3 and word.isalpha() and word == word[::-1]


PALINDROME_WORDS = Unit(
    count=lambda text, _: sum(map(is_palindrome, words_of(text))),
    add=lambda text, _, rng: insert_inside(text, rng.choice(PALINDROMES), rng),
    drop=lambda text, _, rng: replace_one(text, is_palindrome, rng),
)


def _longest_run(text: str, args: Args) -> int:
    groups = itertools.groupby(words_of(text), key=lambda word: word.startswith(args["letter"].casefold()))
    return max((len(list(group)) for same, group in groups if same), default=0)


def _alliterate(text: str, args: Args, rng: random.Random) -> str:
    starting = [word for word in WORDS if word.startswith(args["letter"])]
    return insert_inside(text, " ".join(rng.choice(starting) for _ in range(args["count"])), rng)


def _break_alliteration(text: str, args: Args, rng: random.Random) -> str:
    return replace_words(text, lambda word: word.startswith(args["letter"]), rng, lambda _: True)


def _raise_one(text: str, rng: random.Random) -> str:
    """One word in lower case more."""
    words = WORD.findall(text)
    found = [place for place, word in enumerate(words) if word[0].isupper()]
    place = rng.choice(found) if found else 0
    start = list(WORD.finditer(text))[place].start()
    return text[:start] + text[start].lower() + text[start + 1 :]


KINDS: dict[str, Kind] = {
    "all_lowercase": Kind(
        phrasings=("Use lower case only: no capital letters.", "Write everything in small letters."),
        check=lambda text, _: not any(sign.isupper() or sign.istitle() for sign in text),
        mend=lambda text, _, __: text.lower(),
        spoil=lambda text, _, rng: insert_inside(text, pick(rng, lambda _: True).capitalize(), rng),
        claims=CASE,
        order=8,
    ),
    "all_uppercase": Kind(
        phrasings=("Use capital letters only.", "Write everything in upper case."),
        check=lambda text, _: not any(sign.islower() for sign in text),
        mend=lambda text, _, __: text.upper(),
        spoil=lambda text, _, rng: insert_inside(text, pick(rng, lambda _: True), rng),
        claims=CASE,
        order=8,
    ),
    "title_case": Kind(
        phrasings=("Begin every single word with a capital letter.", "Capitalise the first letter of each word."),
        check=lambda text, _: not any(word[0].islower() for word in WORD.findall(text)),
        mend=lambda text, _, __: WORD.sub(lambda match: match[0][0].upper() + match[0][1:], text),
        spoil=lambda text, _, rng: _raise_one(text, rng),
        claims=CASE,
        order=8,
    ),
    "capital_words": at_least(
        CAPITAL_WORDS,
        counts(2, 5),
        "Write at least {count} words entirely in capitals.",
        "Put {count} words or more in FULL capitals.",
        claims=CASE,
        order=7,
    ),
    "max_capital_words": at_most(
        CAPITAL_WORDS,
        counts(1, 3),
        "Write no more than {count} of your words in full capitals.",
        claims=CASE,
        order=7,
    ),
    "exclude_letter": Kind(
        phrasings=('Don\'t use the letter "{letter}" at all.', 'The letter "{letter}" is not allowed anywhere.'),
        check=lambda text, args: _letters(text, args) == 0,
        mend=lambda text, args, rng: replace_words(
            text, lambda word: args["letter"] in word, rng, lambda word: args["letter"] not in word
        ),
        spoil=lambda text, args, rng: insert_inside(text, pick(rng, lambda word: args["letter"] in word), rng),
        sample=lambda rng: {"letter": rng.choice("bcdfgjkmpquvwyz")},
        arguments={"letter": str},
        order=4,
    ),
    "letter_at_least": at_least(
        LETTERS,
        lambda rng: {"letter": rng.choice(COMMON_LETTERS), "count": rng.randint(4, 20)},
        'The letter "{letter}" must occur at least {count} times.',
        'Use the letter "{letter}" {count} times or more.',
        letter=str,
    ),
    "letter_at_most": at_most(
        LETTERS,
        lambda rng: {"letter": rng.choice(COMMON_LETTERS), "count": rng.randint(3, 12)},
        'Use the letter "{letter}" at most {count} times.',
        'The letter "{letter}" may occur up to {count} times.',
        order=4,
        letter=str,
    ),
    "alliteration": Kind(
        phrasings=('Somewhere, let {count} or more words in a row begin with the letter "{letter}".',),
        check=lambda text, args: _longest_run(text, args) >= args["count"],
        mend=_alliterate,
        spoil=_break_alliteration,
        sample=lambda rng: {"letter": rng.choice("abefhjnr"), "count": rng.randint(3, 5)},
        arguments={"letter": str, "count": int},
        order=4,
    ),
    "palindromes": at_least(
        PALINDROME_WORDS,
        counts(1, 3),
        "Include at least {count} of those words, of three letters or more, that read the same backwards.",
        order=3,
    ),
}
