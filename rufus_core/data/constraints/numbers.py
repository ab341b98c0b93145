"""Numbers in digits, dates and times of day."""

from __future__ import annotations

import datetime
import itertools
import random
import re
from collections.abc import Callable

from rufus_core.data.constraints.kind import Args, Kind, Unit, at_least, counts, exactly
from rufus_core.data.constraints.text import WORD, insert, insert_inside, pick, words_of

NUMBER = re.compile(r"\d+(?:[.,]\d+)*", re.ASCII)
_ISO_DATE = re.compile(r"(?<![\d-])\d{4}-\d{2}-\d{2}(?![\d-])", re.ASCII)
_CLOCK = re.compile(r"(?<![\d:])(?:[01]\d|2[0-3]):[0-5]\d(?![\d:])", re.ASCII)
_PERCENTAGE = re.compile(r"(?<![\d.,])\d{1,9}(?:\.\d{1,9})? ?%", re.ASCII)
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
DIGITS = frozenset({"digits"})


def _is_date(text: str) -> bool:
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _found(pattern: re.Pattern[str], draw: Callable[[random.Random], str], counts_too: Callable[[str], bool]) -> Unit:
    def drop(text: str, _args: Args, rng: random.Random) -> str:
        for match in pattern.finditer(text):
            if counts_too(match[0]):
                return text[: match.start()] + pick(rng, lambda _: True) + text[match.end() :]
        return text

    return Unit(
        count=lambda text, _: sum(map(counts_too, pattern.findall(text))),
        add=lambda text, _, rng: insert_inside(text, draw(rng), rng),
        drop=drop,
    )


def _iso(rng: random.Random) -> str:
    return (datetime.date(1990, 1, 1) + datetime.timedelta(days=rng.randrange(15_000))).isoformat()


def _spelt(rng: random.Random) -> str:
    return f"{rng.randint(1, 28)} {rng.choice(_MONTHS)} {rng.randint(1900, 2030)}"


NUMBERS = _found(NUMBER, lambda rng: str(rng.randint(2, 99)), lambda _: True)
DATES = _found(_ISO_DATE, _iso, _is_date)
TIMES = _found(_CLOCK, lambda rng: f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}", lambda _: True)
PERCENTAGES = _found(_PERCENTAGE, lambda rng: f"{rng.randint(1, 99)}%", lambda _: True)


def _without_digits(text: str, rng: random.Random) -> str:
    return re.sub(r"\d+", lambda _: pick(rng, lambda _: True), text)


def _values(text: str) -> list[str]:
    """The whole numbers, without zeros before them; of others their parts."""
    return [digits.lstrip("0") or "0" for digits in re.findall(r"[0-9]+", text)]


def _size(digits: str) -> tuple[int, str]:
    return len(digits), digits


def _ascend(text: str, args: Args) -> bool:
    sizes = [_size(digits) for digits in _values(text)]
    return len(sizes) >= args["count"] and all(a < b for a, b in itertools.pairwise(sizes))


def _put_ascending(text: str, args: Args, rng: random.Random) -> str:
    text = _without_digits(text, rng)
    while len(words_of(text)) < args["count"]:
        text = insert_inside(text, pick(rng, lambda _: True), rng)
    places = sorted(rng.sample(range(len(words_of(text))), args["count"]), reverse=True)
    numbers = sorted(rng.sample(range(2, 100), args["count"]), reverse=True)
    for place, number in zip(places, numbers, strict=True):  # from the end, so that places stay
        text = insert(text, place, str(number))
    return text


KINDS: dict[str, Kind] = {
    "num_numbers": exactly(
        NUMBERS,
        counts(2, 5),
        "Use exactly {count} numbers, written in digits.",
        "Exactly {count} numbers in digits must occur.",
        claims=DIGITS,
        order=3,
    ),
    "no_digits": Kind(
        phrasings=("Use no digits; write numbers out in words.", "There must be no digit in your answer."),
        check=lambda text, _: not any(sign.isdigit() for sign in text),
        mend=lambda text, _, rng: _without_digits(text, rng),
        spoil=NUMBERS.add,
        claims=DIGITS,
        order=4,
    ),
    "include_number": Kind(
        phrasings=("Mention the number {number} in digits.", "The number {number} must occur, written in digits."),
        check=lambda text, args: str(args["number"]) in NUMBER.findall(text),
        mend=lambda text, args, rng: insert_inside(text, str(args["number"]), rng),
        spoil=lambda text, _, rng: _without_digits(text, rng),
        sample=lambda rng: {"number": rng.randint(11, 999)},
        arguments={"number": int},
        order=3,
    ),
    "rising_numbers": Kind(
        phrasings=("Use at least {count} numbers in digits, and let each be greater than the one before it.",),
        check=_ascend,
        mend=_put_ascending,
        spoil=lambda text, _, __: insert(text, len(WORD.findall(text)) - 1, "1 0"),
        sample=counts(3, 5),
        arguments={"count": int},
        claims=DIGITS,
        order=3,
    ),
    "percentages": at_least(
        PERCENTAGES,
        counts(1, 3),
        "Give at least {count} of your figures as percentages, such as 12%.",
        order=3,
    ),
    "iso_dates": at_least(
        DATES,
        counts(1, 3),
        "Mention at least {count} of the dates in the form YYYY-MM-DD.",
        order=3,
    ),
    "include_date": Kind(
        phrasings=('Mention the date "{date}", written just so.',),
        check=lambda text, args: args["date"] in text,
        mend=lambda text, args, rng: insert_inside(text, args["date"], rng),
        spoil=lambda text, args, rng: text.replace(args["date"], pick(rng, lambda _: True)),
        sample=lambda rng: {"date": _spelt(rng)},
        arguments={"date": str},
        order=3,
    ),
    "clock_times": at_least(
        TIMES,
        counts(1, 3),
        "Mention at least {count} of the times of day in the form HH:MM, on a clock of 24 hours.",
        order=3,
    ),
}
