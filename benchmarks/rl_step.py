"""A whole GRPO step against TRL's GRPOTrainer: rollouts, rewards and update, one miniature, one thread.

The policy has seen some demonstrations, so that responses end at different lengths and some groups are all right or
all wrong. Both sides roll out the same problems with their own engine, score with the same verifier, and take one AdamW
step on the whole batch. On equal rollouts they are shown to take the same step. Advantages are less the mean alone,
for TRL adds another small number to the deviation than we do. TRL is measured with the fastest of the settings that
leave the step as it is.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from statistics import mean, median
from typing import Any

import datasets
import torch
import trl
from transformers import PreTrainedModel, PrinterCallback

from benchmarks.arithmetic import flops, flops_per_second
from benchmarks.miniature import (
    OPTIMIZER,
    UNUSED,
    Quiet,
    demonstrations,
    example_ids,
    first_gradients,
    largest_difference,
    miniature,
    quietly,
    settings_of_peer,
    sft_stage,
)
from benchmarks.paired import in_turns
from rufus_core.gym.single_turn import SingleTurnGym
from rufus_core.rewards.math import MathVerifier
from rufus_core.rewards.reasoning import verify_reasoning
from rufus_core.rollout.following import FollowingEngine
from rufus_core.rollout.policy import Policy
from rufus_core.settings import PolicyShape, RLStage
from rufus_core.training.rl import longest_trajectory, train_rl
from rufus_core.training.sft import train_sft
from rufus_core.training.torch_trainer import TorchTrainer
from rufus_core.types import Problem, Trajectory, Verdict

# As the CPU profile's Reasoning RL asks, with room for longer responses.
SOURCES = {
    "arithmetic": {"max_operand": 5},
    "puzzles": {"datasets": ["spell_backward", "simple_equations"], "max_value": 5},
    "science": {"kinds": 5, "members": 4},
}
STEPS, PROMPTS, SAMPLES, BUDGET = 3, 16, 8, 64
BATCH = PROMPTS * SAMPLES
CHATS_OF_EACH, WARM_UP_STEPS = 500, 80
RL_OPTIMIZER = OPTIMIZER | {"lr_peak": 3e-4}
MOST_DIFFERENCE = 1e-4  # of a gradient's entries from the largest, in fp32
OPTIONS = {
    f"{count} batches of {BATCH // count}": {
        "per_device_train_batch_size": BATCH // count,
        "gradient_accumulation_steps": count,
    }
    for count in (1, 4, 16)
}


def rl_stage(steps: int, prompts: int = PROMPTS, budget: int = BUDGET) -> RLStage:
    return RLStage.model_validate(
        {
            **UNUSED,
            "problems": {"sources": {}},
            "optimizer": RL_OPTIMIZER,
            "rollout": {
                "prompts_per_rollout": prompts,
                "samples_per_prompt": SAMPLES,
                "response_budget_tokens": budget,
            },
            "algorithm": {"name": "grpo", "clip_low": 0.2, "clip_high": 0.28, "advantage": "mean_only"},
            "precision": {"train": "fp32", "rollout": "fp32", "router_replay": False},
            "run": {"steps": steps, "select": {"rule": "last"}},
        }
    )


def run_ours(
    policy: Policy,
    model: PreTrainedModel,
    problems: Sequence[Problem],
    gym: SingleTurnGym,
    seed: int,
    stage: RLStage,
    make_engine: Callable[..., FollowingEngine] = FollowingEngine,
) -> tuple[list[dict[str, float]], list[Trajectory]]:
    """The metrics of each step, and all rollouts, group by group."""
    sink, issued = Quiet(), list[Trajectory]()
    trainer = TorchTrainer(Policy(model, policy.chat), stage.optimizer)
    engine = make_engine(model, context_tokens=longest_trajectory(stage, trainer.context_length))
    train_rl(
        trainer,
        engine,
        problems,
        gym,
        stage,
        seed,
        sink,
        lambda _: None,
        lambda _, rollouts: issued.extend(each.trajectory for each in rollouts),
        workers=1,
    )
    return sink.rows, issued


class Timed(trl.GRPOTrainer):  # type: ignore[misc]
    """Notes of each step how long its rollouts took, scored, and how many tokens a response had."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rows: list[dict[str, float]] = []

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        started = time.perf_counter()
        output = super()._generate_and_score_completions(inputs)
        tokens = output["completion_mask"].sum(1).float().mean().item()
        self.rows.append({"rollout_seconds": time.perf_counter() - started, "response_tokens": tokens})
        return output


