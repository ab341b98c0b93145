"""Collecting groups: conservation, windows, refilling (RRL-T6, CA-R3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rufus_core.errors import DataError
from rufus_core.settings import DynamicSamplingSettings, LengthPenaltySettings
from rufus_core.training.collect import Counts, ProblemStream, advantages_of, collect, note_advantages, shape_rewards
from rufus_core.types import Episode, Fate, Message, Problem, Termination, Trajectory, Verdict
from tests.training import toy

UPPER = DynamicSamplingSettings(low_exclusive=0.0, high_inclusive=0.8, max_rounds=1)  # RRL-T6
DAPO = DynamicSamplingSettings(low_exclusive=0.0, high_exclusive=1.0, max_rounds=1)


def _problems(count: int) -> list[Problem]:
    return [Problem.build("toy", "toy", [Message(role="user", content=f"problem {i}")], {}) for i in range(count)]


def _trajectory(
    problem: Problem,
    verdict: Verdict,
    tokens: int = 3,
    termination: Termination = Termination.TASK_COMPLETE,
    final: int = 1,
) -> Trajectory:
    counts = {"num_response_tokens": tokens, "num_final_tokens": final}
    episode = Episode(problem, list(problem.prompt), termination, **counts)
    return Trajectory(problem.id, 0, [1, 2], [0, 1], [0.0, -1.0], episode, verdict, "0")


def _score(value: float) -> Verdict:
    return Verdict.scored(value, value > 0.5)


def _scripted(verdicts: Callable[[int], Sequence[Verdict]]) -> Callable[[Sequence[Problem]], list[list[Trajectory]]]:
    """A rollout that gives the n-th problem it is asked for `verdicts(n)`."""
    asked = iter(range(10**6))

    def rollout(problems: Sequence[Problem]) -> list[list[Trajectory]]:
        return [[_trajectory(problem, verdict) for verdict in verdicts(next(asked))] for problem in problems]

    return rollout


def _successes(count: int, size: int = 16) -> list[Verdict]:
    return [Verdict.binary(i < count) for i in range(size)]


def _kept_successes(window: DynamicSamplingSettings) -> list[int]:
    stream = ProblemStream(_problems(17), 0)
    groups, _, counts = collect(stream, _scripted(_successes), 17, window)
    assert counts.issued == 17 * 16
    return [sum(t.verdict.passed for t in group) for group in groups]


def test_one_to_twelve_of_sixteen_are_kept_RRL_T6() -> None:
    assert _kept_successes(UPPER) == list(range(1, 13))


def test_dapo_drops_all_fail_and_all_pass() -> None:
    assert _kept_successes(DAPO) == list(range(1, 16))


def test_an_aborted_member_leaves_before_the_mean_CA_R3() -> None:
    """[1, 0, 0, aborted]: a mean of 1/3 over three. With the aborted one as a zero it would be 1/4."""
    vector = [_score(1), _score(0), _score(0), Verdict.aborted("the sandbox did not boot")]
    narrow = DynamicSamplingSettings(low_exclusive=0.3, high_inclusive=0.34, max_rounds=1)
    groups, issued, counts = collect(ProblemStream(_problems(1), 0), _scripted(lambda n: vector), 1, narrow)
    assert [t.verdict.score for t in groups[0]] == [1, 0, 0]
    shape_rewards(groups, None, 10)
    advantages = advantages_of(groups, toy.rl_stage(algorithm={"advantage": "mean_only"}).algorithm)
    assert advantages == pytest.approx([2 / 3, -1 / 3, -1 / 3])
    assert (len(issued), counts.issued, counts.trained, counts.aborted) == (4, 4, 3, 1)


def test_an_unscorable_member_leaves_too() -> None:
    verdicts = [_score(1), Verdict.unscorable("the reference is broken"), _score(0)]
    groups, _, counts = collect(ProblemStream(_problems(1), 0), _scripted(lambda n: verdicts), 1, None)
    assert [t.verdict.score for t in groups[0]] == [1, 0]
    assert counts.aborted == 1


def test_a_group_left_with_fewer_than_two_is_dropped_and_refilled() -> None:
    lost = [Verdict.aborted("x"), Verdict.aborted("x"), _score(1)]
    whole = [_score(1), _score(0), _score(1)]
    groups, _, counts = collect(ProblemStream(_problems(8), 0), _scripted(lambda n: whole if n > 1 else lost), 3, None)
    assert [len(group) for group in groups] == [3, 3, 3]
    assert (counts.rounds, counts.short_groups) == (2, 0)
    assert (counts.issued, counts.trained, counts.filtered, counts.aborted) == (15, 9, 2, 4)


def test_refilling_is_bounded_and_what_is_short_is_counted() -> None:
    window = DynamicSamplingSettings(low_exclusive=0.0, high_exclusive=1.0, max_rounds=4, oversample_factor=1.5)
    groups, issued, counts = collect(
        ProblemStream(_problems(50), 0), _scripted(lambda n: _successes(1 if n == 0 else 0, 4)), 3, window
    )
    assert len(groups) == 1  # what was accepted stays
    assert counts.rounds == 4
    assert counts.short_groups == 2
    assert counts.issued == len(issued) == 4 * (5 + 3 + 3 + 3)  # of 3, then 2 missing groups, times 1.5
    assert (counts.trained, counts.filtered) == (4, counts.issued - 4)


def test_a_short_batch_is_refilled_where_no_window_is_set() -> None:
    """An outage that lasts is bounded as well."""
    groups, _, counts = collect(
        ProblemStream(_problems(8), 0), _scripted(lambda n: [Verdict.aborted("down")] * 4), 2, None
    )
    assert groups == []
    assert (counts.rounds, counts.short_groups, counts.aborted) == (3, 2, 24)


def test_the_first_in_sampling_order_are_kept() -> None:
    """Four times as many are sampled; the kept ones are the first that lie in the window, in the stream's order."""
    problems = _problems(40)
    window = DynamicSamplingSettings(low_exclusive=0.0, high_exclusive=1.0, oversample_factor=4.0)
    asked = ProblemStream(problems, 5).take(16)
    groups, _, counts = collect(
        ProblemStream(problems, 5), _scripted(lambda n: _successes(1 if n in (2, 5, 6, 9, 11) else 0, 4)), 4, window
    )
    assert [group[0].problem_id for group in groups] == [asked[n].id for n in (2, 5, 6, 9)]
    assert counts.filtered == 12 * 4  # the fifth one as well


