"""A profile of two stages that a worker runs in seconds, the second on questions of the user's."""

from __future__ import annotations

import json
from pathlib import Path

from flows.schedule import num_cores
from rufus_core.settings import EvaluationSettings
from tests.jobs.miniature import small_recipe

MADE_FIRST = ("base", "data/sft", "stages/sft/train")  # before the questions are read
TITLES = {
    "base": "base policy",
    "data/sft": "Supervised Fine-Tuning: data",
    "stages/sft/train": "Supervised Fine-Tuning: train",
    "stages/sft/checkpoint": "Supervised Fine-Tuning: select",
    "data/reasoning_rl": "Reasoning RL: data",
    "stages/reasoning_rl/train": "Reasoning RL: train",
    "stages/reasoning_rl/checkpoint": "Reasoning RL: select",
    "scores/base": "the base policy: scores",
    "scores/sft": "Supervised Fine-Tuning: scores",
    "scores/reasoning_rl": "Reasoning RL: scores",
}


def write_profile(file: Path) -> None:
    """Each training takes all cores, so that steps run one after the other, the most urgent first."""
    recipe = small_recipe(
        f"execution.threads={num_cores()}",
        # Random weights earn no reward: the entropy bonus gives every step a gradient, and failed groups are kept.
        "stages.reasoning_rl.algorithm={entropy_coef: 0.01, truncation_masking: false}",
        "stages.reasoning_rl.dynamic_sampling.low_exclusive=-1.0",
    )
    measured = {"evaluation": EvaluationSettings(targets=("reasoning",))}
    stages = {name: recipe.stages[name].model_copy(update=measured) for name in ("sft", "reasoning_rl")}
    held = recipe.model_copy(update={"stages": stages, "benchmarks": {"reasoning": recipe.benchmarks["reasoning"]}})
    told = held.model_dump(mode="json", include={"base", "stages", "benchmarks", "execution"})
    lines = [f"{key}: !replace {json.dumps(value)}\n" for key, value in told.items()]
    file.write_text("".join([*lines, "decontamination: null\n"]))


def write_questions(file: Path, broken_line: int | None = None) -> None:
    sums = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a in range(6) for b in range(5)]
    lines = [json.dumps(row) for row in sums]
    if broken_line is not None:
        lines[broken_line - 1] = lines[broken_line - 1].removesuffix("}")
    file.write_text("".join(f"{line}\n" for line in lines))
