"""Judges: who answers one question about one text. A judge's identity is part of every number made with it."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence

from rufus_core.data.lexicon import POLITE_WORDS, RUDE_WORDS, TOPIC_WORDS
from rufus_core.errors import ConfigError, DataError
from rufus_core.ports.judging import Judge
from rufus_core.rewards.chat_client import ChatClient, sampled
from rufus_core.rewards.openai_judge import OpenAIJudge, prompted
from rufus_core.rewards.usage import UsageMeter
from rufus_core.types import Json, Message

_WORD = re.compile(r"[^\W\d_]+")
_ITEM_END = re.compile(r";|\n|\sand\s|,(?!\d{3}(?!\d))", re.IGNORECASE)  # the comma of 1,000 ends nothing
_ARTICLE = re.compile(r"^(the|a|an)\s+")


BUILTIN = "builtin:"
LEXICAL = f"{BUILTIN}lexical"
JUDGES = "judges"  # in a step's configuration: identities by the name that the recipe gives
THRESHOLD = 0.5  # from this score on a criterion holds


class LexicalJudge:
    """Deterministic judge of the CPU profile: it compares words and knows no meaning.

    Kinds of criteria: `answer` (`reference`; items of a list are separated by commas and earn partial credit), `topic`
    (`topic`, a key of TOPIC_WORDS) and `polite`.
    """

    identity = LEXICAL

    def score(self, criterion: Mapping[str, Json], text: str) -> float:
        """Raises ConfigError for a kind that it can't answer, DataError for one without its fields: never a 0."""
        kind = criterion.get("kind")
        if kind not in _CRITERIA:
            raise ConfigError(
                f"the lexical judge can't answer criterion {kind!r}", hint=f"known: {', '.join(_CRITERIA)}"
            )
        return _CRITERIA[kind](criterion, text)

    def holds(self, rubric: Mapping[str, Json], conversation: Sequence[Message], response: str) -> bool:  # noqa: ARG002
        """Of the response alone: words that it is compared with stand in the rubric. Raises as `score` does."""
        return self.score(rubric, response) >= THRESHOLD

    def close(self) -> None:
        """Nothing is held."""


def _answer(criterion: Mapping[str, Json], text: str) -> float:
    """Share of items right, of the longer of the two lists: naming everything earns little."""
    wanted, given = _items(str(_field(criterion, "reference"))), _items(text)
    return len(wanted & given) / max(len(wanted), len(given), 1)


def _items(text: str) -> set[str]:
    return {normal for part in _ITEM_END.split(text) if (normal := _normalise(part))}


def _normalise(text: str) -> str:
    text = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    text = _ARTICLE.sub("", text.strip(" .!?\"'`$"))
    return re.sub(r"(?<=\d),(?=\d)", "", text)


def _topic(criterion: Mapping[str, Json], text: str) -> float:
    topic = _field(criterion, "topic")
    if not isinstance(topic, str) or topic not in TOPIC_WORDS:
        raise DataError(f"unknown topic {topic!r}", hint=f"known: {', '.join(TOPIC_WORDS)}")
    return float(not _words(text).isdisjoint(TOPIC_WORDS[topic]))


def _polite(_criterion: Mapping[str, Json], text: str) -> float:
    words = _words(text)
    return float(not words.isdisjoint(POLITE_WORDS) and words.isdisjoint(RUDE_WORDS))


def _words(text: str) -> set[str]:
    """Lower-case words; a plural in -s counts as its singular too."""
    words = set(_WORD.findall(text.casefold()))
    return words | {word.removesuffix("s") for word in words}


def _field(criterion: Mapping[str, Json], name: str) -> Json:
    if name not in criterion:
        raise DataError(f"criterion {criterion.get('kind')!r} lacks {name!r}")
    return criterion[name]


_CRITERIA: dict[str, Callable[[Mapping[str, Json], str], float]] = {
    "answer": _answer,
    "topic": _topic,
    "polite": _polite,
}

BUILTIN_JUDGES: dict[str, Callable[[], Judge]] = {LEXICAL: LexicalJudge}


def make_judge(name: str, endpoint: str | None = None, meter: UsageMeter | None = None) -> Judge:
    """A judge by the name a recipe gives it: `builtin:NAME`, or a model id served at an OpenAI-compatible endpoint.

    Args:
        endpoint: base URL ending in `/v1`. By default RUFUS_JUDGE_URL; the key, if any, is RUFUS_JUDGE_API_KEY.
        meter: where what a model is asked is counted.

    Raises:
        ConfigError: an unknown builtin judge, or a model without an endpoint.
    """
    if name in BUILTIN_JUDGES:
        return BUILTIN_JUDGES[name]()
    if name.startswith(BUILTIN):
        raise ConfigError(f"unknown judge {name!r}", hint=f"known: {', '.join(BUILTIN_JUDGES)}")
    url = endpoint or os.environ.get("RUFUS_JUDGE_URL")
    if not url:
        raise ConfigError(f"judge {name!r} needs an endpoint", hint="set RUFUS_JUDGE_URL to an OpenAI-compatible /v1")
    return OpenAIJudge(ChatClient(name, url, api_key=os.environ.get("RUFUS_JUDGE_API_KEY"), meter=meter))


def judge_identity(name: str) -> str:
    """The identity of the judge that `make_judge` makes by this name; needs no endpoint."""
    return name if name.startswith(BUILTIN) else prompted(sampled(name))
