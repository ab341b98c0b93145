"""A training job whose ranks are cut by Megatron-core: killed, bereaved and stopped, it ends as if undisturbed."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rufus_core.errors import JobLost, Preempted, RankLost
from rufus_core.jobs.failure import told_failure
from rufus_core.jobs.job import Job, Outcome
from rufus_core.jobs.run import main
from rufus_core.jobs.training import train_rank
from rufus_core.lineage.names import step_folder
from rufus_core.settings import ExecutionSettings
from rufus_core.training.ranks import Ranks
from tests.jobs.miniature import Runner, short_chain
from tests.jobs.test_ranks import _Life, _none_lives, _ranks_of
from tests.jobs.test_resume import MADE_ONCE, RL
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
    sys.exit(main(document))


def _train_rank(ranks: Ranks, job: Job) -> Outcome:
    cpu_megatron.install()
    return train_rank(job, ranks, threading.Event())


def test_a_job_of_megatron_goes_on_bit_for_bit_and_learns_as_torch_does(home: Path, tmp_path: Path) -> None:
    runner = Runner(home, short_chain(*MADE_ONCE, *RL, f"stages.rlhf.run={json.dumps(RUN)}"))
    plain = runner.document("stages/rlhf/train")  # its first step has no signal: a state may hold no moments yet
    document = plain.model_copy(update={"placement": {**plain.placement, **EP2}})

    def begin(name: str) -> _Life:
        (tmp_path / name).mkdir()
        return _Life.begin(document, tmp_path / name, _carry_out)

    killed = begin("killed")
    family = killed.family()
    assert len(_ranks_of(family)) == 2
    os.kill(killed.process.pid or 0, signal.SIGKILL)
    assert killed.end() == -signal.SIGKILL
    assert _none_lives(family)

    bereaved = begin("bereaved")
    family = bereaved.family()
    _ranks_of(family)[1].kill()
    assert bereaved.end() == RankLost.exit_code
    assert _none_lives(family)
    failure = told_failure(bereaved.folder)
    assert failure is not None
    assert failure.type == "RankLost"
    assert isinstance(failure.as_error(), JobLost)  # hence tried again by itself

    stopped = begin("stopped")
    stopped.family()
    stopped.process.terminate()
    assert stopped.end() == Preempted.exit_code

    assert begin("last").end() == 0
    record = runner.store.find("stages/rlhf/train", document.fingerprint)
    assert record is not None
    assert record.placement["trainer"] == "megatron"
    published = runner.store.path(record)

    undisturbed = _job(document.placement, document, tmp_path / "megatron")
    outcome, _ = in_ranks(2, tmp_path, _train_rank, undisturbed)
    assert outcome.metrics == record.metrics
    assert {name: (published / name).read_bytes() for name in record.files} == {
        str(path.relative_to(undisturbed.output)): path.read_bytes()
        for path in undisturbed.output.rglob("*")
        if path.is_file()
    }

    by_torch = _job(plain.placement, document, tmp_path / "torch")
    process = started(_train_alone, by_torch)
    process.join()
    assert process.exitcode == 0
    first = {
        name: load_file(job / step_folder(6) / "model.safetensors")
        for name, job in (("megatron", published), ("torch", by_torch.output))
    }
    assert first["megatron"].keys() == first["torch"].keys()
    for name, weight in first["torch"].items():
        assert torch.allclose(first["megatron"][name], weight, atol=1e-4), name


def _job(placement: object, document: object, folder: Path) -> Job:
    (folder / "output").mkdir(parents=True)
    told = document.model_copy(update={"progress": folder / "progress.jsonl"})  # type: ignore[attr-defined]
    return Job(told, folder / "output", folder / "state", ExecutionSettings.model_validate(placement))


def _train_alone(job: Job) -> None:
    from rufus_core.training.ranks import ALONE

    train_rank(job, ALONE, threading.Event())
