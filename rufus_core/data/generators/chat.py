"""Small talk: a person asks about a thing. Replies are good (polite, on topic, short) or bad in one of three ways."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping

from rufus_core.data.generators.sampling import distinct, refuse_unknown
from rufus_core.data.lexicon import POLITE_WORDS, RUDE_WORDS, TOPIC_WORDS
from rufus_core.data.preferences import PreferencePair
from rufus_core.data.words import NAMES, PLACES
from rufus_core.types import Json, Message, Problem

SOURCE = "chat"
TEMPLATES = (
    "Tell {name} from {place} about the {thing}.",
    "{name} from {place} asks: what is the {thing}?",
    "{name} from {place} asks about the {thing}.",
)


def problems(seed: int, count: int, options: Mapping[str, Json]) -> Iterator[Problem]:
    """Some 26,000 distinct problems."""
    refuse_unknown(options)
    return distinct(_draw, seed, count)


def demonstrate(problem: Problem, rng: random.Random, wrong: bool) -> list[Message]:
    """A good reply. Wrong: a rude, off-topic or rambling one."""
    content = bad_reply(problem, rng) if wrong else good_reply(problem, rng)
    return [Message(role="assistant", reasoning="", content=content)]


def preference_pairs(seed: int, count: int, flip_rate: float = 0.05) -> Iterator[PreferencePair]:
    """A good and a bad reply to `count` distinct prompts; a share of `flip_rate` labels is the wrong way round."""
    rng = random.Random(f"pairs {seed}")
    for problem in problems(seed, count, {}):
        chosen, rejected = good_reply(problem, rng), rng.choice(REJECTED_REPLIES)(problem.ground_truth, rng)
        if rng.random() < flip_rate:
            chosen, rejected = rejected, chosen
        yield PreferencePair(problem_id=problem.id, prompt=problem.prompt, chosen=chosen, rejected=rejected)


def good_reply(problem: Problem, rng: random.Random) -> str:
    return _good(problem.ground_truth, rng)


def _good(truth: Mapping[str, Json], rng: random.Random) -> str:
    return _about(truth["name"], truth["thing"], truth["topic"], _related(truth, rng), rng)


def _about(name: str, thing: str, topic: str, related: str, rng: random.Random) -> str:
    thanks = rng.choice(POLITE_WORDS).capitalize()
    fact = rng.choice((f"belongs to {topic}", f"goes with the {related}"))
    return f"{thanks}, {name}! The {thing} {fact}."


def bad_reply(problem: Problem, rng: random.Random) -> str:
    return rng.choice(BAD_REPLIES)(problem.ground_truth, rng)


def _rude(truth: Mapping[str, Json], rng: random.Random) -> str:
    first, second = rng.sample([word for word in RUDE_WORDS if word != "shut"], 2)
    return f"Shut up, {truth['name']}! The {truth['thing']} is {first} and {second}."


def _off_topic(truth: Mapping[str, Json], rng: random.Random) -> str:
    """A good reply about another thing, of the same topic or not: only the question tells it from a good one."""
    topic = rng.choice(sorted(TOPIC_WORDS))
    other, related = rng.sample([word for word in TOPIC_WORDS[topic] if word != truth["thing"]], 2)
    return _about(truth["name"], other, topic, related, rng)


def _rambling(truth: Mapping[str, Json], rng: random.Random) -> str:
    thing, thanks = truth["thing"], rng.choice(POLITE_WORDS).capitalize()
    others = rng.sample([word for word in TOPIC_WORDS[truth["topic"]] if word != thing], 3)
    tail = " ".join(f"The {thing} goes with the {other}." for other in others)
    return f"{thanks}, {truth['name']}! The {thing} belongs to {truth['topic']}. {tail}"


def _torn(truth: Mapping[str, Json], rng: random.Random) -> str:
    """A good reply that lost its beginning, its end or some words between."""
    words = _good(truth, rng).split()
    start = rng.choice((0, rng.randrange(1, len(words))))
    lost = rng.randrange(1, len(words) - 3)
    return " ".join(words[:start] + words[start + lost :])


def _circular(truth: Mapping[str, Json], rng: random.Random) -> str:
    """Says of the thing that it belongs to itself, or goes with itself."""
    return _about(truth["name"], truth["thing"], truth["thing"], truth["thing"], rng)


# Off-topic replies are the hardest to tell, so they come twice as often.
BAD_REPLIES: tuple[Callable[[Mapping[str, Json], random.Random], str], ...] = (
    _rude,
    _off_topic,
    _off_topic,
    _rambling,
)

# No demonstration is torn or circular, but what is rewarded may become so.
REJECTED_REPLIES = (*BAD_REPLIES, _torn, _circular)


def _related(truth: Mapping[str, Json], rng: random.Random) -> str:
    return rng.choice([word for word in TOPIC_WORDS[truth["topic"]] if word != truth["thing"]])


def _draw(rng: random.Random) -> Problem:
    topic = rng.choice(sorted(TOPIC_WORDS))
    thing, name, place = rng.choice(TOPIC_WORDS[topic]), rng.choice(NAMES), rng.choice(PLACES)
    text = rng.choice(TEMPLATES).format(name=name, place=place, thing=thing)
    truth = {"topic": topic, "thing": thing, "name": name}
    return Problem.build("chat", SOURCE, [Message(role="user", content=text)], truth)
