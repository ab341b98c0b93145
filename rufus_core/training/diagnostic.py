"""The reward on prompts that are never trained on, every few steps (RM-T2, Figure 8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rufus_core.types import Problem, Trajectory


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """Prompts that the policy answers after every `interval_steps`-th step, once each."""

    problems: Sequence[Problem]
    interval_steps: int

    def due(self, step: int) -> bool:
        return step % self.interval_steps == 0


def diagnostic_metrics(answers: Sequence[Trajectory]) -> dict[str, float]:
    """The mean raw score and length of what was scored, and how many answers have no score."""
    usable = [answer for answer in answers if answer.usable]
    metrics = {"diagnostic/unscored": float(len(answers) - len(usable))}
    if usable:
        metrics["diagnostic/reward"] = float(np.mean([answer.verdict.score for answer in usable]))
        lengths = [answer.episode.num_final_tokens for answer in usable]
        metrics["diagnostic/final_response_tokens"] = float(np.mean(lengths))
    return metrics
