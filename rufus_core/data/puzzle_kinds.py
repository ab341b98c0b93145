"""Which of reasoning-gym's datasets can be used, and why the others can't (RRL-D1)."""

from __future__ import annotations

# Their checkers hand the answer to sympy's parser, which runs it as Python.
RUNS_ANSWER = frozenset({"intermediate_integration", "polynomial_multiplication", "simple_integration"})

_NO_REFERENCE = "it has no reference answer to hold its checker against"
_TUPLES = "its checker refuses its own answer once the entry went through JSON"
REFUSED: dict[str, str] = {
    **dict.fromkeys(RUNS_ANSWER, "its checker runs the answer as code"),
    **dict.fromkeys(("boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"), _NO_REFERENCE),
    **dict.fromkeys(("arc_agi", "rearc"), _TUPLES),
    "codeio": "its generator runs programs as code",
    "composite": "it is a mixture of others",
}


def category_of(dataset: str) -> str | None:
    """The category in which reasoning-gym keeps a dataset, for example `games`; None for an unknown one."""
    from reasoning_gym.factory import DATASETS  # slow to import

    known = DATASETS.get(dataset)
    return known[0].__module__.split(".")[1] if known else None  # reasoning_gym.<category>.<module>
