"""Text normalisation shared by the deduplication and the decontamination."""

from __future__ import annotations


def words(text: str) -> list[str]:
    """Lowercased words, split at any run of whitespace; punctuation stays attached."""
    return text.lower().split()


def normalised(text: str) -> str:
    """`text` lowercased, with every run of whitespace collapsed to one space."""
    return " ".join(words(text))
