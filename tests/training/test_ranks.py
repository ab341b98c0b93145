"""Several ranks train as one process would."""

from __future__ import annotations

import os
import signal
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from rufus_core.errors import InfrastructureError, Preempted, RankLost
from rufus_core.rollout.policy import Policy, load_policy
from rufus_core.settings import RLStage, SFTStage
from rufus_core.training.ranks import ALONE, Ranks
from tests.training import toy
from tests.training.ranked import Trained, in_ranks, train

_TWO_STEPS = {"run": {"steps": 2}, "optimizer": toy.PLAIN_STEP | {"lr_peak": 0.1}}
GRPO = {"name": "grpo", "advantage": "mean_only"}
STAGES = {
    "sft": toy.sft_stage(**_TWO_STEPS),
    "sft of one row": toy.sft_stage(**_TWO_STEPS, batch={"global_batch_sequences": 1}),
    "grpo with routing replayed": toy.rl_stage(**_TWO_STEPS, algorithm=GRPO, precision={"router_replay": True}),
    "grpo of one group": toy.rl_stage(**_TWO_STEPS, algorithm=GRPO, rollout={"prompts_per_rollout": 1}),
    "gspo, KL, entropy, two optimizer steps": toy.rl_stage(
        **_TWO_STEPS,
        algorithm={"kl_coef": 0.1, "entropy_coef": 0.01, "tis": True, "length_normalization": "per_token"},
        rollout={"opt_steps_per_rollout": 2, "prompts_per_rollout": 3},
    ),
    "refill": toy.rl_stage(
        **_TWO_STEPS,
        dynamic_sampling={"low_exclusive": 0.0, "high_exclusive": 1.0, "oversample_factor": 1.5, "max_rounds": 3},
    ),
}
# Adam as it is used: what is equal must be so bit for bit.
LONG = {"run": {"steps": 4, "checkpoint_interval_steps": 2}, "optimizer": {"lr_peak": 1e-2}}


