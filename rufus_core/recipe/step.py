"""A step of a recipe's graph: one artifact to make."""

from __future__ import annotations

from dataclasses import dataclass, field

from rufus_core.lineage.record import Record
from rufus_core.settings import ComputeSettings, Recipe
from rufus_core.types import Json, content_id

# Declared versions of the implementations: raised by hand when a step's code would give another result.
VERSIONS = {
    "base": "3",
    "problems": "3",
    "screen": "3",
    "reward_model": "6",
    "training": "3",
    "checkpoint": "1",
    "scores": "3",
}


@dataclass(frozen=True, slots=True)
class Step:
    """One artifact to make. `config` is its identity; `inputs` are names of earlier steps by role.

    `external` are the user's data files by role, as paths; their contents enter `config` by hash. With `artifact`
    nothing is made: it is in the store already, whatever it was made from. With `force` it is made also where it is
    intact. `compute` is placement, and not in its identity; None: a CPU is enough.
    """

    name: str
    kind: str
    title: str
    config: dict[str, Json]
    stage: str | None = None
    inputs: dict[str, str] = field(default_factory=dict)
    external: dict[str, str] = field(default_factory=dict)
    seed: int = 0
    artifact: Record | None = None
    force: bool = False
    compute: ComputeSettings | None = None

    @property
    def version(self) -> str:
        return VERSIONS[self.kind]


def seed_of(recipe: Recipe, *parts: str) -> int:
    """The seed of a part of the recipe."""
    return int(content_id(recipe.seed, *parts)[:8], 16)