class Peer:
    """TRL's trainer on given problems; it generates itself, or is given the rollouts of a single step."""

    def __init__(self, policy: Policy, verify: Any) -> None:
        self._policy, self._verify = policy, verify

    def _reward(self, problems: Sequence[Problem], completion_ids: Sequence[Sequence[int]]) -> list[float]:
        chat = self._policy.chat
        texts = [
            chat.parse(ids, ()).message.content if ids[-1] in chat.stop_token_ids else None for ids in completion_ids
        ]
        return [self._verify(problem, text).score for problem, text in zip(problems, texts, strict=True)]

    def trainer(
        self,
        model: PreTrainedModel,
        problems: Sequence[Problem],
        option: Mapping[str, Any],
        seed: int,
        given: Sequence[Trajectory] = (),
    ) -> Timed:
        prompts = [
            [message.model_dump(include={"role", "content"}) for message in problem.prompt] for problem in problems
        ]
        model.generation_config.eos_token_id = list(self._policy.chat.stop_token_ids)
        starts = [len(self._policy.chat.prompt_ids(t.episode.problem.prompt)) for t in given]
        rollouts = {
            "prompt_ids": [t.token_ids[:start] for t, start in zip(given, starts, strict=True)],
            "completion_ids": [t.token_ids[start:] for t, start in zip(given, starts, strict=True)],
            "logprobs": None,
        }
        settings = {
            "loss_type": "grpo",
            "scale_rewards": "none",
            "epsilon": 0.2,
            "epsilon_high": 0.28,
            "beta": 0.0,
            "temperature": 1.0,
            "num_generations": SAMPLES,
            "max_completion_length": BUDGET,
            "shuffle_dataset": False,
            "seed": seed,
        }
        trainer = Timed(
            model,
            lambda index, completion_ids, **_: self._reward([problems[i] for i in index], completion_ids),
            trl.GRPOConfig(**settings_of_peer(RL_OPTIMIZER, len(problems) // PROMPTS) | settings | option),
            datasets.Dataset.from_dict({"prompt": prompts, "index": list(range(len(problems)))}),
            processing_class=self._policy.chat.tokenizer,
            rollout_func=(lambda *_: rollouts) if given else None,
        )
        trainer.remove_callback(PrinterCallback)
        return trainer


def trained_a_bit(shown: Sequence[Any]) -> Policy:
    policy = miniature(shown)
    stage = sft_stage(WARM_UP_STEPS, 64)
    stage = stage.model_copy(update={"optimizer": stage.optimizer.model_copy(update={"lr_peak": 3e-3})})
    train_sft(TorchTrainer(policy, stage.optimizer), example_ids(policy, shown), stage, 0, Quiet(), lambda _: None)
    return policy


def show_growth(problems: Sequence[Problem], shown: Sequence[Any]) -> None:
    """What a step costs by batch, length and size, where every response is as long as it may be."""
    print("samples  new tokens  hidden  layers  rollout seconds  of its bound  train seconds  of its bound")
    base = {"prompts": 16, "budget": 32, "hidden_size": 128, "num_layers": 2}
    for change in [{}, {"prompts": 4}, {"prompts": 64}, {"budget": 64}, {"hidden_size": 256}, {"num_layers": 4}]:
        now = base | change
        shape = PolicyShape(hidden_size=now["hidden_size"], num_layers=now["num_layers"])
        policy = miniature(shown, shape)
        policy.chat.stop_token_ids = ()
        verdicts = cycle([Verdict.binary(True), Verdict.binary(False)])
        gym = SingleTurnGym(lambda _, verdicts=verdicts: next(verdicts))
        stage = rl_stage(1, now["prompts"], now["budget"])
        [metrics], issued = run_ours(policy, policy.model, problems, gym, 0, stage)
        rollout, train = bounds(policy.model, issued, trained=issued)
        print(
            f"{len(issued):7}  {now['budget']:10}  {now['hidden_size']:6}  {now['num_layers']:6}  "
            f"{metrics['rollout_seconds']:15.2f}  {rollout / metrics['rollout_seconds']:12.0%}  "
            f"{metrics['train_seconds']:13.2f}  {train / metrics['train_seconds']:12.0%}",
            flush=True,
        )


def with_signal(issued: Sequence[Trajectory]) -> list[Trajectory]:
    """Of the groups whose rewards differ."""
    groups = [issued[start : start + SAMPLES] for start in range(0, len(issued), SAMPLES)]
    return [t for group in groups if len({t.reward for t in group}) > 1 for t in group]


def bounds(model: PreTrainedModel, issued: Sequence[Trajectory], trained: Sequence[Trajectory]) -> tuple[float, float]:
    """Seconds that the rollouts and the update must take at the rate of this machine's products.

    A prompt is computed once for its group, and every response token once; each is scored once.
    """
    rate = flops_per_second(model)
    responses = [sum(t.loss_mask) for t in issued]
    whole = [len(t.token_ids) for t in issued]
    prompts = {t.problem_id: len(t.token_ids) - sum(t.loss_mask) for t in issued}
    shared = [length for length in prompts.values() for _ in range(SAMPLES - 1)]
    rollout = flops(model, whole, sum(responses), 1) - flops(model, shared, 0, 1)
    update = flops(model, [len(t.token_ids) for t in trained], sum(sum(t.loss_mask) for t in trained), 3)
    return rollout / rate, update / rate


def main() -> None:
    quietly()
    shown = demonstrations(SOURCES, CHATS_OF_EACH)
    problems = [each.problem for each in shown]
    show_growth(problems, shown)
    policy = trained_a_bit(shown)
    with MathVerifier() as math:
        gym = SingleTurnGym(lambda episode: verify_reasoning(episode.problem, episode.final_text, math))
        peer = Peer(policy, lambda problem, text: verify_reasoning(problem, text, math))
        compare(policy, problems, gym, peer)


def show_equal_steps(policy: Policy, problems: Sequence[Problem], gym: SingleTurnGym, peer: Peer) -> float:
    """On rollouts of ours, given to both. Returns by how much the gradients differ."""
    model, twin = copy.deepcopy(policy.model), copy.deepcopy(policy.model)
    issued: list[Trajectory] = []
    found = first_gradients(model, lambda: issued.extend(run_ours(policy, model, problems, gym, 0, rl_stage(1))[1]))
    order = [issued[start].episode.problem for start in range(0, len(issued), SAMPLES)]
    trainer = peer.trainer(twin, order, next(iter(OPTIONS.values())), 0, given=issued)
    difference = largest_difference(found, first_gradients(twin, trainer.train))
    assert difference < MOST_DIFFERENCE, f"the gradients differ by {difference}"
    print(f"gradients on equal rollouts: equal to {difference:.1e} of the largest entry")
    return difference


def compare(policy: Policy, problems: Sequence[Problem], gym: SingleTurnGym, peer: Peer) -> None:
    difference = show_equal_steps(policy, problems[:PROMPTS], gym, peer)
    of_run = STEPS * PROMPTS
    batches = [problems[start : start + of_run] for start in range(0, len(problems) - of_run + 1, of_run)]
    told: dict[str, list[list[dict[str, float]]]] = {"ours": [], "peer": []}
    rolled: list[list[Trajectory]] = []

    def ours() -> float:
        number, model = len(rolled), copy.deepcopy(policy.model)
        started = time.perf_counter()
        rows, issued = run_ours(policy, model, batches[number], gym, number, rl_stage(STEPS))
        seconds = time.perf_counter() - started
        rolled.append(issued)
        told["ours"].append(rows)
        return seconds / STEPS

    def theirs(option: Mapping[str, Any]) -> float:
        number = len(told["peer"])
        trainer = peer.trainer(copy.deepcopy(policy.model), batches[number], option, seed=number)
        started = time.perf_counter()
        trainer.train()
        seconds = time.perf_counter() - started
        torch.set_num_threads(1)
        told["peer"].append(trainer.rows)
        return seconds / STEPS

    ours()  # warm both up
    speeds = {name: theirs(option) for name, option in OPTIONS.items()}
    for name, speed in speeds.items():
        print(f"TRL, {name}: {speed:.2f} s a step")
    best = min(speeds, key=lambda name: speeds[name])
    rolled.clear()
    for side in told.values():
        side.clear()
    pairs = in_turns(ours, lambda: theirs(OPTIONS[best]), "seconds a step")

    parts = {}
    for side, seconds in (("ours", pairs.ours), ("peer", pairs.peer)):
        rollouts = [mean(row["rollout_seconds"] for row in rows) for rows in told[side]]
        parts[side] = {
            "rollout_seconds": round(median(rollouts), 3),
            "train_seconds": round(median(s - r for s, r in zip(seconds, rollouts, strict=True)), 3),
            "response_tokens": round(mean(row["response_tokens"] for rows in told[side] for row in rows), 1),
        }
        print(f"{side}: {parts[side]}")
    lengths = sorted(sum(t.loss_mask) for issued in rolled for t in issued)
    signal = [with_signal(issued) for issued in rolled]
    least = [bounds(policy.model, issued, trained) for issued, trained in zip(rolled, signal, strict=True)]
    least_rollout, least_train = (median(part) / STEPS for part in zip(*least, strict=True))
    print(
        f"what arithmetic allows: rollout {least_rollout:.3f} s, train {least_train:.3f} s; "
        f"responses of {lengths[0]} to {lengths[-1]} tokens"
    )
    pairs.tell(
        "rl-step",
        higher_is_better=False,
        digits=3,
        unit="seconds a step",
        peer_name=f"TRL {trl.__version__} GRPOTrainer",
        peer_settings=f"{best}, one generation of {BATCH}, num_iterations 1, fused AdamW, fp32, no logging",
        gradient_difference=float(f"{difference:.1e}"),
        steps=STEPS,
        prompts=PROMPTS,
        samples=SAMPLES,
        most_new_tokens=BUDGET,
        groups_without_signal=round(1 - sum(map(len, signal)) / len(lengths), 2),
        threads=1,
        parts=parts,
        arithmetic_bound=round(least_rollout + least_train, 3),
    )


if __name__ == "__main__":
    main()
