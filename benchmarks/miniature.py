"""The CPU profile's miniature, its demonstrations, and what the benchmarks of training share."""

from __future__ import annotations

import random
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import datasets
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from transformers.utils import logging

from rufus_core.data.catalogue import generator
from rufus_core.data.chat import MaskedIds
from rufus_core.data.tokenizer import count_words
from rufus_core.rollout.policy import Policy
from rufus_core.settings import PolicyShape, SFTStage
from rufus_core.training.base_policy import make_policy
from rufus_core.types import Json, Message, Problem

SEED = 0
# What a stage must say and these benchmarks don't depend on.
UNUSED = {"title": "", "parent": "base", "evaluation": {"targets": []}}
OPTIMIZER = {"lr_peak": 1e-3, "betas": (0.9, 0.98), "weight_decay": 0.1, "grad_clip": 1.0}


@dataclass(frozen=True, slots=True)
class Demonstration:
    problem: Problem
    messages: Sequence[Message]  # prompt and answer


class Quiet:
    """A sink that keeps the metrics of every step."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def log(self, _: int, metrics: Mapping[str, float]) -> None:
        self.rows.append(dict(metrics))


def demonstrations(sources: Mapping[str, Mapping[str, Json]], each: int) -> list[Demonstration]:
    """So many of each generator, in mixed order."""
    shown = [
        Demonstration(p, (*p.prompt, *generator(name).demonstrate(p, random.Random(p.id), False)))
        for name, options in sources.items()
        for p in generator(name).problems(SEED, each, options)
    ]
    random.Random(SEED).shuffle(shown)
    return shown


def miniature(shown: Sequence[Demonstration], shape: PolicyShape | None = None) -> Policy:
    """With random weights, and the words of these demonstrations."""
    shape = shape or PolicyShape()
    return make_policy(shape, count_words(_texts(shown), shape.num_words), SEED)


def _texts(shown: Sequence[Demonstration]) -> Iterator[str]:
    for each in shown:
        yield " ".join(tool.name for tool in each.problem.tools)
        for m in each.messages:
            yield " ".join([m.content, m.reasoning or "", *(f"{c.name} {c.arguments}" for c in m.tool_calls)])


def example_ids(policy: Policy, shown: Sequence[Demonstration]) -> list[MaskedIds]:
    """Supervised on the answer alone, as the data step makes them."""
    return policy.chat.example_ids(
        [(d.messages, [i >= len(d.problem.prompt) for i in range(len(d.messages))], d.problem.tools) for d in shown]
    )


def sft_stage(steps: int, sequences: int) -> SFTStage:
    return SFTStage.model_validate(
        {
            **UNUSED,
            "data": {"sources": {}},
            "optimizer": OPTIMIZER,
            "batch": {"global_batch_sequences": sequences, "context_tokens": 1024},
            "run": {"steps": steps, "select": {"rule": "last"}},
        }
    )


def first_gradients(model: nn.Module, train: Callable[[], object]) -> dict[str, Tensor]:
    """The gradients that the first optimizer step of a training applies: summed over micro-batches, and clipped."""
    found: dict[str, Tensor] = {}

    def keep(*_: object) -> None:
        if not found:
            found.update({name: w.grad.clone() for name, w in model.named_parameters() if w.grad is not None})

    handle = register_optimizer_step_pre_hook(keep)
    try:
        train()
    finally:
        handle.remove()
    return found


def largest_difference(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """Of any entry, relative to the largest of all."""
    assert found.keys() == expected.keys() != set()
    largest = max(gradient.abs().max().item() for gradient in expected.values())
    return max((found[name] - expected[name]).abs().max().item() for name in expected) / largest


def settings_of_peer(optimizer: Mapping[str, Any], steps: int) -> dict[str, Any]:
    """Of a Hugging Face trainer on a CPU: our optimizer (fused, its default), fp32, nothing logged, saved or told."""
    return {
        "output_dir": tempfile.mkdtemp(),
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "dataloader_pin_memory": False,
        "report_to": "none",
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "max_steps": steps,
        "learning_rate": optimizer["lr_peak"],
        "lr_scheduler_type": "constant",
        "adam_beta1": optimizer["betas"][0],
        "adam_beta2": optimizer["betas"][1],
        "weight_decay": optimizer["weight_decay"],
        "max_grad_norm": optimizer["grad_clip"],
    }


def quietly() -> None:
    """One thread, and nothing on the screen but what a benchmark says."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    logging.set_verbosity_error()
    datasets.disable_progress_bars()
    warnings.simplefilter("ignore")
