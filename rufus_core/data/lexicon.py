"""Small word lists by which the deterministic judge tells topic and tone. All words are lower case."""

from __future__ import annotations

TOPIC_WORDS: dict[str, tuple[str, ...]] = {
    "animals": ("cat", "dog", "horse", "bird", "cow"),
    "food": ("soup", "cake", "rice", "bean", "cheese"),
    "music": ("song", "piano", "band", "tune", "violin"),
    "sea": ("wave", "ship", "shore", "sail", "fish"),
    "sport": ("ball", "goal", "team", "race", "game"),
    "weather": ("rain", "snow", "wind", "cloud", "storm"),
}

POLITE_WORDS = ("please", "thanks", "kindly", "welcome", "gladly")
RUDE_WORDS = ("shut", "silly", "dumb", "lazy", "boring")
