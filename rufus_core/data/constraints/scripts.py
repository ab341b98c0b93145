"""Scripts, accents and emoji."""

from __future__ import annotations

import random
import re
import unicodedata

from rufus_core.data.constraints.kind import Args, Kind, Unit, at_least, counts, exactly
from rufus_core.data.constraints.text import WORD, insert_inside, pick, put

# The first and the last letter of each script's main block, and words written in it.
SCRIPTS = {
    "Greek": ("\u0370", "\u03ff", ("καλημέρα", "φως", "θάλασσα", "δρόμος")),
    "Cyrillic": ("\u0400", "\u04ff", ("привет", "море", "дорога", "свет")),
    "Hebrew": ("\u0590", "\u05ff", ("שלום", "אור", "ים", "דרך")),
    "Hiragana": ("\u3040", "\u309f", ("こんにちは", "ひかり", "うみ", "みち")),
    "Devanagari": ("\u0900", "\u097f", ("पथ", "मन", "जल", "नगर")),
}
ACCENTED = ("café", "naïve", "résumé", "jalapeño", "façade", "über", "crème", "déjà")
EMOJI = ("🌟", "🚀", "🎉", "🌍", "🔥", "🍀", "🎵", "🐳")
_EMOJI = re.compile(
    "[\U0001f300-\U0001f64f\U0001f680-\U0001f6ff\U0001f900-\U0001f9ff\U0001fa70-\U0001faff\u2600-\u27bf]"
)


def _written_in(word: str, args: Args) -> bool:
    first, last, _ = SCRIPTS[args["script"]]
    return all(first <= sign <= last for sign in word if sign.isalpha()) and any(map(str.isalpha, word))


def _drop_word(text: str, args: Args, rng: random.Random) -> str:
    places = [place for place, word in enumerate(WORD.findall(text)) if _written_in(word, args)]
    return put(text, rng.choice(places), pick(rng, lambda _: True)) if places else text


def _is_accented(sign: str) -> bool:
    return sign.isalpha() and len(unicodedata.normalize("NFD", sign)) > 1


SCRIPT_WORDS = Unit(
    count=lambda text, args: sum(_written_in(word, args) for word in WORD.findall(text)),
    add=lambda text, args, rng: insert_inside(text, rng.choice(SCRIPTS[args["script"]][2]), rng),
    drop=_drop_word,
)
ACCENTED_WORDS = Unit(
    count=lambda text, _: sum(
        any(map(_is_accented, word)) for word in WORD.findall(unicodedata.normalize("NFC", text))
    ),
    add=lambda text, _, rng: insert_inside(text, rng.choice(ACCENTED), rng),
    drop=lambda text, _, rng: WORD.sub(
        lambda match: pick(rng, lambda _: True) if any(map(_is_accented, match[0])) else match[0], text
    ),
)
EMOJIS = Unit(
    count=lambda text, _: len(_EMOJI.findall(text)),
    add=lambda text, _, rng: insert_inside(text, rng.choice(EMOJI), rng),
    drop=lambda text, _, __: _EMOJI.sub("", text, count=1),
)

KINDS: dict[str, Kind] = {
    "ascii_only": Kind(
        phrasings=("Use plain ASCII characters only.", "No character outside of ASCII is allowed."),
        check=lambda text, _: text.isascii(),
        mend=lambda text, _, __: text.encode("ascii", "ignore").decode(),
        spoil=lambda text, _, rng: insert_inside(text, rng.choice(ACCENTED), rng),
        claims=frozenset({"script"}),
        order=7,
    ),
    "script_words": at_least(
        SCRIPT_WORDS,
        lambda rng: {"script": rng.choice(sorted(SCRIPTS)), "count": rng.randint(1, 3)},
        "Include at least {count} of your words in {script} script.",
        claims=frozenset({"script"}),
        order=3,
        script=str,
    ),
    "accented_words": at_least(
        ACCENTED_WORDS,
        counts(1, 3),
        "Include at least {count} of those words that are written with an accent, as café is.",
        claims=frozenset({"script"}),
        order=3,
    ),
    "num_emoji": exactly(
        EMOJIS,
        counts(2, 4),
        "Use exactly {count} emoji.",
        "Your answer must have {count} emoji, no more and no fewer.",
        claims=frozenset({"script"}),
        order=6,
    ),
    "no_emoji": Kind(
        phrasings=("Don't use any emoji.",),
        check=lambda text, _: not _EMOJI.search(text),
        mend=lambda text, _, __: _EMOJI.sub("", text),
        spoil=EMOJIS.add,
        order=7,
    ),
}
