"""Training jobs that are killed or told to stop, and go on: what they leave is what an undisturbed one leaves."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from rufus_core.errors import InfrastructureError, Preempted, RufusError
from rufus_core.jobs.document import JobDocument
from rufus_core.jobs.job import Job
from rufus_core.jobs.run import handler
from rufus_core.lineage.trace import trace
from rufus_core.rollout.stored import read_rollouts, step_file, steps_in
from rufus_core.settings import ExecutionSettings
from rufus_core.training.reporter import Reporter
from tests.jobs.miniature import Runner, short_chain
from tests.warm import started

STEPS = 5
_RUN = {"steps": STEPS, "checkpoint_interval_steps": 2}
_PHASES = [
    {"from_step": 3, "prompts_per_rollout": 1, "kl_coef": 0.5},
    {"from_step": 4, "response_budget_tokens": 6},
    {"from_step": 9},
]
RL = [
    f"stages.rlhf.run={json.dumps(_RUN)}",
    "stages.rlhf.rollout.opt_steps_per_rollout=2",
    f"stages.rlhf.phases={json.dumps(_PHASES)}",
    "stages.rlhf.dynamic_sampling={low_exclusive: -9.0, oversample_factor: 2.0}",
]
STAGES = ("sft", "rlhf")
TOLD = {"base": [20, 40, 41], "stages/rlhf/reward_model": [1, 2, 3, 4]}  # steps that these tell of
MADE_ONCE = ["base.pretrain.steps=41", "stages.rlhf.reward_model.steps=4"]


@dataclass(frozen=True)
class _Doomed(Job):
    """Gets a signal when a step is reported: its metrics are written, its candidate and its state are not."""

    at_step: int = 0
    signal: int = 0

    def report(self, total: int) -> Reporter:
        return _Fatal(self.document.progress, total, self.at_step, self.signal)


class _Fatal(Reporter):
    def __init__(self, path: Path, total: int, at_step: int, number: int) -> None:
        super().__init__(path, total)
        self._at_step, self._number = at_step, number

    def log(self, step: int, metrics: Mapping[str, float], timed: bool = True) -> None:
        super().log(step, metrics, timed)
        if step == self._at_step:
            os.kill(os.getpid(), self._number)


@dataclass(frozen=True)
class Training:
    """One training over all its lives, each in a process of its own."""

    document: JobDocument
    folder: Path

    @property
    def output(self) -> Path:
        return self.folder / "output"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def life(self, at_step: int = 0, number: int = 0, file_bytes: int = -1) -> int | None:
        """Carry the job out, with a signal at a step. Returns the exit code, negative for a signal that killed it.

        No file may outgrow `file_bytes`.
        """
        for folder in (self.output, self.state):
            folder.mkdir(parents=True, exist_ok=True)
        self.document.progress.unlink(missing_ok=True)
        process = started(_live, self, at_step, number, file_bytes)
        process.join()
        return process.exitcode

    def bytes(self) -> dict[str, bytes]:
        files = (path for path in self.output.rglob("*") if path.is_file())
        return {str(path.relative_to(self.output)): path.read_bytes() for path in files}

    def told(self) -> list[tuple[int, dict[str, Any]]]:
        """Step and metrics of each line that the last life told whoever watched, without what the clock said."""
        lines = [json.loads(line) for line in self.document.progress.read_text().splitlines()]
        steps = [line for line in lines if "step" in line]
        return [(x["step"], {k: v for k, v in x["metrics"].items() if not k.endswith("seconds")}) for x in steps]

    def warnings(self) -> list[str]:
        lines = map(json.loads, self.document.progress.read_text().splitlines())
        return [line["warning"] for line in lines if "warning" in line]

    def log(self) -> str:
        return (self.folder / "job.log").read_text()


def _live(training: Training, at_step: int, number: int, file_bytes: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    sys.stdout = (training.folder / "job.log").open("w")
    execution = ExecutionSettings.model_validate(training.document.placement)
    job = _Doomed(training.document, training.output, training.state, execution, at_step, number)
    try:
        outcome = handler(job.document.kind)(job)
    except RufusError as error:
        print(error, flush=True)
        sys.exit(error.exit_code)
    (training.folder / "outcome.json").write_text(json.dumps([outcome.step, outcome.metrics]))


@pytest.fixture(scope="module")
def phased(home: Path) -> Runner:
    return Runner(home, short_chain(f"stages.sft.run={json.dumps(_RUN)}", *MADE_ONCE, *RL))


@pytest.fixture(scope="module")
def documents(phased: Runner) -> dict[str, JobDocument]:
    return {stage: phased.document(f"stages/{stage}/train") for stage in STAGES}


@pytest.fixture(scope="module")
def start(documents: dict[str, JobDocument]) -> Callable[[str, Path], Training]:
    return lambda stage, folder: Training(
        documents[stage].model_copy(update={"progress": folder / "progress.jsonl"}), folder
    )


@pytest.fixture(scope="module")
def undisturbed(
    start: Callable[[str, Path], Training], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Training]:
    trainings = {stage: start(stage, tmp_path_factory.mktemp(stage)) for stage in STAGES}
    assert {training.life() for training in trainings.values()} == {0}
    return trainings


def _same(one: Training, other: Training) -> None:
    assert one.bytes() == other.bytes()
    assert one.told() == other.told()
    assert one.warnings() == other.warnings()
    assert [step for step, _ in one.told()] == list(range(1, STEPS + 1))
    assert (one.folder / "outcome.json").read_text() == (other.folder / "outcome.json").read_text()


def test_every_rollout_of_every_step_is_kept_and_they_add_up(undisturbed: dict[str, Training]) -> None:
    """issued = trained + filtered + aborted: in the rows, in the metrics of each step, and over the stage."""
    training = undisturbed["rlhf"]
    assert steps_in(training.output) == [1, 2, 3, 4, 5]
    sums = Counter[str]()
    for step, metrics in training.told():
        rows = list(read_rollouts(step_file(training.output, step)))
        fates = Counter(row.fate.value for row in rows)
        assert {name: metrics[f"rollouts/{name}"] for name in ("trained", "filtered", "aborted")} == {
            name: fates[name] for name in ("trained", "filtered", "aborted")
        }
        assert metrics["rollouts/issued"] == len(rows) == fates.total()
        assert metrics["rollouts/rounds"] == max(row.round for row in rows)
        assert metrics["reward"] == pytest.approx(fmean(row.score for row in rows if row.fate != "aborted"))
        assert {row.weight_version for row in rows} == {str(step - 1)}
        for row in rows:
            assert (row.advantage is None) == (row.fate != "trained")
            assert sum(row.loss_mask) == row.num_response_tokens
            assert [value == 0 for value in row.logprobs] == [not sampled for sampled in row.loss_mask]
        sums.update(issued=len(rows), **fates)
    assert sums["filtered"] > 0  # over-sampled
    _, totals = json.loads((training.folder / "outcome.json").read_text())
    assert {name: totals[f"total/rollouts/{name}"] for name in sums} == sums


def test_a_training_draws_its_curves(undisturbed: dict[str, Training]) -> None:
    for training in undisturbed.values():
        assert (training.output / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("stage", STAGES)
def test_a_job_that_is_killed_and_killed_again_goes_on(
    stage: str, undisturbed: dict[str, Training], start: Callable[[str, Path], Training], tmp_path: Path
) -> None:
    training = start(stage, tmp_path)
    for step in (1, 2, 4, 5):  # before there is a state; before and after candidates; in the last step
        assert training.life(step, signal.SIGKILL) == -signal.SIGKILL
        assert any(training.state.glob("step-*")) == (step > 1)
    assert training.life() == 0
    _same(training, undisturbed[stage])


@pytest.mark.parametrize("stage", STAGES)
def test_a_job_that_is_told_to_stop_ends_its_step_and_goes_on_after_it(
    stage: str, undisturbed: dict[str, Training], start: Callable[[str, Path], Training], tmp_path: Path
) -> None:
    training = start(stage, tmp_path)
    for step in (1, 3):
        assert training.life(step, signal.SIGTERM) == Preempted.exit_code == 143
        assert [path.name for path in training.state.iterdir()] == [f"step-{step}"]
        assert training.log() == f"stopped after step {step} of 5 (the next run goes on there)\n"
    assert training.life() == 0
    _same(training, undisturbed[stage])


@pytest.mark.parametrize("name", TOLD)
def test_a_base_policy_and_a_reward_model_go_on_too(name: str, phased: Runner, tmp_path: Path) -> None:
    document = phased.document(name)

    def training(folder: str) -> Training:
        progress = tmp_path / folder / "progress.jsonl"
        return Training(document.model_copy(update={"progress": progress}), tmp_path / folder)

    undisturbed, disturbed = training("undisturbed"), training("disturbed")
    assert undisturbed.life() == 0
    assert [step for step, _ in undisturbed.told()] == TOLD[name]
    first, *_, before_last, last = TOLD[name]
    assert disturbed.life(first, signal.SIGTERM) == Preempted.exit_code
    assert [path.name for path in disturbed.state.iterdir()] == [f"step-{first}"]
    assert disturbed.life(before_last, signal.SIGKILL) == -signal.SIGKILL
    assert disturbed.told() == [line for line in undisturbed.told() if first < line[0] < last]
    assert disturbed.life(last, signal.SIGKILL) == -signal.SIGKILL
    assert disturbed.life() == 0
    assert disturbed.told()[-1] == undisturbed.told()[-1]
    assert disturbed.bytes() == undisturbed.bytes()
    assert (disturbed.folder / "outcome.json").read_text() == (undisturbed.folder / "outcome.json").read_text()


def test_a_stop_in_the_last_step_comes_too_late(
    undisturbed: dict[str, Training], start: Callable[[str, Path], Training], tmp_path: Path
) -> None:
    training = start("sft", tmp_path)
    assert training.life(STEPS, signal.SIGTERM) == 0
    _same(training, undisturbed["sft"])


def test_a_checkpoint_that_cant_be_written_costs_one_step(
    undisturbed: dict[str, Training], start: Callable[[str, Path], Training], tmp_path: Path
) -> None:
    training = start("sft", tmp_path)
    training.life(1, signal.SIGTERM)
    assert training.life(file_bytes=20_000) == InfrastructureError.exit_code
    assert "checkpoints/step-2: can't write these weights" in training.log()
    assert [path.name for path in training.state.iterdir()] == ["step-1"]
    assert training.life() == 0
    _same(training, undisturbed["sft"])


def test_a_broken_state_is_told_in_the_log_and_the_job_starts_anew(
    undisturbed: dict[str, Training], start: Callable[[str, Path], Training], tmp_path: Path
) -> None:
    training = start("sft", tmp_path)
    training.life(2, signal.SIGTERM)
    tensors = training.state / "step-2" / "state.safetensors"
    os.truncate(tensors, 1000)
    assert training.life() == 0
    _same(training, undisturbed["sft"])
    assert training.log() == (
        f"warning: {tensors.parent}: the tensors of this training state were altered after they were written; "
        "this training starts anew\n"
    )


def test_the_record_says_at_which_step_which_settings_began_CRL_T4(phased: Runner) -> None:
    """A fork inside a stage: the configuration holds the phases, the metrics those that came to be."""
    record = phased.run("stages/rlhf/train")
    assert {k: v for k, v in record.metrics.items() if k.startswith("phases/")} == {
        "phases/1/from_step": 3,
        "phases/2/from_step": 4,
    }
    node = trace(phased.store, phased.store.resolve(record.id), verify=False).node(record.id)
    assert node.step == STEPS
    forks = [{k: v for k, v in phase.items() if v is not None} for phase in node.config["settings"]["phases"]]
    assert forks == _PHASES