def test_a_reasoning_rollout_is_four_times_oversampled_RRL_T6() -> None:
    """1,024 prompts are sampled and the first 256 groups in the window are trained on: 4,096 sequences."""
    window = DynamicSamplingSettings(low_exclusive=0.0, high_inclusive=0.8, oversample_factor=4.0)
    successes = [n * 7 % 17 for n in range(1024)]
    stream = ProblemStream(_problems(1500), 0)
    groups, issued, counts = collect(stream, _scripted(lambda n: _successes(successes[n])), 256, window)
    assert (stream.taken, len(issued), counts.rounds) == (1024, 1024 * 16, 1)
    kept = [k for k in successes if 1 <= k <= 12][:256]
    assert [sum(t.verdict.passed for t in group) for group in groups] == kept
    assert (counts.trained, counts.short_groups) == (256 * 16, 0)


def test_dapo_drops_and_refills_until_the_batch_is_full_CA_T1() -> None:
    """Of four, the second is all-pass and the third all-fail: two more are sampled, one of them fails, and one more."""
    window = DynamicSamplingSettings(low_exclusive=0.0, high_exclusive=1.0, max_rounds=5)
    successes = [1, 32, 0, 31, 0, 16, 2]
    asked = ProblemStream(_problems(9), 3).take(7)
    groups, _, counts = collect(
        ProblemStream(_problems(9), 3), _scripted(lambda n: _successes(successes[n], 32)), 4, window
    )
    assert [group[0].problem_id for group in groups] == [asked[n].id for n in (0, 3, 5, 6)]
    assert counts == Counts(issued=7 * 32, trained=4 * 32, filtered=3 * 32, rounds=3)


