"""What the generators write is pinned: a changed generator must not reuse artifacts that the old one made."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path

from rufus_core.data.catalogue import GENERATORS, generator
from rufus_core.data.generators.chat import preference_pairs
from rufus_core.recipe.step import VERSIONS

PINS = Path(__file__).with_name("generator_outputs.json")
SEED, COUNT = 11, 50
KINDS = ("base", "problems", "reward_model")  # made from what generators write; of the base its vocabulary
PAIRS = "preference_pairs"  # only the reward model is made from them
PIN = "python -m tests.data.test_generator_outputs"


def written(name: str) -> Iterator[str]:
    """Problems, each with a right and a wrong demonstration."""
    for number, problem in enumerate(generator(name).problems(SEED, COUNT, {})):
        yield problem.model_dump_json()
        for wrong in (False, True):
            answered = generator(name).demonstrate(problem, random.Random(number), wrong)
            yield from (message.model_dump_json() for message in answered)


def outputs() -> dict[str, str]:
    """A hash of what each generator writes."""
    texts = {name: written(name) for name in GENERATORS}
    texts[PAIRS] = (pair.model_dump_json() for pair in preference_pairs(SEED, COUNT))
    return {name: hashlib.sha256("\n".join(lines).encode()).hexdigest() for name, lines in texts.items()}


def pinned() -> tuple[dict[str, str], dict[str, str]]:
    """Versions, and the outputs that they stand for."""
    pins = json.loads(PINS.read_text())
    return pins["versions"], pins["outputs"]


def versions() -> dict[str, str]:
    return {kind: VERSIONS[kind] for kind in KINDS}


def stale(old_versions: dict[str, str], old: dict[str, str], new: dict[str, str]) -> list[str]:
    """Kinds that are made from changed outputs and still have their old version.

    A new generator of an open vocabulary changes nothing that was made before it.
    """
    opened = {name for name in new.keys() - old.keys() if name in GENERATORS and not GENERATORS[name].closed_vocabulary}
    changed = {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)} - opened
    kinds = KINDS if changed - {PAIRS} else ("reward_model",) if changed else ()
    return [kind for kind in kinds if old_versions[kind] == VERSIONS[kind]]


def test_a_changed_generator_has_new_versions() -> None:
    old_versions, old = pinned()
    new = outputs()
    assert stale(old_versions, old, new) == [], "raise their VERSIONS in recipe/step.py"
    assert (old_versions, old) == (versions(), new), f"pin what the new versions stand for: `{PIN}`"


def test_what_is_stale_depends_on_what_changed() -> None:
    now, same = versions(), outputs()
    assert stale(now, same, same) == []
    assert stale(now, same, same | {PAIRS: "other"}) == ["reward_model"]
    assert stale(now, same, same | {"chat": "other"}) == list(KINDS)
    assert stale(now, {name: same[name] for name in same if name != "constraints"}, same) == []
    assert stale(now, {name: same[name] for name in same if name != "chat"}, same) == list(KINDS)
    assert stale(now | {"problems": "0"}, same, same | {"chat": "other"}) == ["base", "reward_model"]


def pin() -> None:
    """Write the file of pins anew. Refused where an output changed and a version didn't."""
    old_versions, old = pinned()
    new = outputs()
    if forgotten := stale(old_versions, old, new):
        raise SystemExit(f"raise VERSIONS of {', '.join(forgotten)} in recipe/step.py")
    PINS.write_text(json.dumps({"versions": versions(), "outputs": new}, indent=1) + "\n")


if __name__ == "__main__":
    pin()
