"""The simulated rollout against a real one: the embedded engine's costs are measured, then whole steps are predicted.

What a decode step costs by batch and by tokens held, and what a prompt costs, is measured on requests of no meaning, in
turns with real steps. From that alone the seconds of Reasoning RL's rollouts on a miniature are predicted, twice: from
the lengths of the very rollouts (the clock alone is tested), and from those of another step of the same policy (what a
plan can know). They are held against the engine's own seconds in the real step; the whole rollout also holds what the
simulation leaves out: copying weights, reading replies, verifying.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from benchmarks.decoding import step_seconds
from benchmarks.miniature import demonstrations, quietly
from benchmarks.rl_step import BATCH, BUDGET, PROMPTS, SAMPLES, SOURCES, rl_stage, run_ours, trained_a_bit
from rufus_core.gym.single_turn import SingleTurnGym
from rufus_core.ports.engine import GenerateRequest, GenerateResult, SamplingParams
from rufus_core.recipe.simulation.costs import MeasuredCost
from rufus_core.recipe.simulation.engine import EngineModel
from rufus_core.recipe.simulation.episodes import DrawnEpisode, EpisodeSource, RecordedEpisodes, Turn
from rufus_core.recipe.simulation.rollout import Rollout, RolloutModel
from rufus_core.rewards.math import MathVerifier
from rufus_core.rewards.reasoning import verify_reasoning
from rufus_core.rollout.engine import EmbeddedEngine
from rufus_core.rollout.following import FollowingEngine
from rufus_core.types import Problem, Trajectory

CHATS_OF_EACH = 500
BATCHES, LENGTHS = (1, 4, 16, 48, 96, 128), (32, 96)  # lengths as the rollouts have
PROMPT_TOKENS, NUM_PROMPTS = 64, 32
REPETITIONS = 5


class TimedEngine(FollowingEngine):
    """Notes how long it generates."""

    def __init__(self, seconds: list[float], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._seconds = seconds

    def generate(self, requests: Sequence[GenerateRequest]) -> list[GenerateResult]:
        started = time.perf_counter()
        results = super().generate(requests)
        self._seconds.append(time.perf_counter() - started)
        return results


class Given:
    """These episodes, one after the other."""

    def __init__(self, episodes: Sequence[DrawnEpisode]) -> None:
        self._coming = iter(episodes)
        self._prompts = iter([episode.prompt_tokens for episode in episodes[::SAMPLES]])

    def prompt(self, _: np.random.Generator) -> int:
        return next(self._prompts)

    def episode(self, _: int, __: np.random.Generator) -> DrawnEpisode:
        return next(self._coming)


class Measured:
    """Costs of the engine, measured as often as `again` is called; the medians count."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._steps: dict[tuple[int, int], list[float]] = {(b, n): [] for b in BATCHES for n in LENGTHS}
        self._prefill: list[float] = []

    def again(self) -> None:
        for (batch, length), seconds in self._steps.items():
            seconds.append(step_seconds(self._model, batch, length))
        self._prefill.append(prefill_seconds(self._model))

    def cost(self) -> MeasuredCost:
        """Least squares over relative errors, so that a small batch counts as much as a large one."""
        target = np.array([median(seconds) for seconds in self._steps.values()])
        design = np.array([(1.0, batch, batch * length) for batch, length in self._steps])
        found, *_ = np.linalg.lstsq(design / target[:, None], np.ones(len(target)), rcond=None)
        constant, of_sequence, of_context = (max(0.0, float(value)) for value in found)
        return MeasuredCost(constant, of_sequence, of_context, median(self._prefill))


