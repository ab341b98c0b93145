"""Supervised fine-tuning against TRL's SFTTrainer: one miniature, the same chats in the same batches, one thread.

Both train on the tokens of the assistant's turns with AdamW, in fp32, for the same steps, and are shown to take the
same first step. A second's tokens are those of the chats, never padding. TRL is tried with every setting that keeps the
batches as they are, and measured with the fastest; packing in its own way, which makes other batches, is only told.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from typing import Any

import datasets
import torch
import trl
from torch.utils.data import SequentialSampler
from transformers import PreTrainedModel, PrinterCallback

from benchmarks.arithmetic import flops, flops_per_second
from benchmarks.miniature import (
    OPTIMIZER,
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
from rufus_core.data.catalogue import CLOSED_VOCABULARY
from rufus_core.data.chat import MaskedIds
from rufus_core.data.mixture import EndlessOrder
from rufus_core.rollout.policy import Policy
from rufus_core.settings import PolicyShape
from rufus_core.training.forward import TokenSequence, micro_batches, token_logprobs
from rufus_core.training.sft import train_sft
from rufus_core.training.torch_trainer import TorchTrainer

SEQUENCES, STEPS, TRIAL_STEPS = 64, 6, 2
CHATS_OF_EACH = 60
MOST_DIFFERENCE = 1e-4  # of a gradient's entries from the largest, in fp32
OPTIONS: dict[str, dict[str, Any]] = {
    "padded, one batch of 64": {"per_device_train_batch_size": 64},
    "padded, 8 batches of 8": {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 8},
    "padding-free, 4 batches of 16": {
        "per_device_train_batch_size": 16, "gradient_accumulation_steps": 4, "padding_free": True,
    },
    "padding-free, 8 batches of 8": {
        "per_device_train_batch_size": 8, "gradient_accumulation_steps": 8, "padding_free": True,
    },
    "padding-free, 16 batches of 4": {
        "per_device_train_batch_size": 4, "gradient_accumulation_steps": 16, "padding_free": True,
    },
    "padding-free, 32 batches of 2": {
        "per_device_train_batch_size": 2, "gradient_accumulation_steps": 32, "padding_free": True,
    },
}  # fmt: skip
PACKED = {"packing": True, "max_length": 512, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 11}


class InOrder(trl.SFTTrainer):  # type: ignore[misc]
    """Takes the chats in the order given, which is ours."""

    def _get_train_sampler(self, train_dataset: Any = None) -> SequentialSampler:
        return SequentialSampler(self.train_dataset if train_dataset is None else train_dataset)


def run_ours(policy: Policy, model: PreTrainedModel, examples: Sequence[MaskedIds], steps: int) -> None:
    stage = sft_stage(steps, SEQUENCES)
    train_sft(TorchTrainer(Policy(model, policy.chat), stage.optimizer), examples, stage, 0, Quiet(), lambda _: None)


def peer(
    policy: Policy, model: PreTrainedModel, examples: Sequence[MaskedIds], steps: int, option: Mapping[str, Any]
) -> InOrder:
    """Made ready: tokenised, and with nothing to log, save or report."""
    chats = [examples[i] for i in EndlessOrder(len(examples), 0, 0).take(steps * SEQUENCES)]
    data = {
        "input_ids": [chat.token_ids for chat in chats],
        "labels": [
            [token if bit else -100 for token, bit in zip(chat.token_ids, chat.loss_mask, strict=True)]
            for chat in chats
        ],
    }
    trainer = InOrder(
        model,
        trl.SFTConfig(**settings_of_peer(OPTIMIZER, steps) | {"max_length": None} | option),
        train_dataset=datasets.Dataset.from_dict(data),
        processing_class=policy.chat.tokenizer,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def tokens_of(examples: Sequence[MaskedIds], steps: int) -> int:
    order = EndlessOrder(len(examples), 0, 0)
    return sum(len(examples[i].token_ids) for i in order.take(steps * SEQUENCES))


def show_growth(policy: Policy) -> float:
    """Print what a step costs by batch, length and size. Returns the FLOPs a second of the miniature's products."""
    base = {"sequences": 64, "length": 96, "hidden_size": 128, "num_layers": 2}
    changes = [{}, {"sequences": 16}, {"sequences": 256}, {"length": 24}, {"length": 384}]
    changes += [{"hidden_size": 256}, {"num_layers": 4}]
    rate = flops_per_second(policy.model)
    print(f"products with the miniature's matrices: {rate / 1e9:.1f} GFLOP/s on one thread")
    print("sequences  length  hidden  layers  seconds a step  tokens/s  share of the arithmetic bound")
    for change in changes:
        now = base | change
        shape = PolicyShape(hidden_size=now["hidden_size"], num_layers=now["num_layers"])
        model = copy.deepcopy(policy.model) if shape == PolicyShape() else miniature([], shape).model
        lengths = [now["length"]] * now["sequences"]
        mask = [int(3 * t >= 2 * now["length"]) for t in range(now["length"])]  # the last third is the assistant's
        batch = [TokenSequence(i, [t % 97 for t in range(i, i + n)], mask) for i, n in enumerate(lengths)]
        seconds = []
        for _ in range(3):
            started = time.perf_counter()
            for micro in micro_batches(batch, 2048):
                token_logprobs(model, micro, 1.0)[0].sum().backward()
            seconds.append(time.perf_counter() - started)
        least = flops(model, lengths, sum(mask) * len(lengths), passes=3) / flops_per_second(model)
        print(
            f"{now['sequences']:9}  {now['length']:6}  {now['hidden_size']:6}  {now['num_layers']:6}  "
            f"{min(seconds):14.3f}  {sum(lengths) / min(seconds):8,.0f}  {least / min(seconds):6.0%}",
            flush=True,
        )
    return rate


