"""The RL loop of all seven stages: roll out, score, keep, and take a few clipped policy-gradient steps."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from rufus_core.algorithms.losses import LossOutput, loss_denominator, merge_metrics, policy_loss
from rufus_core.algorithms.schedules import learning_rate
from rufus_core.errors import ConfigError, DataError
from rufus_core.gym.limits import Limits, limits_of
from rufus_core.gym.loop import EpisodeSpec, run_episodes
from rufus_core.ports.engine import RolloutEngine
from rufus_core.ports.gym import Gym
from rufus_core.ports.progress import MetricSink
from rufus_core.settings import AlgorithmSettings, RLStage
from rufus_core.training.collect import (
    Counts,
    Issued,
    ProblemStream,
    Rollout,
    advantages_of,
    collect,
    note_advantages,
    shape_rewards,
)
from rufus_core.training.diagnostic import Diagnostic, diagnostic_metrics
from rufus_core.training.forward import TokenSequence
from rufus_core.training.state import UNKEPT, Position, Unkept
from rufus_core.training.trainer import Scored, Trainer
from rufus_core.types import Problem, Trajectory, content_id


def at_step(stage: RLStage, step: int) -> RLStage:
    """The stage's settings at a step: the last phase that has begun overrides what it names (CRL-T4)."""
    for phase in stage.phases:
        if step >= phase.from_step:
            rollout = {
                "prompts_per_rollout": phase.prompts_per_rollout,
                "response_budget_tokens": phase.response_budget_tokens,
            }
            algorithm = {"kl_coef": phase.kl_coef}
            stage = stage.model_copy(
                update={
                    "rollout": stage.rollout.model_copy(update={k: v for k, v in rollout.items() if v is not None}),
                    "algorithm": stage.algorithm.model_copy(
                        update={k: v for k, v in algorithm.items() if v is not None}
                    ),
                }
            )
    return stage


def needs_reference(stage: RLStage) -> bool:
    """Whether a step of the stage measures a KL towards the policy that it starts from."""
    return any(at_step(stage, step).algorithm.kl_coef for step in _starts(stage))


def longest_trajectory(stage: RLStage, context_length: int) -> int:
    """Tokens of the longest trajectory of any step."""
    return max(
        limits_of(at_step(stage, step), context_length, training=True).trajectory_tokens for step in _starts(stage)
    )


def _starts(stage: RLStage) -> list[int]:
    return [1, *(phase.from_step for phase in stage.phases)]