@pytest.fixture(scope="module")
def parent(spoken: Policy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parent")
    spoken.save(folder)
    return folder


def _largest_difference(one: Trained, other: Trained) -> float:
    return max((one.weights[name] - weight).abs().max().item() for name, weight in other.weights.items())


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", STAGES)
def test_ranks_train_as_one_process_does(name: str, size: int, parent: Path, tmp_path: Path) -> None:
    """Also with groups and rows that can't be shared evenly, or that leave a rank with nothing to do."""
    alone = train(ALONE, parent, STAGES[name], tmp_path / "alone")
    first, *others = in_ranks(size, tmp_path, train, parent, STAGES[name], tmp_path / "ranks")
    assert [problem_ids for problem_ids, *_ in first.issued] == [problem_ids for problem_ids, *_ in alone.issued]
    assert [ids for _, ids, _ in first.issued] == [ids for _, ids, _ in alone.issued]
    for (*_, here), (*_, there) in zip(first.issued, alone.issued, strict=True):
        assert here == pytest.approx(there, abs=1e-5)
    assert len(first.rows) == 2
    for here, there in zip(first.rows, alone.rows, strict=True):
        assert here == pytest.approx(there, rel=1e-5, abs=1e-5)
    before = load_policy(parent).model.named_parameters()
    assert _largest_difference(alone, Trained(weights=dict(before))) > 1e-3
    assert _largest_difference(first, alone) < 1e-5
    for other in others:
        assert _largest_difference(first, other) == 0.0
        assert (first.rows, first.issued) == (other.rows, other.issued)


@pytest.mark.parametrize(
    "stage", [toy.sft_stage(**LONG), toy.rl_stage(**LONG, rollout={"opt_steps_per_rollout": 2})], ids=["sft", "rl"]
)
def test_as_many_ranks_give_the_same_bits_and_go_on_with_them(
    stage: SFTStage | RLStage, parent: Path, tmp_path: Path
) -> None:
    """With dropout, which draws from each rank's own generator."""
    once, again = (in_ranks(2, tmp_path, train, parent, stage, tmp_path / each, 0.1)[0] for each in ("once", "again"))
    stopped = in_ranks(2, tmp_path, train, parent, stage, tmp_path / "stopped", 0.1, 3)[0]
    assert isinstance(stopped, Preempted)
    resumed = in_ranks(2, tmp_path, train, parent, stage, tmp_path / "stopped", 0.1)
    assert (once.rows, once.issued, once.saved) == (again.rows, again.issued, again.saved)
    assert _largest_difference(once, again) == 0.0
    assert resumed[0].rows == once.rows[3:]
    assert [_largest_difference(once, each) for each in resumed] == [0.0, 0.0]


def test_another_number_of_ranks_goes_on_too(parent: Path, tmp_path: Path) -> None:
    stage = toy.sft_stage(run={"steps": 3}, optimizer=toy.PLAIN_STEP)
    assert isinstance(in_ranks(2, tmp_path, train, parent, stage, tmp_path / "two", 0.0, 1)[0], Preempted)
    whole, resumed = (train(ALONE, parent, stage, tmp_path / each) for each in ("one", "two"))
    assert len(resumed.rows) == 2
    assert _largest_difference(whole, resumed) < 1e-5


def test_a_state_that_a_rank_cant_read_is_the_machines_fault(parent: Path, tmp_path: Path) -> None:
    stage = toy.sft_stage(run={"steps": 3})
    in_ranks(2, tmp_path, train, parent, stage, tmp_path / "home", 0.0, 1)
    _, other = in_ranks(2, tmp_path, _with_a_home_of_its_own, parent, stage, tmp_path)
    assert isinstance(other, InfrastructureError)
    assert str(other).startswith(f"{tmp_path}/1/state/step-1: rank 1: this training state can't be read")


def _with_a_home_of_its_own(ranks: Ranks, parent: Path, stage: SFTStage, folder: Path) -> Trained:
    return train(ranks, parent, stage, folder / ("1" if ranks.rank else "home"))


def test_results_come_in_the_order_of_the_items(tmp_path: Path) -> None:
    squares = [k * k for k in range(7)]
    assert in_ranks(3, tmp_path, _squares, 7) == [(squares, len(share)) for share in ("036", "14", "25")]
    assert in_ranks(3, tmp_path, _squares, 0) == [([], 0)] * 3
    assert _squares(ALONE, 7) == (squares, 7)


def _squares(ranks: Ranks, count: int) -> tuple[list[int], int]:
    worked: list[int] = []

    def work(items: Any) -> list[int]:
        worked.extend(items)
        return [k * k for k in items]

    return ranks.spread(range(count), work), len(worked)


def test_a_weight_without_a_gradient_in_any_rank_keeps_none(tmp_path: Path) -> None:
    """Else AdamW would decay it, and one process would not."""
    assert in_ranks(2, tmp_path, _gradients) == [[None, [1.0, 1.0], [3.0, 3.0]]] * 2


def _gradients(ranks: Ranks) -> list[list[float] | None]:
    weights = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(2)) for _ in range(3)])
    if ranks.rank == 0:
        weights[1].sum().backward()
    ((1 + ranks.rank) * weights[2]).sum().backward()
    ranks.sum_gradients(weights)
    return [None if w.grad is None else w.grad.tolist() for w in weights]


def test_a_rank_that_dies_is_told_to_the_others(tmp_path: Path) -> None:
    first, second, third = in_ranks(3, tmp_path, _die_in_rank, 1)
    assert second == -signal.SIGKILL
    for error in (first, third):
        assert isinstance(error, RankLost)


def _die_in_rank(ranks: Ranks, rank: int) -> None:
    ranks.concat([0])
    if ranks.rank == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    for _ in range(3):  # the message that another was told in may still arrive
        ranks.concat([0])


def test_a_rank_that_hangs_is_told_too(tmp_path: Path) -> None:
    first, _ = in_ranks(2, tmp_path, _hang_until, tmp_path / "told", patience=timedelta(seconds=2))
    assert isinstance(first, RankLost)
    assert first.hint


def _hang_until(ranks: Ranks, told: Path) -> None:
    if ranks.rank == 1:
        while not told.exists():
            threading.Event().wait(0.05)
        return
    try:
        ranks.concat([0])
    finally:
        told.touch()
