"""A stage whose judge is a model behind an endpoint: what it was asked is shown, and stays out of the artifact."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rufus_core.jobs.run import run_job
from rufus_core.settings import EvaluationSettings, Recipe
from rufus_core.training.reporter import CURVES, reported
from tests.jobs.miniature import Runner, small_recipe
from tests.rewards.endpoint import Endpoint, failed, in_turn, said


def judged_chain() -> Recipe:
    """SFT and, right after it, IF RL with a judge that is no builtin one."""
    recipe = small_recipe("stages.if_rl.models={judge: qwen}", "stages.if_rl.rollout.response_budget_tokens=64")
    if_rl = recipe.stages["if_rl"]
    alone = {"parent": "sft", "evaluation": EvaluationSettings(targets=("instructions",))}
    stages = {"sft": recipe.stages["sft"], "if_rl": if_rl.model_copy(update=alone)}
    return recipe.model_copy(update={"stages": stages})


@pytest.mark.slow
def test_what_a_judge_was_asked_is_reported_and_no_part_of_the_artifact(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Runner(home, judged_chain())
    for earlier in made.steps["stages/if_rl/train"].inputs.values():
        made.run(earlier)
    monkeypatch.setenv("RUFUS_JUDGE_PRICES", "1,2")
    verdict = said('{"score": 1, "verdict": "yes"}')
    digests = []
    for num_failures in (0, 1):  # the second run has a worse network than the first
        failures = [failed(500)] * num_failures
        shutil.copytree(home / "store", tmp_path / str(num_failures) / "store")
        runner = Runner(tmp_path / str(num_failures), judged_chain())
        progress = tmp_path / f"{num_failures}.jsonl"
        with Endpoint(in_turn([*failures, verdict])) as endpoint:
            monkeypatch.setenv("RUFUS_JUDGE_URL", endpoint.url)
            record = run_job(runner.document("stages/if_rl/train", progress=progress))
        digests.append(record.digest)
        shown = [json.loads(line)["metrics"] for line in progress.read_text().splitlines() if '"step"' in line]

        def total(name: str, shown: list[dict[str, float]] = shown) -> float:
            return sum(metrics.get(f"judge/{name}", 0.0) for metrics in shown)

        assert total("requests") == len(endpoint.requests) > 0
        assert total("retries") == num_failures
        assert total("verdicts") == total("requests") - num_failures
        assert total("cost") == pytest.approx(total("verdicts") * (7 * 1 + 3 * 2) / 1e6)
        kept = [metrics for _, metrics in reported(runner.store.path(record) / CURVES)]
        assert not any(name.startswith("judge/") for metrics in [*kept, record.metrics] for name in metrics)
    assert digests[0] == digests[1]