def main() -> None:
    quietly()
    shown = demonstrations({name: {} for name in CLOSED_VOCABULARY}, CHATS_OF_EACH)
    policy = miniature(shown)
    examples = example_ids(policy, shown)
    rate = show_growth(policy)

    def ours(steps: int = STEPS) -> float:
        model = copy.deepcopy(policy.model)
        started = time.perf_counter()
        run_ours(policy, model, examples, steps)
        return tokens_of(examples, steps) / (time.perf_counter() - started)

    def theirs(option: Mapping[str, Any], steps: int = STEPS) -> float:
        trainer = peer(policy, copy.deepcopy(policy.model), examples, steps, option)
        started = time.perf_counter()
        trainer.train()
        torch.set_num_threads(1)
        return tokens_of(examples, steps) / (time.perf_counter() - started)

    ours(TRIAL_STEPS)  # warm both up
    theirs(OPTIONS["padded, 8 batches of 8"], 1)
    speeds = {name: theirs(option, TRIAL_STEPS) for name, option in OPTIONS.items()}
    for name, speed in speeds.items():
        print(f"TRL {name}: {speed:,.0f} tokens/s")
    print(f"TRL packed into rows of 512, other batches: about {theirs(PACKED, TRIAL_STEPS):,.0f} tokens/s")
    best = max(speeds, key=lambda name: speeds[name])

    model = copy.deepcopy(policy.model)
    found = first_gradients(model, lambda: run_ours(policy, model, examples, 1))
    twin = copy.deepcopy(policy.model)
    trainer = peer(policy, twin, examples, 1, OPTIONS[best])
    difference = largest_difference(found, first_gradients(twin, trainer.train))
    assert difference < MOST_DIFFERENCE, f"the gradients differ by {difference}"
    print(f"gradients of the first step: equal to {difference:.1e} of the largest entry")

    pairs = in_turns(ours, lambda: theirs(OPTIONS[best]), "tokens/s")
    taken = [examples[i] for i in EndlessOrder(len(examples), 0, 0).take(STEPS * SEQUENCES)]
    lengths, trained = [len(e.token_ids) for e in taken], sum(sum(e.loss_mask) for e in taken)
    bound = sum(lengths) / (flops(policy.model, lengths, trained, passes=3) / rate)
    pairs.tell(
        "sft",
        higher_is_better=True,
        digits=1,
        unit="tokens of chats per second",
        peer_name=f"TRL {trl.__version__} SFTTrainer",
        peer_settings=f"{best}, fused AdamW, fp32, no logging",
        gradient_difference=float(f"{difference:.1e}"),
        arithmetic_bound=round(bound, 1),
        steps=STEPS,
        sequences=SEQUENCES,
        tokens=sum(lengths),
        supervised_tokens=trained,
        threads=1,
    )


if __name__ == "__main__":
    main()
