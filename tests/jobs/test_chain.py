"""A miniature recipe through its jobs: base, data, SFT, a reward model, RL, selection."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rufus_core.data.chat import load_chat
from rufus_core.data.generators.chat import preference_pairs
from rufus_core.data.preferences import PreferencePair
from rufus_core.errors import ConfigError, DataError
from rufus_core.jobs.run import run_job
from rufus_core.lineage import Record, Store
from rufus_core.recipe.graph import build_graph
from rufus_core.rollout.stored import read_rollouts, step_file, steps_in
from rufus_core.training.reporter import CURVES, reported
from tests.jobs.miniature import Runner, short_chain

STEPS = (
    "base",
    "data/sft",
    "data/rlhf",
    "stages/sft/train",
    "stages/sft/checkpoint",
    "stages/rlhf/reward_model",
    "stages/rlhf/train",
    "stages/rlhf/checkpoint",
)


def _weights(folder: Path) -> Mapping[str, torch.Tensor]:
    weights: Mapping[str, torch.Tensor] = load_file(folder / "model.safetensors")
    return weights


def _equal(one: Path, other: Path) -> bool:
    ours, theirs = _weights(one), _weights(other)
    assert ours.keys() == theirs.keys()
    return all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("stage", ["sft", "rlhf"])
def test_a_stages_weights_differ_from_its_parents(chain: Runner, stage: str) -> None:
    parent = chain.steps[f"stages/{stage}/train"].inputs["parent"]
    assert parent == {"sft": "base", "rlhf": "stages/sft/checkpoint"}[stage]
    assert not _equal(chain.path(parent), chain.path(f"stages/{stage}/checkpoint"))


@pytest.mark.parametrize("stage", ["sft", "rlhf"])
def test_the_last_candidate_is_carried_forward(chain: Runner, stage: str) -> None:
    training = chain.path(f"stages/{stage}/train") / "checkpoints"
    assert sorted(folder.name for folder in training.iterdir()) == ["step-1", "step-2"]
    record = chain.run(f"stages/{stage}/checkpoint")
    assert record.step == 2
    assert record.decision is not None
    assert (record.decision.rule, record.decision.chosen_step) == ("last", 2)
    assert [candidate.step for candidate in record.decision.candidates] == [1, 2]
    assert _equal(chain.path(f"stages/{stage}/checkpoint"), training / "step-2")
    assert not _equal(training / "step-1", training / "step-2")


def test_a_checkpoint_is_a_policy_of_its_own(chain: Runner) -> None:
    chat = load_chat(chain.path("stages/rlhf/checkpoint"))
    assert chat.stop_token_ids == load_chat(chain.path("base")).stop_token_ids


def test_the_record_names_every_input_by_digest(chain: Runner) -> None:
    for name in STEPS:
        record = chain.run(name)
        assert record.seed == chain.steps[name].seed
        assert record.config == chain.steps[name].config
        assert record.inputs.keys() == chain.steps[name].inputs.keys()
        for role, earlier in chain.steps[name].inputs.items():
            made = chain.run(earlier)
            given = record.inputs[role]
            assert (given.name, given.digest, given.record_id) == (earlier, made.digest, made.id)


def test_the_same_jobs_give_the_same_digests(chain: Runner, tmp_path: Path) -> None:
    again = Runner(tmp_path, short_chain())
    torch.rand(7)  # nothing may hang on the process's own generator
    assert {name: again.run(name).digest for name in STEPS} == {name: chain.run(name).digest for name in STEPS}


def test_another_seed_gives_another_policy(chain: Runner, tmp_path: Path) -> None:
    assert Runner(tmp_path, short_chain("seed=1")).run("base").digest != chain.run("base").digest


def test_what_a_training_leaves_to_read(chain: Runner) -> None:
    folder = chain.path("stages/rlhf/train")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert lines[-1]["total"] == 2
    record = chain.run("stages/rlhf/train")
    assert lines[-1]["metrics"].items() <= record.metrics.items()
    assert all(name.startswith("total/") for name in record.metrics.keys() - lines[-1]["metrics"].keys())
    assert not any(key.endswith("seconds") or key == "time" for line in lines for key in (*line, *line["metrics"]))
    rollouts = [row for step in steps_in(folder) for row in read_rollouts(step_file(folder, step))]
    assert Counter(row.step for row in rollouts) == {1: 8, 2: 8}  # two prompts of four samples
    assert all(row.messages[0].role == "user" for row in rollouts)
    assert {"checkpoints", "curves.png", "metrics.jsonl", "rollouts"} == {path.split("/")[0] for path in record.files}


def test_a_stage_replays_the_routing_of_its_rollouts_SLM_06(home: Path, chain: Runner, tmp_path: Path) -> None:
    """Engine and trainer hold the same weights here, so there is next to nothing to mend."""
    replayed = Runner(home, short_chain("stages.rlhf.precision.router_replay=true"))
    record = run_job(replayed.document("stages/rlhf/train", progress=tmp_path / "progress.jsonl"))
    folders = chain.path("stages/rlhf/train"), replayed.store.path(record)
    free, forced = ([metrics for _, metrics in reported(folder / CURVES)] for folder in folders)
    assert len(free) == len(forced) == 2
    for one, other in zip(free, forced, strict=True):
        assert other.keys() - one.keys() == {"routing_agreement"}
        assert 0.99 < other["routing_agreement"] <= 1
        assert max(one["logprob_gap"], other["logprob_gap"]) < 1e-5
    unrecorded, recorded = (list(read_rollouts(step_file(folder, 2))) for folder in folders)
    assert all(row.routed_experts is None for row in unrecorded)
    for row in recorded:  # two layers, two of four experts, and the last token was never put through the policy
        assert row.routed_experts is not None
        assert row.routed_experts.shape == (len(row.token_ids) - 1, 2, 2)
        assert 0 <= row.routed_experts.min() <= row.routed_experts.max() == 3


def test_progress_is_reported_while_a_job_runs(chain: Runner) -> None:
    document = chain.document("stages/rlhf/train")
    chain.run("stages/rlhf/train")
    lines = [json.loads(line) for line in document.progress.read_text().splitlines()]
    assert [(line["step"], line["total"]) for line in lines if "step" in line] == [(1, 2), (2, 2)]
    assert "rollout_seconds" in lines[0]["metrics"]


def test_the_reward_model_is_measured_on_held_out_pairs(chain: Runner) -> None:
    record: Record = chain.run("stages/rlhf/reward_model")
    assert record.metrics["heldout_pairs"] > 0
    table = json.loads((chain.path("stages/rlhf/reward_model") / "preference_analysis.json").read_text())
    assert table["num_candidates"] == record.metrics["heldout_pairs"]


def test_the_reward_model_sees_no_invalid_pair_RM_D1(
    chain: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def partly_equal(seed: int, count: int) -> Iterator[PreferencePair]:
        for number, pair in enumerate(preference_pairs(seed, count)):
            yield pair if number % 4 else pair.model_copy(update={"rejected": pair.chosen})

    document = chain.document("stages/rlhf/reward_model", store=tmp_path / "store")
    monkeypatch.setattr("rufus_core.jobs.reward_model.preference_pairs", partly_equal)
    record = run_job(document)
    whole = chain.run("stages/rlhf/reward_model").metrics
    assert (record.metrics["invalid_pairs"], whole["invalid_pairs"]) == (10, 0)
    lost = sum(whole[name] - record.metrics[name] for name in ("train_pairs", "heldout_pairs"))
    assert 0 < lost <= 10  # some were of the validation split
    table = json.loads((Store(tmp_path / "store").path(record) / "preference_analysis.json").read_text())
    assert table["num_candidates"] == table["num_valid"]


def test_the_prompts_of_a_file_are_a_diagnostic_that_changes_no_weight_RM_T2(
    home: Path, chain: Runner, tmp_path: Path
) -> None:
    file = tmp_path / "arena.jsonl"
    file.write_text("".join(json.dumps({"uid": str(i), "prompt": f"Tell me of {i}."}) + "\n" for i in range(3)))
    given = f"stages.rlhf.diagnostic={{path: {file}, num_prompts: 2}}"
    watched = Runner(home, short_chain(given, "stages.rlhf.run.eval_interval_steps=2"))
    record = watched.run("stages/rlhf/train")
    lines = (watched.path("stages/rlhf/train") / "metrics.jsonl").read_text().splitlines()
    first, second = (json.loads(line)["metrics"] for line in lines)
    assert not any(name.startswith("diagnostic/") for name in first)
    assert math.isfinite(second["diagnostic/reward"])
    assert second["diagnostic/unscored"] == 0
    assert record.metrics["diagnostic/reward"] == second["diagnostic/reward"]
    assert (record.external["diagnostic"].path, record.external["diagnostic"].size) == (str(file), file.stat().st_size)
    plain, seen = (runner.path("stages/rlhf/train") / "checkpoints" / "step-2" for runner in (chain, watched))
    assert _equal(plain, seen)
    assert chain.steps["stages/rlhf/train"].config.keys() == {"kind", "settings"}


def test_a_diagnostic_needs_a_file_and_an_interval_RM_T2(tmp_path: Path) -> None:
    file = tmp_path / "arena.jsonl"
    file.write_text('{"prompt": "Hello."}\n')
    unset = "stages.rlhf.run.eval_interval_steps=null"
    with pytest.raises(ConfigError, match="needs an interval") as caught:
        build_graph(short_chain(f"stages.rlhf.diagnostic={{path: {file}}}", unset))
    assert caught.value.hint == "--set stages.rlhf.run.eval_interval_steps=5"
    with pytest.raises(DataError) as missing:
        build_graph(short_chain(f"stages.rlhf.diagnostic={{path: {tmp_path / 'none.jsonl'}}}"))
    assert (missing.value.where or "").startswith("stages.rlhf.diagnostic")
