"""What surrounds the reward model (section 10): diagnostic, validity filter and length penalty."""

from __future__ import annotations

import re
from collections import Counter

from rufus_core.data.constraints.text import words_of
from rufus_core.data.preferences import PreferencePair
from rufus_core.rewards.extract import Extraction, extract
from rufus_core.rewards.judges import LexicalJudge
from rufus_core.rewards.timed import timed
from rufus_core.types import Problem, Verdict

MAX_WORDS = 16
MAX_REPEATED_SHARE = 0.2
MIN_TOKENS = 5  # RM-D1
DEGENERATE_REPEATED_SHARE = 0.5  # RM-D1
_NGRAM = 3
_TOKEN = re.compile(r"\w+|[^\w\s]")


@timed
def prefers(problem: Problem, response_text: str | None) -> Verdict:
    """Rules that a reward model never sees (RM-T2): on topic, polite, short and without repetition; all must hold.

    `ground_truth["thing"]` is the word that a reply on topic names; a prompt of a user's has none, and any topic.
    """
    text = extract(response_text, Extraction.TEXT)
    if text is None:
        return Verdict.binary(False, "no answer")
    words = words_of(text)
    thing = problem.ground_truth.get("thing")
    parts = {
        "on_topic": float(thing is None or thing in words),
        "polite": LexicalJudge().score({"kind": "polite"}, text),
        "short": float(len(words) <= MAX_WORDS),
        "fresh": float(repeated_share(text) <= MAX_REPEATED_SHARE),
        "whole": float(not is_degenerate(text)),
    }
    failed = [name for name, held in parts.items() if not held]
    return Verdict.binary(not failed, ", ".join(failed), text, parts)


def repeated_share(text: str) -> float:
    """Share of the text's word trigrams that say again what an earlier one said: in [0, 1), 0 for a short text."""
    words = words_of(text)
    grams = Counter(tuple(words[i : i + _NGRAM]) for i in range(len(words) - _NGRAM + 1))
    return 1 - len(grams) / grams.total() if grams else 0.0


def is_degenerate(text: str) -> bool:
    """Missing, under five words and signs, or mostly repetition (RM-D1)."""
    return len(_TOKEN.findall(text)) < MIN_TOKENS or repeated_share(text) > DEGENERATE_REPEATED_SHARE


def is_valid(pair: PreferencePair) -> bool:
    """Both responses say something, and not the same (RM-D1)."""
    return pair.chosen != pair.rejected and not is_degenerate(pair.chosen) and not is_degenerate(pair.rejected)


def over_length_penalty(score: float, num_tokens: int, threshold: int, maximum: int) -> float:
    """A positive score shrinks linearly from `threshold` tokens on, to 0 at `maximum`; others stay (RM-R2).

    Raises:
        ValueError: `threshold` is not below `maximum`.
    """
    if threshold >= maximum:
        raise ValueError(f"threshold {threshold} must be below maximum {maximum}")
    if score <= 0 or num_tokens <= threshold:
        return score
    return score * max(0.0, 1 - (num_tokens - threshold) / (maximum - threshold))