def train_rl(
    trainer: Trainer,
    engine: RolloutEngine,
    problems: Sequence[Problem],
    gym: Gym,
    stage: RLStage,
    seed: int,
    sink: MetricSink,
    save: Callable[[int], None],
    keep_rollouts: Callable[[int, Sequence[Issued]], None],
    workers: int,
    state: Unkept = UNKEPT,
    diagnostic: Diagnostic | None = None,
) -> None:
    """Train from where `state` is. `save(step)` is called at every checkpoint interval and at the end.

    The rollout engine takes the trainer's weights before each step, which so rolls out the newest policy (synchronous).
    Problems whose prompt leaves no room for an answer are left out; the metric `problems_without_room` counts them.
    What `diagnostic` finds is logged with the steps at which it is due, and changes nothing of the training.

    Raises:
        ConfigError: routing is to be replayed in a policy that has no router.
        DataError: there is no problem, or none fits.
        Preempted: `state` was told to stop.
        RankLost: one of several ranks died.
        InfrastructureError: the engine can't be reached, or be brought to the newest weights.
    """
    steps = stage.run.steps
    assert steps is not None
    if stage.precision.router_replay and not trainer.has_routers:
        raise ConfigError(
            "there is no router to replay in this policy",
            where="precision.router_replay",
            hint="set it to false; it is for GLM-4.5 with experts (Glm4MoeForCausalLM)",
        )
    begun = state.begin(trainer)
    room = limits_of(stage, trainer.context_length, training=True).trajectory_tokens
    fitting = [p for p in problems if len(trainer.chat.prompt_ids(p.prompt, p.tools)) < room]
    if problems and not fitting:
        raise DataError(f"no prompt leaves room for an answer within {room} tokens", hint="give shorter problems")
    stream = ProblemStream(fitting, seed, begun.taken)
    num_updates = begun.updates
    for step in range(begun.step + 1, steps + 1):
        now = at_step(stage, step)
        limits = limits_of(now, trainer.context_length, training=True)
        started = time.perf_counter()
        engine.resume_memory()
        engine.update_weights(trainer, str(step - 1))
        size = now.rollout.samples_per_prompt
        rollout = _rollout(engine, trainer, gym, limits, size, _group_seeds(seed, step), workers)
        groups, issued, counts = collect(stream, rollout, now.rollout.prompts_per_rollout, now.dynamic_sampling)
        engine.release_memory()
        shape_rewards(groups, now.length_penalty, limits.turn_tokens)
        advantages = advantages_of(groups, now.algorithm)
        note_advantages(issued, advantages)
        rolled_out = time.perf_counter()

        updater = _Updater(trainer, now)
        metrics: dict[str, float] = {}
        num_taken = 0
        trained = [t for group in groups for t in group]
        shares = split_groups([len(group) for group in groups], now.rollout.opt_steps_per_rollout)
        # With a single optimizer step the policy that is trained is the one before the step.
        old = updater.logprobs(trained) if len(shares) > 1 else None
        for share in shares:
            num_updates += 1
            rate = learning_rate(num_updates, steps * now.rollout.opt_steps_per_rollout, now.optimizer)
            updated = updater.update(trained[share], advantages[share], old[share] if old else None, rate)
            metrics = updated or metrics
            num_taken += bool(updated)
        metrics["skipped_updates"] = float(now.rollout.opt_steps_per_rollout - num_taken)
        metrics |= rollout_metrics([one.trajectory for one in issued], counts)
        metrics["problems_without_room"] = float(len(problems) - len(fitting))
        metrics |= {"rollout_seconds": rolled_out - started, "train_seconds": time.perf_counter() - rolled_out}
        if diagnostic is not None and diagnostic.due(step):
            engine.resume_memory()
            engine.update_weights(trainer, str(step))
            seeds = itertools.count(int(content_id(seed, "diagnostic", step)[:8], 16))
            ask = _rollout(engine, trainer, gym, limits, 1, seeds, workers)
            metrics |= diagnostic_metrics([answer for (answer,) in ask(diagnostic.problems)])
        sink.log(step, metrics)
        keep_rollouts(step, issued)
        candidate = stage.run.saves(step)
        if candidate:
            save(step)
        state.end_step(Position(step, stream.taken, num_updates), candidate)
    trainer.end()


def _rollout(
    engine: RolloutEngine,
    trainer: Trainer,
    gym: Gym,
    limits: Limits,
    size: int,
    seeds: Iterator[int],
    workers: int,
) -> Rollout:
    """What rolls out a group of `size` for each problem of a step; each group takes the next seed."""

    def play(groups: Sequence[tuple[Problem, int]]) -> list[list[Trajectory]]:
        specs = [EpisodeSpec(problem, i, seed) for problem, seed in groups for i in range(size)]
        done = run_episodes(engine, trainer.chat, gym, specs, limits, workers=workers)
        return [done[start : start + size] for start in range(0, len(done), size)]

    return lambda problems: trainer.ranks.spread(list(zip(problems, seeds, strict=False)), play)


def _group_seeds(seed: int, step: int) -> Iterator[int]:
    """Seeds of a step's groups, refilled ones too: no two groups of a run share one."""
    return itertools.count((seed * 1_000_003 + step) * 10_007)


