"""The three filters of multi-turn dialogues (IF-D6): what goes, why, and that the counts add up."""

from __future__ import annotations

from collections import Counter
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from rufus_core.data.synthesis.dialogue import Dialogue, DialogueSpec, Tactic
from rufus_core.data.synthesis.filters import DropReason, hard_enough, sane, solvable
from rufus_core.types import Message

Passes = list[bool | None]


def dialogue(id: str, words: int = 3, declines: bool = False) -> Dialogue:
    spec = DialogueSpec(
        id=id, seed=0, query="hi", tactics=(Tactic.OPEN, Tactic.LAYER), has_system=False, assistant="one"
    )
    turns = (("user", "hi"), ("assistant", " ".join(["word"] * words)), ("user", "more"))
    messages = tuple(Message.model_validate({"role": role, "content": text}) for role, text in turns)
    return Dialogue(spec=spec, user="user", messages=messages, rubrics=({"kind": "polite"},), declines=declines)


def count_words(text: str) -> int:
    return len(text.split())


def test_a_conversation_of_verbose_turns_goes() -> None:
    found = sane([dialogue("a", 8), dialogue("b", 9)], count_words, seed=0, max_tokens=10)
    assert [kept.id for kept in found.kept] == ["a"]
    assert [(gone.id, gone.reason, gone.detail) for gone in found.dropped] == [("b", DropReason.OVERLONG, "11 tokens")]


@given(st.lists(st.booleans(), max_size=120), st.integers(0, 9), st.sampled_from([0.0, 0.05, 0.5, 1.0]))
def test_declines_are_at_most_their_share_and_no_more_than_that_go(
    declines: list[bool], seed: int, share: float
) -> None:
    everything = [dialogue(str(i), declines=each) for i, each in enumerate(declines)]
    found = sane(everything, count_words, seed, max_decline_share=share)
    kept = sum(each.declines for each in found.kept)
    others = declines.count(False)
    assert len(found.kept) - kept == others
    assert kept <= share * (kept + others) + 1e-9
    if kept < sum(declines):
        assert kept + 1 > share * (kept + 1 + others) - 1e-9
    backwards = sane(everything[::-1], count_words, seed, max_decline_share=share)
    assert {each.id for each in backwards.kept} == {each.id for each in found.kept}


def test_which_declines_stay_depends_on_the_seed() -> None:
    everything = [dialogue(str(i), declines=i < 20) for i in range(115)]
    kept = {frozenset(d.id for d in sane(everything, count_words, seed).kept if d.declines) for seed in range(5)}
    assert {len(ids) for ids in kept} == {5}
    assert len(kept) == 5


def test_dropped_iff_none_of_four_teacher_attempts_passes_IF_D6() -> None:
    passes: dict[str, Passes] = {
        "never": [False] * 4,
        "once": [False, False, True, False],
        "lost": [False, None, False, False],
        "lost_but_passed": [None, None, None, True],
        "unknown": [None] * 4,
    }
    found = solvable([dialogue(id) for id in (*passes, "not_tried")], passes)
    assert [kept.id for kept in found.kept] == ["once", "lost_but_passed"]
    assert {gone.id: gone.reason for gone in found.dropped} == {
        "never": DropReason.TEACHER_NEVER_PASSED,
        "lost": DropReason.UNSCORED,
        "unknown": DropReason.UNSCORED,
        "not_tried": DropReason.UNSCORED,
    }


def test_dropped_iff_the_policy_passes_more_than_80_percent_of_8_IF_D6() -> None:
    passes: dict[str, Passes] = {str(n): [True] * n + [False] * (8 - n) for n in range(9)}
    passes |= {"four_of_five": [True] * 4 + [False] + [None] * 3, "unknown": [None] * 8}
    found = hard_enough([dialogue(id) for id in passes], passes)
    assert [kept.id for kept in found.kept] == [*map(str, range(7)), "four_of_five"]
    assert {gone.id: gone.reason for gone in found.dropped} == {
        "7": DropReason.TOO_EASY,
        "8": DropReason.TOO_EASY,
        "unknown": DropReason.UNSCORED,
    }


def test_sanity_comes_before_quality_and_quality_before_difficulty_IF_D6() -> None:
    """What one drops the next never sees: its reason is the first, and declines are a share of what is not overlong."""
    everything = [dialogue("long", 9), dialogue("hopeless"), dialogue("easy"), dialogue("good"), dialogue("lost")]
    everything += [dialogue(f"decline-{i}", declines=True) for i in range(3)]
    never, always = [False] * 4, [True] * 8
    teacher: dict[str, Passes] = {each.id: [True] * 4 for each in everything} | {"long": never, "hopeless": never}
    policy: dict[str, Passes] = {each.id: [False] * 8 for each in everything}
    policy |= {"long": always, "hopeless": always, "easy": always, "lost": [None] * 8}
    found = (
        sane(everything, count_words, 0, max_tokens=10, max_decline_share=0.2)
        .then(partial(solvable, passes=teacher))
        .then(partial(hard_enough, passes=policy))
    )
    reasons = [(gone.id.partition("-")[0], gone.reason.value) for gone in found.dropped]
    assert reasons == [
        ("long", "overlong"),
        ("decline", "decline"),
        ("decline", "decline"),
        ("hopeless", "teacher_never_passed"),
        ("easy", "too_easy"),
        ("lost", "unscored"),
    ]
    assert [kept.id.partition("-")[0] for kept in found.kept] == ["good", "decline"]


PASSES = st.lists(st.sampled_from([True, False, None]), max_size=8)


@given(st.lists(st.tuples(st.integers(1, 20), st.booleans(), PASSES, PASSES), max_size=30))
def test_all_three_in_order_account_for_every_dialogue(rows: list[tuple[int, bool, Passes, Passes]]) -> None:
    everything = [dialogue(str(i), words, declines) for i, (words, declines, _, _) in enumerate(rows)]
    teacher = {str(i): row[2] for i, row in enumerate(rows)}
    policy = {str(i): row[3] for i, row in enumerate(rows)}
    found = (
        sane(everything, count_words, 0, max_tokens=12)
        .then(partial(solvable, passes=teacher))
        .then(partial(hard_enough, passes=policy))
    )
    ids = Counter([*(kept.id for kept in found.kept), *(gone.id for gone in found.dropped)])
    assert ids == Counter(each.id for each in everything)
    counts = dict(found.counts)
    assert counts.pop("asked") == len(rows) == sum(counts.values())
