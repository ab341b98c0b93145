"""What a text is made of, and small edits of it: words, sentences, paragraphs and lines.

A sentence ends with `.`, `!`, `?` or `…` before white space, or with its line; a piece without a word is none.
Paragraphs are divided by blank lines. Every expression here takes linear time.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

from rufus_core.data.constraints.vocabulary import ADJECTIVES, LINKS, NOUNS, VERBS, WORDS

WORD = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")
_SENTENCE_END = re.compile(r"(?<=[.!?…。！？])[\"'”’)\]*_]*\s+|\n")
_CLOSING = "\"'”’)]*_ \t"


def words_of(text: str) -> list[str]:
    """The words in order, casefolded and without the signs around them."""
    return WORD.findall(text.casefold())


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Start and end of each sentence, its last sign included."""
    cuts = [(match.start(), match.end()) for match in _SENTENCE_END.finditer(text)]
    starts, ends = [0, *(end for _, end in cuts)], [*(start for start, _ in cuts), len(text)]
    return [(a, b) for a, b in zip(starts, ends, strict=True) if WORD.search(text, a, b)]


def sentences_of(text: str) -> list[str]:
    return [text[start:end].strip() for start, end in sentence_spans(text)]


def ends_with_sign(sentence: str, sign: str) -> bool:
    """Whether it ends with the sign, closing quotes and brackets aside."""
    return sentence.rstrip(_CLOSING).endswith(sign)


def lines_of(text: str) -> list[str]:
    """The lines that aren't blank."""
    return [line for line in text.splitlines() if line.strip()]


def paragraphs_of(text: str) -> list[str]:
    paragraphs: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.strip():
            paragraphs[-1].append(line)
        elif paragraphs[-1]:
            paragraphs.append([])
    return ["\n".join(lines) for lines in paragraphs if lines]


def sentence(rng: random.Random) -> str:
    words = (rng.choice(ADJECTIVES), rng.choice(NOUNS), rng.choice(VERBS), rng.choice(ADJECTIVES), rng.choice(NOUNS))
    return f"The {words[0]} {words[1]} {words[2]} a {words[3]} {words[4]}."


def item(rng: random.Random) -> str:
    """A few words for one entry of a list."""
    return f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)} {rng.choice(LINKS)} {rng.choice(NOUNS)}"


def draft(rng: random.Random) -> str:
    """A plain text of two or three paragraphs: no digits, no marks, no sign but full stops."""
    return "\n\n".join(" ".join(sentence(rng) for _ in range(rng.randint(1, 3))) for _ in range(rng.randint(2, 3)))


def join_paragraphs(paragraphs: Sequence[str]) -> str:
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph.strip())


def pick(rng: random.Random, wanted: Callable[[str], bool], words: Sequence[str] = WORDS) -> str:
    """A word that is wanted; any where none is."""
    return rng.choice([word for word in words if wanted(word)] or words)


def put(text: str, index: int, word: str) -> str:
    """With another word at a place among the words; a capital stays one."""
    matches = list(WORD.finditer(text))
    start, end = matches[index].span()
    return text[:start] + (word.capitalize() if text[start].isupper() and word.islower() else word) + text[end:]


def insert(text: str, index: int, words: str) -> str:
    """With words after the one at a place among the words."""
    matches = list(WORD.finditer(text))
    if not matches:
        return f"{text} {words}".strip()
    end = matches[index].end()
    return f"{text[:end]} {words}{text[end:]}"


def insert_inside(text: str, words: str, rng: random.Random) -> str:
    """With words between the first and the last one."""
    return insert(text, rng.randint(0, max(0, len(words_of(text)) - 2)), words)


def replace_words(text: str, unwanted: Callable[[str], bool], rng: random.Random, wanted: Callable[[str], bool]) -> str:
    """With each unwanted word, casefolded, replaced by a wanted one."""

    def other(match: re.Match[str]) -> str:
        if not unwanted(match[0].casefold()):
            return match[0]
        word = pick(rng, lambda word: wanted(word) and not unwanted(word))
        return word.capitalize() if match[0][0].isupper() else word

    return WORD.sub(other, text)


def replace_one(text: str, unwanted: Callable[[str], bool], rng: random.Random) -> str:
    """With one of the unwanted words, casefolded, replaced by another."""
    places = [index for index, word in enumerate(words_of(text)) if unwanted(word)]
    return put(text, rng.choice(places), pick(rng, lambda word: not unwanted(word))) if places else text


def remove_word(text: str, index: int) -> str:
    """Without the word at a place among the words, and the space before it."""
    start, end = list(WORD.finditer(text))[index].span()
    return text[: start - 1] + text[end:] if text[start - 1 : start] == " " else text[:start] + text[end:].lstrip(" ")


def add_word(text: str, rng: random.Random) -> str:
    return insert_inside(text, rng.choice(WORDS), rng)


def drop_word(text: str, rng: random.Random) -> str:
    count = len(words_of(text))
    return remove_word(text, rng.randint(min(1, count - 1), max(0, count - 2))) if count else text


def map_sentences(text: str, change: Callable[[int, str], str]) -> str:
    """With each sentence changed, by its place and its text; what stands between them stays."""
    for place, (start, end) in reversed(list(enumerate(sentence_spans(text)))):
        text = text[:start] + change(place, text[start:end]) + text[end:]
    return text


def add_sentence(text: str, rng: random.Random) -> str:
    return f"{text.rstrip()} {sentence(rng)}" if ends_with_sign(text, (".")) else f"{text.rstrip()}\n{sentence(rng)}"


def drop_sentence(text: str, rng: random.Random) -> str:
    spans = sentence_spans(text)
    if not spans:
        return text
    start, end = rng.choice(spans[1:-1] or spans[-1:])
    return (text[:start] + text[end:].lstrip(" ")).strip()


def insert_block(text: str, block: str, rng: random.Random) -> str:
    """With a paragraph more, after the first one or later."""
    paragraphs = paragraphs_of(text)
    paragraphs.insert(rng.randint(1, max(1, len(paragraphs) - 1)), block)
    return join_paragraphs(paragraphs)


def strip_signs(text: str, unwanted: str) -> str:
    return "".join(sign for sign in text if sign not in unwanted)