def test_the_window_reads_the_verifiers_score_and_not_the_reward() -> None:
    """All right, though a penalty for length would put the mean at 0.8."""
    group = [_trajectory(problem, _score(1)) for problem in _problems(1) for _ in range(5)]
    for trajectory, reward in zip(group, (0.6, 0.7, 0.8, 0.9, 1.0), strict=True):
        trajectory.reward = reward
    groups, _, counts = collect(ProblemStream(_problems(1), 0), lambda problems: [group], 1, UPPER)
    assert groups == []
    assert counts.filtered == 5


@given(st.lists(st.lists(st.floats(-4, 4), min_size=2, max_size=5), min_size=1, max_size=5))
def test_advantages_are_aligned_with_the_rollouts_of_uneven_groups(scores: list[list[float]]) -> None:
    """Each group alone gives what all together give, also where they are of one problem."""
    algorithm = toy.rl_stage(algorithm={"advantage": "mean_only"}).algorithm
    groups = [[_trajectory(_problems(1)[0], _score(score)) for score in group] for group in scores]
    shape_rewards(groups, None, 10)
    assert [t.reward for group in groups for t in group] == [score for group in scores for score in group]
    alone = [advantage for group in groups for advantage in advantages_of([group], algorithm)]
    assert advantages_of(groups, algorithm) == alone


def test_what_became_of_each_rollout_is_noted_and_why() -> None:
    groups: list[list[Verdict]] = [
        [_score(1), _score(0), Verdict.aborted("down")],
        [_score(1), _score(1), Verdict.unscorable("no reference")],
        [_score(1), Verdict.aborted("down"), Verdict.aborted("down")],
        [_score(0), _score(1), _score(0)],
        [_score(0), _score(1), _score(0)],
    ]
    window = DynamicSamplingSettings(low_exclusive=0.0, high_exclusive=1.0, oversample_factor=1.5)
    kept, issued, _ = collect(ProblemStream(_problems(9), 0), _scripted(lambda n: groups[n]), 2, window)
    noted = [(one.group, one.round, one.fate.value, one.why) for one in issued]
    assert noted == [
        (0, 1, "trained", ""),
        (0, 1, "trained", ""),
        (0, 1, "aborted", "aborted"),
        (1, 1, "filtered", "outside the window"),
        (1, 1, "filtered", "outside the window"),
        (1, 1, "aborted", "unscorable"),
        (2, 1, "filtered", "fewer than two usable"),
        (2, 1, "aborted", "aborted"),
        (2, 1, "aborted", "aborted"),
        *[(3, 2, "trained", "")] * 3,
        *[(4, 2, "filtered", "enough groups")] * 3,
    ]
    note_advantages(issued, [1.0, -1.0, -0.5, 1.0, -0.5])
    assert [one.advantage for one in issued if one.advantage is not None] == [1.0, -1.0, -0.5, 1.0, -0.5]
    trained = [one.trajectory for one in issued if one.advantage is not None]
    assert trained == [trajectory for group in kept for trajectory in group]


OUTCOMES = st.sampled_from([_score(0), _score(1), Verdict.aborted("x"), Verdict.unscorable("x")])


