"""Replays demonstrations token by token, as if a policy had sampled them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from rufus_core.data.catalogue import GENERATORS
from rufus_core.data.chat import ChatFormat
from rufus_core.data.tokenizer import build_tokenizer
from rufus_core.gym.limits import limits_of
from rufus_core.gym.loop import EpisodeSpec, run_episodes
from rufus_core.ports.engine import GenerateRequest, GenerateResult
from rufus_core.ports.gym import Gym
from rufus_core.settings import RLStage
from rufus_core.types import Message, Problem, Trajectory

CONTEXT_TOKENS = 1024  # the CPU profile's
ONE_SHOT = {"one_shot": True, "max_operand": 19}  # options that make problems of another family


@dataclass(frozen=True, slots=True)
class Demonstrated:
    problem: Problem
    wrong: bool
    messages: tuple[Message, ...]  # prompt and demonstration


@dataclass(slots=True)
class ReplayEngine:
    """An engine that gives the next turn of what was demonstrated, after checking that all before it is equal."""

    turns: dict[
        tuple[str, int], list[tuple[list[int], list[int]]]
    ]  # (prompt so far, sampled ids) by problem and sample
    context_length: int = CONTEXT_TOKENS

    def generate(self, requests: Sequence[GenerateRequest]) -> list[GenerateResult]:
        return [self._next(request) for request in requests]

    def _next(self, request: GenerateRequest) -> GenerateResult:
        problem_id, sample, turn = request.rid.rsplit(".", 2)
        before, sampled = self.turns[problem_id, int(sample)][int(turn)]
        assert list(request.input_ids) == before, "what the environment said is not what was demonstrated"
        budget = request.sampling_params.max_new_tokens
        assert len(sampled) <= budget, f"a turn of {len(sampled)} tokens doesn't fit the stage's budget of {budget}"
        assert sampled[-1] in request.sampling_params.stop_token_ids
        return GenerateResult(request.rid, sampled, [-1.0] * len(sampled), "stop", "0")


def demonstrations(families: Sequence[str], count: int) -> list[Demonstrated]:
    """A right and a wrong demonstration for each of `count` problems of each family."""
    found: dict[str, list[Demonstrated]] = {family: [] for family in families}
    asked = [*((name, {}) for name in GENERATORS), ("arithmetic", ONE_SHOT)]
    for name, options in asked:
        generator = GENERATORS[name]
        for problem in generator.problems(3, 60, options):
            if len(found.get(problem.family, [None] * 2 * count)) < 2 * count:
                for wrong in (False, True):
                    shown = generator.demonstrate(problem, random.Random(problem.id), wrong)
                    found[problem.family].append(Demonstrated(problem, wrong, (*problem.prompt, *shown)))
    return [each for of_family in found.values() for each in of_family]


def chat_for(shown: Sequence[Demonstrated]) -> ChatFormat:
    """A chat format whose vocabulary holds the words of these demonstrations, as the miniature's does of all."""
    texts = [
        text for each in shown for m in each.messages for text in (m.content, m.reasoning or "", str(m.tool_calls))
    ]
    texts += [f"{tool.name} {tool.parameters}" for each in shown for tool in each.problem.tools]
    words = sorted({word for text in texts for word in "".join(c if c.isalpha() else " " for c in text).split()})
    return ChatFormat(build_tokenizer(words, CONTEXT_TOKENS))


def replay(gym: Gym, stage: RLStage, shown: Sequence[Demonstrated]) -> list[Trajectory]:
    """Episodes of the demonstrations, in order, under the stage's own limits."""
    chat = chat_for(shown)
    turns = {(each.problem.id, int(each.wrong)): _turns(chat, each) for each in shown}
    specs = [EpisodeSpec(each.problem, int(each.wrong), 0) for each in shown]
    limits = limits_of(stage, CONTEXT_TOKENS, training=True)
    return run_episodes(ReplayEngine(turns), chat, gym, specs, limits)


def _turns(chat: ChatFormat, each: Demonstrated) -> list[tuple[list[int], list[int]]]:
    supervise = [i >= len(each.problem.prompt) for i in range(len(each.messages))]
    row = chat.example_ids([(each.messages, supervise, each.problem.tools)])[0]
    turns, at = [], 0
    for bit, run in groupby(row.loss_mask):
        length = len(list(run))
        if bit:
            turns.append((row.token_ids[:at], row.token_ids[at : at + length]))
        at += length
    return turns