def prefill_seconds(model: PreTrainedModel) -> float:
    """Of a prompt's token: different prompts join at once and draw one token each."""
    engine = EmbeddedEngine(model, context_tokens=PROMPT_TOKENS + 8)
    generator = torch.Generator().manual_seed(0)
    taken = []
    for repetition in range(REPETITIONS):
        for index in range(NUM_PROMPTS):
            ids = torch.randint(10, engine.vocab_size, (PROMPT_TOKENS,), generator=generator).tolist()
            engine.add(GenerateRequest(f"{repetition}.{index}", ids, SamplingParams(max_new_tokens=1, sampling_seed=0)))
        started = time.perf_counter()
        engine.step()
        taken.append(time.perf_counter() - started)
        while not engine.idle:
            engine.step()
    return median(taken) / (NUM_PROMPTS * PROMPT_TOKENS)


def episode_of(trajectory: Trajectory) -> DrawnEpisode:
    sampled = sum(trajectory.loss_mask)
    return DrawnEpisode(len(trajectory.token_ids) - sampled, (Turn(sampled),), trajectory.truncated)


def predicted(cost: MeasuredCost, episodes: EpisodeSource) -> float:
    """Seconds of one rollout on one engine, which lets in as many as the embedded one."""
    engine = EngineModel(cost, cache_tokens=10**9, max_running=256)
    return Rollout(RolloutModel(1, engine, episodes, num_groups=PROMPTS, group_size=SAMPLES)).run().seconds


def main() -> None:
    quietly()
    shown = demonstrations(SOURCES, CHATS_OF_EACH)
    problems: list[Problem] = [each.problem for each in shown]
    policy = trained_a_bit(shown)
    with MathVerifier() as math:
        gym = SingleTurnGym(lambda episode: verify_reasoning(episode.problem, episode.final_text, math))

        def real(number: int) -> tuple[float, float, list[DrawnEpisode]]:
            some, taken = problems[number * PROMPTS : (number + 1) * PROMPTS], list[float]()
            model, timed = copy.deepcopy(policy.model), partial(TimedEngine, taken)
            rows, issued = run_ours(policy, model, some, gym, number, rl_stage(1), timed)
            return sum(taken), rows[0]["rollout_seconds"], [episode_of(trajectory) for trajectory in issued]

        *_, earlier = real(0)  # warms up, and is the step whose lengths a plan knows
        measured, steps = Measured(policy.model), list[tuple[float, float, list[DrawnEpisode]]]()
        for number in range(1, REPETITIONS + 1):
            measured.again()
            steps.append(real(number))
    cost = measured.cost()
    print(
        f"a decode step: {cost.step_seconds * 1e3:.2f} ms + {cost.sequence_seconds * 1e6:.1f} us a sequence + "
        f"{cost.context_seconds * 1e9:.0f} ns a token held; a prompt's token: {cost.prefill_seconds * 1e6:.1f} us"
    )
    seconds = [took for took, _, _ in steps]
    same = [predicted(cost, Given(episodes)) for *_, episodes in steps]
    plan = [predicted(cost, RecordedEpisodes(earlier)) for _ in steps]
    for number, (took, own, other) in enumerate(zip(seconds, same, plan, strict=True), start=1):
        print(f"{number}/{REPETITIONS}  real {took:.3f} s  by its own lengths {own:.3f} s  by another's {other:.3f} s")
    ours, peer = median(same), median(seconds)
    print(
        json.dumps(
            {
                "name": "rollout-simulation",
                "ours": round(ours, 3),
                "peer": round(peer, 3),
                "ratio": round(ours / peer, 2),
                "unit": "seconds of the engine in a rollout, predicted and real",
                "peer_name": "the embedded engine in a real step",
                "whole_rollout": round(median(whole for _, whole, _ in steps), 3),
                "by_another_steps_lengths": round(median(plan) / peer, 2),
                "ratios": [round(a / b, 2) for a, b in zip(same, seconds, strict=True)],
                "episodes": BATCH,
                "most_new_tokens": BUDGET,
                "threads": 1,
                "repetitions": REPETITIONS,
            }
        )
    )


if __name__ == "__main__":
    main()