@given(
    st.lists(st.lists(OUTCOMES, min_size=1, max_size=6), min_size=1, max_size=40),
    st.integers(1, 6),
    st.sampled_from([None, UPPER, DAPO, DynamicSamplingSettings(high_inclusive=0.8, oversample_factor=2.5)]),
)
def test_rollouts_are_conserved(
    script: list[list[Verdict]], num_groups: int, window: DynamicSamplingSettings | None
) -> None:
    """issued = trained + filtered + aborted; whole groups; nothing unusable is trained on."""
    groups, issued, counts = collect(
        ProblemStream(_problems(7), 0), _scripted(lambda n: script[n % len(script)]), num_groups, window
    )
    assert counts.issued == len(issued) == counts.trained + counts.filtered + counts.aborted
    assert counts.trained == sum(map(len, groups))
    assert counts.aborted == sum(not one.trajectory.usable for one in issued)
    assert [one.trajectory for one in issued if one.fate is Fate.TRAINED] == [t for group in groups for t in group]
    assert counts.filtered == sum(one.fate is Fate.FILTERED for one in issued)
    assert all(bool(one.why) == (one.fate is not Fate.TRAINED) for one in issued)
    assert max(one.round for one in issued) == counts.rounds
    assert len(groups) + counts.short_groups == num_groups
    for group in groups:
        assert len(group) >= 2
        assert all(t.usable for t in group)
        assert len({t.problem_id for t in group}) == 1


@given(st.integers(1, 30), st.integers(0, 5), st.lists(st.integers(1, 9), min_size=1, max_size=30))
def test_every_problem_is_seen_once_in_each_epoch(size: int, seed: int, takes: list[int]) -> None:
    problems = _problems(size)
    stream = ProblemStream(problems, seed)
    seen = [problem.id for count in takes for problem in stream.take(count)]
    for start in range(0, len(seen), size):
        epoch = seen[start : start + size]
        assert len(set(epoch)) == len(epoch)
        if len(epoch) == size:
            assert set(epoch) == {problem.id for problem in problems}
    assert seen == [problem.id for problem in ProblemStream(problems, seed).take(len(seen))]


def test_epochs_differ_in_order() -> None:
    taken = ProblemStream(_problems(20), 0).take(40)
    assert [p.id for p in taken[:20]] != [p.id for p in taken[20:]]


def test_without_problems_it_refuses() -> None:
    with pytest.raises(DataError, match="no problem"):
        ProblemStream([], 0)


def _group(problem: Problem, passed: Sequence[bool], lengths: Sequence[int]) -> list[Trajectory]:
    return [_trajectory(problem, Verdict.binary(p), n) for p, n in zip(passed, lengths, strict=True)]


def test_the_length_penalty_is_taken_off_after_the_window_RRL_R2() -> None:
    penalty = LengthPenaltySettings(kind="shortest_correct", cap=0.2)
    group = _group(_problems(1)[0], [True, True, False, True], [10, 30, 50, 50])
    shape_rewards([group], penalty, max_tokens=50)
    assert [t.reward for t in group] == pytest.approx([1.0, 0.9, 0.0, 0.8])
    assert [t.verdict.score for t in group] == [1, 1, 0, 1]  # what the window reads stays raw


def test_two_groups_of_one_problem_have_a_shortest_answer_each() -> None:
    one = _problems(1)[0]
    penalty = LengthPenaltySettings(kind="shortest_correct", cap=0.2)
    groups = [_group(one, [True, False], [10, 10]), _group(one, [True, False], [40, 10])]
    shape_rewards(groups, penalty, max_tokens=50)
    assert [t.reward for group in groups for t in group] == [1, 0, 1, 0]
    advantages = advantages_of(groups, toy.rl_stage(algorithm={"advantage": "mean_only"}).algorithm)
    assert advantages == [0.5, -0.5, 0.5, -0.5]


def test_over_length_takes_from_positive_scores_only_RM_R2() -> None:
    penalty = LengthPenaltySettings(kind="over_length", threshold_tokens=10, max_tokens=20)
    problem = _problems(1)[0]
    # However much was thought before, the final response counts.
    group = [_trajectory(problem, _score(s), 500, final=n) for s, n in ((2.0, 10), (2.0, 15), (2.0, 20), (-3.0, 20))]
    shape_rewards([group], penalty, max_tokens=64)
    assert [t.reward for t in group] == pytest.approx([2.0, 1.0, 0.0, -3.0])


def test_advantages_of_nothing() -> None:
    assert advantages_of([], toy.rl_stage().algorithm) == []
