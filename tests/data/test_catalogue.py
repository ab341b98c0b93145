"""Every generator of the catalogue speaks through the chat format, and back."""

from __future__ import annotations

import random

import pytest

from rufus_core.data.catalogue import GENERATORS, generator
from rufus_core.data.chat import ChatFormat
from rufus_core.errors import ConfigError
from rufus_core.types import Message


@pytest.mark.parametrize("name", GENERATORS)
def test_demonstrations_survive_the_way_through_tokens(name: str, chat: ChatFormat) -> None:
    """What the policy is taught to sample is read as the very message it was written from (GYM-16)."""
    rng = random.Random(3)
    for problem in generator(name).problems(5, 6, {}):
        for wrong in (False, True):
            answered = generator(name).demonstrate(problem, rng, wrong)
            supervise = [False] * len(problem.prompt) + [True] * len(answered)
            row = chat.example_ids([((*problem.prompt, *answered), supervise, problem.tools)])[0]
            turns = [chat.parse(ids, problem.tools) for ids in _runs(row.token_ids, row.loss_mask, chat)]
            assert [turn.message for turn in turns] == [m for m in answered if m.role == "assistant"]
            assert all(turn.actions == turn.message.tool_calls for turn in turns)
            prompt = chat.prompt_ids(problem.prompt, problem.tools)
            assert row.token_ids[: len(prompt)] == prompt
            assert row.loss_mask[: len(prompt) + 1] == [0] * len(prompt) + [1]


def _runs(ids: list[int], mask: list[int], chat: ChatFormat) -> list[list[int]]:
    """Sampled turns: the masked ids, cut after each stop token."""
    runs: list[list[int]] = [[]]
    for token in (token for token, flag in zip(ids, mask, strict=True) if flag):
        runs[-1].append(token)
        if token in chat.stop_token_ids:
            runs.append([])
    assert runs.pop() == []
    return runs


@pytest.mark.parametrize("name", GENERATORS)
def test_the_same_seed_gives_the_same_distinct_problems(name: str) -> None:
    problems = list(generator(name).problems(5, 20, {}))
    assert problems == list(generator(name).problems(5, 20, {}))
    assert len({problem.id for problem in problems}) == 20
    assert {problem.id for problem in generator(name).problems(6, 20, {})} != {problem.id for problem in problems}
    assert all(isinstance(message, Message) for problem in problems for message in problem.prompt)


def test_an_unknown_generator_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"there is no generator 'aritmetic' \(did you mean 'arithmetic'\?\)"):
        generator("aritmetic")
    with pytest.raises(ConfigError, match="known: arithmetic"):
        generator("qqq")
