"""Reasoning RL on a real pretrained model: the profile `smol` made small, through its jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from rufus_core.lineage.digest import hash_file
from rufus_core.recipe.load import load_recipe
from rufus_core.rollout.policy import load_policy
from tests.jobs.miniature import Runner
from tests.rollout.smollm2 import MODEL, needs_smollm2

pytestmark = [needs_smollm2, pytest.mark.slow]

SMALL = (
    "stages.reasoning_rl.problems={num_heldout: 2}",
    "stages.reasoning_rl.problems.sources.sums.count=4",
    "stages.reasoning_rl.rollout={prompts_per_rollout: 2, samples_per_prompt: 4, response_budget_tokens: 12}",
    "stages.reasoning_rl.run={steps: 1, checkpoint_interval_steps: 1}",
    "benchmarks.sums={num_problems: 2, samples_per_problem: 1}",
    "execution.threads=1",
)


def test_the_weights_are_converted_and_trained(tmp_path: Path) -> None:
    runner = Runner(tmp_path, load_recipe(profile="smol", overrides=SMALL))
    base = runner.run("base")
    assert base.external["gguf"].sha256 == hash_file(MODEL).sha256
    assert base.metrics["parameters"] == 134_515_008
    scores = runner.run("scores/reasoning_rl")
    assert list(scores.files) == ["sums.json"]
    before, after = (load_policy(runner.path(step)).model for step in ("base", "stages/reasoning_rl/checkpoint"))
    assert any(not a.equal(b) for a, b in zip(before.parameters(), after.parameters(), strict=True))
