"""A training that goes on from its state is the one that was never disturbed, byte for byte."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from rufus_core.errors import LineageError, Preempted
from rufus_core.lineage.record import dump_sealed
from rufus_core.rollout.policy import Policy
from rufus_core.training.collect import ProblemStream
from rufus_core.training.state import TrainingState
from tests.training.killed import PROBLEMS, STEPS, TRAININGS, Folder


@pytest.fixture(scope="module")
def parent(spoken: Policy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parent")
    spoken.save(folder)
    return folder


def _bytes(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _steps(file: Path) -> list[int]:
    return [json.loads(line)["step"] for line in file.read_text().splitlines()]


@pytest.mark.parametrize("name", TRAININGS)
def test_it_goes_on_in_a_new_process_as_if_never_stopped(name: str, parent: Path, tmp_path: Path) -> None:
    """Weights, moments, metrics and every rollout that was issued."""
    undisturbed, stopped_once, resumed = (Folder(tmp_path / each) for each in ("whole", "once", "twice"))
    assert undisturbed.life(parent, name) == 0
    assert stopped_once.life(parent, name, stop=STEPS - 1) == Preempted.exit_code
    assert [resumed.life(parent, name, stop=k) for k in (2, STEPS - 1)] == [Preempted.exit_code] * 2
    assert _bytes(resumed.state) == _bytes(stopped_once.state)
    moments = load_file(resumed.state / f"step-{STEPS - 1}" / "state.safetensors")
    assert any(key.startswith("optimizer/exp_avg_sq/") and value.any() for key, value in moments.items())
    assert resumed.life(parent, name) == 0
    assert _bytes(resumed.output) == _bytes(undisturbed.output)
    assert _steps(resumed.output / "metrics.jsonl") == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("name", ["dynamic sampling with refill", "grpo with phases and KL"])
def test_no_problem_is_taken_twice_by_a_killed_training(name: str, parent: Path, tmp_path: Path) -> None:
    """Killed three times among the verdicts of a step: with rollouts over-sampled, refilled and in flight."""
    undisturbed, killed = Folder(tmp_path / "whole"), Folder(tmp_path / "killed")
    assert undisturbed.life(parent, name) == 0
    assert [killed.life(parent, name, die_at_verdict=k) for k in (75, 40, 10)] == [-signal.SIGKILL] * 3
    assert killed.life(parent, name) == 0
    assert _bytes(killed.output) == _bytes(undisturbed.output)
    issued = [json.loads(line) for line in (killed.output / "rollouts.jsonl").read_text().splitlines()]
    groups = [problem for _, problem, sample, *_ in issued if sample == 0]
    assert groups == [problem.id for problem in ProblemStream(PROBLEMS, 0).take(len(groups))]
    assert len(groups) > len(PROBLEMS)  # into a second epoch
    if "refill" in name:
        assert len(groups) > 4 * STEPS


def test_killed_at_ever_later_file_operations_it_ends_as_if_undisturbed(parent: Path, tmp_path: Path) -> None:
    undisturbed, killed = Folder(tmp_path / "whole"), Folder(tmp_path / "killed")
    assert undisturbed.life(parent, "gspo") == 0
    codes = [killed.life(parent, "gspo", die_at_file=1)]
    while codes[-1] == -signal.SIGKILL and len(codes) < 60:
        codes.append(killed.life(parent, "gspo", die_at_file=1 + 5 * len(codes)))
    assert codes[-1] == 0
    assert len(codes) > 5
    assert _bytes(killed.output) == _bytes(undisturbed.output)


def _truncated(state: Path) -> None:
    tensors = state / "state.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-8])


def _flipped(state: Path) -> None:
    content = bytearray((state / "state.safetensors").read_bytes())
    content[-1] ^= 1
    (state / "state.safetensors").write_bytes(content)


def _of_another_format(state: Path) -> None:
    facts = json.loads((state / "state.json").read_text())
    (state / "state.json").write_text(json.dumps({**facts, "format": 1}))


def _half_written(state: Path) -> None:
    (state / "state.json").write_text((state / "state.json").read_text()[:40])


def _without_tensors(state: Path) -> None:
    (state / "state.safetensors").unlink()


def _of_other_settings(state: Path) -> None:
    facts = json.loads((state / "state.json").read_text())
    facts.pop("seal")
    (state / "state.json").write_text(dump_sealed({**facts, "identity": "gspo"}))


def _whose_position_was_altered(state: Path) -> None:
    facts = json.loads((state / "state.json").read_text())
    (state / "state.json").write_text(json.dumps({**facts, "position": {**facts["position"], "taken": 0}}))


def _that_is_a_list(state: Path) -> None:
    (state / "state.json").write_text("[1, 2]")


def _whose_output_is_gone(state: Path) -> None:
    (state.parents[1] / "output" / "metrics.jsonl").unlink()


def _whose_output_is_short(state: Path) -> None:
    metrics = state.parents[1] / "output" / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (_truncated, "altered"),
        (_flipped, "altered"),
        (_of_another_format, "format 1"),
        (_whose_position_was_altered, "altered"),
        (_that_is_a_list, "can't be read"),
        (_whose_output_is_gone, "metrics.jsonl is gone"),
        (_half_written, "can't be read"),
        (_without_tensors, "can't be read"),
        (_of_other_settings, "other settings"),
        (_whose_output_is_short, "metrics.jsonl is shorter"),
    ],
)
def test_a_state_that_cant_be_used_is_refused(
    spoil: Callable[[Path], None], what: str, stopped: Folder, tmp_path: Path
) -> None:
    (state,) = stopped.state.iterdir()
    spoil(state)
    before = _bytes(stopped.output.parent)
    training = TrainingState(stopped.state, stopped.output, "sft", STEPS, threading.Event())
    with pytest.raises(LineageError, match=what) as caught:
        training.take_up()
    assert caught.value.where == str(state)
    assert "\n" not in str(caught.value)
    assert _bytes(stopped.output.parent) == before
    training.discard()
    assert not any(stopped.state.iterdir())
    assert not any(stopped.output.iterdir())


@pytest.fixture
def stopped(parent: Path, tmp_path: Path) -> Folder:
    """An SFT that was stopped after its second step."""
    folder = Folder(tmp_path / "stopped")
    assert folder.life(parent, "sft", stop=2) == Preempted.exit_code
    return folder


def test_output_is_put_back_to_the_states_step(stopped: Folder) -> None:
    before = _bytes(stopped.output)
    with (stopped.output / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "total": 6, "metrics": {}}\n{"step": 4, "tot')
    (stopped.output / "checkpoints" / "step-3").mkdir(parents=True)
    (stopped.output / "checkpoints" / "step-3" / "model.safetensors").write_bytes(b"half")
    TrainingState(stopped.state, stopped.output, "sft", STEPS, threading.Event()).take_up()
    assert _bytes(stopped.output) == before
    assert not (stopped.output / "checkpoints").exists()


def test_without_a_state_nothing_is_left_of_the_dead_one(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    (folder.output / "metrics.jsonl").write_text("x")
    (folder.state / ".step-1.partial").mkdir(parents=True)
    TrainingState(folder.state, folder.output, "sft", STEPS, threading.Event()).take_up()
    assert not _bytes(tmp_path)