def split_groups(group_sizes: Sequence[int], parts: int) -> list[slice]:
    """Whole groups over the optimizer steps, as evenly as it goes; a share without a group takes no step."""
    starts = [0, *itertools.accumulate(group_sizes)]
    bounds = [starts[round(len(group_sizes) * k / parts)] for k in range(parts + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(bounds) if b > a]


class _Updater:
    """The optimizer steps that follow one rollout."""

    def __init__(self, trainer: Trainer, stage: RLStage) -> None:
        self._trainer, self._stage = trainer, stage

    def logprobs(self, trajectories: Sequence[Trajectory]) -> list[list[float]]:
        """Log-probs by the trainer of every sampled token, aligned with `token_ids`; 0 elsewhere."""
        sequences = [TokenSequence(i, t.token_ids, t.loss_mask, t.routed_experts) for i, t in enumerate(trajectories)]
        return self._trainer.logprobs(sequences, self._stage.rollout.temperature)

    def update(
        self,
        trajectories: Sequence[Trajectory],
        advantages: Sequence[float],
        old: Sequence[Sequence[float]] | None,
        lr: float,
    ) -> dict[str, float]:
        """One optimizer step on whole groups. Returns its metrics; empty when nothing carried a gradient.

        `old` are the trainer's log-probs before the first step on this rollout; None: they are those of this step.

        Rollouts without signal (advantage 0, no KL) count in the denominator but need no pass.
        """
        algorithm = self._stage.algorithm
        masks = [_trained(t, algorithm) for t in trajectories]
        denominator = loss_denominator([sum(mask) for mask in masks], algorithm)
        regularised = bool(algorithm.kl_coef or algorithm.entropy_coef)
        sequences = [
            TokenSequence(i, t.token_ids, mask, t.routed_experts)
            for i, (t, mask) in enumerate(zip(trajectories, masks, strict=True))
            if any(mask) and (regularised or advantages[i] != 0.0)
        ]
        advantages_S = torch.tensor(advantages, dtype=torch.float32)

        def loss(scored: Scored) -> LossOutput:
            places = list(zip(scored.batch.sequence_N.tolist(), scored.batch.offset_N.tolist(), strict=True))
            new_N = scored.logprobs_N
            return policy_loss(
                new_N,
                new_N.detach() if old is None else torch.tensor([old[s][t] for s, t in places]),
                torch.tensor([trajectories[s].logprobs[t] for s, t in places]),
                scored.batch.sequence_N,
                advantages_S,
                torch.ones_like(scored.batch.sequence_N, dtype=torch.bool),
                denominator=denominator,
                settings=algorithm,
                ref_T=scored.reference_N,
                entropy_T=scored.entropy_N,
            )

        outputs = self._trainer.accumulate(
            sequences,
            loss,
            self._stage.rollout.temperature,
            entropy=True,
            reference=bool(algorithm.kl_coef),
        )
        if not any(output.num_tokens for output in outputs):
            self._trainer.discard()
            return {}
        norm = self._trainer.step(lr, self._stage.optimizer.grad_clip)
        return merge_metrics(outputs) | {"grad_norm": norm, "lr": lr}


def _trained(trajectory: Trajectory, algorithm: AlgorithmSettings) -> list[int]:
    """The loss mask; truncated rollouts carry none where the stage says so (RRL-T5, CRL-T4)."""
    if algorithm.truncation_masking and trajectory.truncated:
        return [0] * len(trajectory.loss_mask)
    return trajectory.loss_mask


def rollout_metrics(issued: Sequence[Trajectory], counts: Counts) -> dict[str, float]:
    """What the step's rollouts looked like, over all that were issued and not aborted (SLM-08 and conservation)."""
    usable = [t for t in issued if t.usable]
    metrics = {f"rollouts/{name}": float(getattr(counts, name)) for name in Counts.__dataclass_fields__}
    if not usable:
        return metrics
    return metrics | {
        "reward": float(np.mean([t.verdict.score for t in usable])),
        "pass_rate": float(np.mean([t.verdict.passed for t in usable])),
        "response_tokens": float(np.mean([t.episode.num_response_tokens for t in usable])),
        "final_response_tokens": float(np.mean([t.episode.num_final_tokens for t in usable])),
        "truncation_ratio": float(np.mean([t.truncated for t in usable])),
        "tool_calls": float(np.mean([t.episode.num_calls for t in usable])),
        "verify_seconds": float(np.mean([t.verdict.seconds for t in usable])),
    }
