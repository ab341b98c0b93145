"""Training jobs whose ranks Megatron-core cuts, on Ray: one is killed and ends as if undisturbed, one has SGLang."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rufus_core.jobs.failure import told_failure
from rufus_core.jobs.job import Job, Outcome
from rufus_core.lineage.names import step_folder
from rufus_core.rollout.stored import read_rollouts, step_file
from rufus_core.training.ranks import ALONE, Ranks
from rufus_core.training.reporter import CURVES, reported
from tests.jobs import lives
from tests.jobs.lives import Life, files_of, job_in, live_and_be_killed, none_lives
from tests.jobs.miniature import Runner, short_chain
from tests.jobs.test_resume import MADE_ONCE, RL
from tests.rollout.sglang.installed import PYTHON, cpu_settings
from tests.support import cpu_megatron
from tests.training.ranked import in_ranks
from tests.warm import started

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("mbridge") is None, reason="Megatron-core isn't installed: make install-megatron"
    ),
]
ROOT = Path(__file__).parents[2]
RUN = {"steps": 12, "checkpoint_interval_steps": 6}
EP2 = {"trainer": "megatron", "data_parallel": 2, "layout": {"expert_parallel": 2}}


def _carry_out(document: Path) -> None:
    os.environ["PYTHONPATH"] = f"{ROOT / 'tests/support/megatron_cpu'}:{ROOT}"
    lives.carry_out(document)


def _train_rank(ranks: Ranks, job: Job) -> Outcome:
    cpu_megatron.install()
    return lives.train(ranks, job)


def test_a_job_of_megatron_goes_on_bit_for_bit_and_learns_as_torch_does(home: Path, tmp_path: Path) -> None:
    runner = Runner(home, short_chain(*MADE_ONCE, *RL, f"stages.rlhf.run={json.dumps(RUN)}"))
    plain = runner.document("stages/rlhf/train")  # its first step has no signal: a state may hold no moments yet
    document = plain.model_copy(update={"placement": {**plain.placement, **EP2}})
    live_and_be_killed(document, tmp_path / "killed", _carry_out)
    assert Life.begin(document, tmp_path / "last", _carry_out).end() == 0
    record = runner.store.find("stages/rlhf/train", document.fingerprint)
    assert record is not None
    assert record.placement["trainer"] == "megatron"
    published = runner.store.path(record)

    undisturbed = job_in(tmp_path / "megatron", document)
    outcome, _ = in_ranks(2, tmp_path, _train_rank, undisturbed)
    assert outcome.metrics == record.metrics
    assert {name: (published / name).read_bytes() for name in record.files} == files_of(undisturbed.output)

    by_torch = job_in(tmp_path / "torch", plain)
    process = started(lives.train, ALONE, by_torch)
    process.join()
    assert process.exitcode == 0
    first = {
        name: load_file(job / step_folder(6) / "model.safetensors")
        for name, job in (("megatron", published), ("torch", by_torch.output))
    }
    assert first["megatron"].keys() == first["torch"].keys()
    for name, weight in first["torch"].items():
        assert torch.allclose(first["megatron"][name], weight, atol=1e-4), name


@pytest.mark.skipif(not PYTHON.exists(), reason="SGLang isn't installed: make install-sglang")
def test_ray_places_megatron_and_sglang_for_a_job_of_both(home: Path, tmp_path: Path) -> None:
    """As the profile h200 runs a stage, at toy size: ranks and an engine that they share, each at its place."""
    run = json.dumps({"steps": 3, "checkpoint_interval_steps": 3})
    signal = "stages.rlhf.algorithm.truncation_masking=false"  # random answers seldom end by themselves
    runner = Runner(home, short_chain(*MADE_ONCE, *RL, f"stages.rlhf.run={run}", signal))
    plain = runner.document("stages/rlhf/train")
    engine = {"engine": "sglang", "sglang": cpu_settings().model_dump(mode="json")}
    document = plain.model_copy(update={"placement": {**plain.placement, **EP2, **engine}})
    life = Life.begin(document, tmp_path / "life", _carry_out)
    family = life.family()
    assert [process for process in family if "sglang.launch_server" in " ".join(process.cmdline())]
    assert life.end() == 0, told_failure(life.folder)
    assert none_lives(family)

    record = runner.store.find("stages/rlhf/train", document.fingerprint)
    assert record is not None
    assert (record.placement["trainer"], record.placement["engine"]) == ("megatron", "sglang")
    output = runner.store.path(record)
    rows = list(reported(output / CURVES))
    assert [step for step, _ in rows] == [1, 2, 3]
    assert all(0 < metrics["logprob_gap"] < 1e-3 for _, metrics in rows)  # both in fp32
    versions = [{each.weight_version for each in read_rollouts(step_file(output, step))} for step in (1, 2, 3)]
    assert versions == [{"0"}, {"1"}, {"2"}]
