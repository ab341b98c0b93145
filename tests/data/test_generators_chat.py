"""The generators of Instruction-Following RL and RLHF, with the rubrics and rules that grade what they demonstrate."""

import random
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rufus_core.data.generators import chat, instructions
from rufus_core.data.lexicon import POLITE_WORDS, TOPIC_WORDS
from rufus_core.errors import DataError
from rufus_core.rewards.judges import LexicalJudge
from rufus_core.rewards.preference import is_valid, prefers
from rufus_core.rewards.rubrics import score_rubrics

GENERATORS = {"instructions": instructions, "chat": chat}
each_generator = pytest.mark.parametrize("family", GENERATORS)


@each_generator
def test_same_seed_same_problems_and_distinct_ids(family):
    made = list(GENERATORS[family].problems(7, 300, {}))
    assert made == list(GENERATORS[family].problems(7, 300, {}))
    assert made != list(GENERATORS[family].problems(8, 300, {}))
    assert len({problem.id for problem in made}) == 300
    assert {problem.family for problem in made} == {family}


@each_generator
def test_prompts_are_short_over_a_small_closed_list_of_words(family):
    messages = [message.content for problem in GENERATORS[family].problems(1, 4000, {}) for message in problem.prompt]
    assert max(len(text.split()) for text in messages) <= 14
    words = {word.strip("?!*.,:") for text in messages for word in text.split()}
    assert len({word for word in words if word.isalpha()}) <= 85


@each_generator
def test_unknown_options_are_refused(family):
    with pytest.raises(DataError, match="sise"):
        GENERATORS[family].problems(1, 1, {"sise": 1})


@given(st.integers(0, 10_000))
def test_no_instruction_contradicts_another_and_a_violation_fails_IF_R1(seed):
    rng = random.Random(seed)
    for problem in instructions.problems(seed, 20, {}):
        for wrong in (False, True):
            (message,) = instructions.demonstrate(problem, rng, wrong)
            verdict = score_rubrics(problem, message.content, LexicalJudge())
            assert verdict.passed is not wrong, (problem.prompt, message.content, verdict)


def test_instructions_combine_two_or_three_constraints_of_all_kinds_IF_D2():
    made = list(instructions.problems(1, 2000, {}))
    sizes = Counter(len(problem.ground_truth["rubrics"]) for problem in made)
    assert sizes.keys() == {2, 3}
    kinds = Counter(rubric["kind"] for problem in made for rubric in problem.ground_truth["rubrics"])
    assert kinds.keys() == instructions.PHRASES.keys() | {"num_words", "topic", "polite"}
    assert min(kinds.values()) > 50


def test_prompts_state_every_word_and_sign_that_is_graded_IF_D7():
    for problem in instructions.problems(2, 1000, {}):
        said = " ".join(message.content for message in problem.prompt if message.role != "assistant")
        for rubric in problem.ground_truth["rubrics"]:
            for argument in rubric.keys() - {"kind"}:
                assert str(rubric[argument]) in said


@pytest.mark.parametrize(
    ("flavour", "roles"),
    [("single", ["user"]), ("system", ["system", "user"]), ("revised", ["user", "assistant", "user"])],
)
def test_flavours_have_their_turns_IF_D4_IF_D5(flavour, roles):
    for problem in instructions.problems(1, 100, {"flavours": [flavour]}):
        assert [message.role for message in problem.prompt] == roles
    with pytest.raises(DataError, match="flavour"):
        instructions.problems(1, 1, {"flavours": ["long"]})


def test_the_last_turn_is_what_counts_IF_D4():
    """The earlier answer of a revised request never passes: its number of words is no longer right."""
    for problem in instructions.problems(1, 100, {"flavours": ["revised"]}):
        verdict = score_rubrics(problem, problem.prompt[1].content, LexicalJudge())
        assert not verdict.passed
        assert verdict.parts["0_topic"] == 1.0


def test_good_replies_are_preferred_and_bad_ones_are_not():
    rng = random.Random(0)
    reasons = Counter()
    for problem in chat.problems(1, 500, {}):
        (good,) = chat.demonstrate(problem, rng, False)
        (bad,) = chat.demonstrate(problem, rng, True)
        assert prefers(problem, good.content).passed, good
        verdict = prefers(problem, bad.content)
        assert not verdict.passed, bad
        reasons[verdict.reason] += 1
    assert reasons.keys() == {"on_topic", "polite", "short, fresh"}


def test_preference_pairs_are_valid_and_partly_flipped_RM_D1():
    problems = list(chat.problems(3, 1000, {}))
    pairs = list(chat.preference_pairs(3, 1000))
    assert pairs == list(chat.preference_pairs(3, 1000))
    assert all(is_valid(pair) for pair in pairs)
    assert [pair.prompt for pair in pairs] == [problem.prompt for problem in problems]
    straight = list(chat.preference_pairs(3, 1000, flip_rate=0.0))
    flips = [(pair, other) for pair, other in zip(pairs, straight, strict=True) if pair != other]
    assert 20 <= len(flips) <= 80
    assert all((pair.chosen, pair.rejected) == (other.rejected, other.chosen) for pair, other in flips)


def test_a_rejected_reply_is_never_a_good_one():
    """Rude, off topic, rambling, torn or circular: none greets politely and says one thing of what was asked."""
    bad: Counter[str] = Counter()
    for problem, pair in zip(chat.problems(3, 1000, {}), chat.preference_pairs(3, 1000, flip_rate=0.0), strict=True):
        truth = problem.ground_truth
        others = "|".join(word for word in TOPIC_WORDS[truth["topic"]] if word != truth["thing"])
        good = re.compile(
            f"(?i:{'|'.join(POLITE_WORDS)}), {truth['name']}! The {truth['thing']} "
            rf"(belongs to {truth['topic']}|goes with the ({others}))\."
        )
        assert good.fullmatch(pair.chosen), pair.chosen
        assert not good.fullmatch(pair.rejected), pair.rejected
        bad[prefers(problem, pair.rejected).reason] += 1
    assert {"on_topic", "polite", "short, fresh", ""} <= bad.keys()  # the diagnostic lets some torn and circular pass
