"""One batch of GSPO, and what a trainer makes of it: by torch here, by Megatron-core in ranks of a layout."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor

from rufus_core.algorithms.losses import LossOutput, loss_denominator, merge_metrics, policy_loss
from rufus_core.rollout.policy import Policy
from rufus_core.rollout.routing import UNRECORDED
from rufus_core.settings import AlgorithmSettings, LayoutSettings, OptimizerSettings
from rufus_core.training.base_policy import make_policy
from rufus_core.training.forward import TokenSequence
from rufus_core.training.ranks import Ranks
from rufus_core.training.trainer import Scored, Trainer
from tests.support import cpu_megatron
from tests.training import toy

TEMPERATURE = 0.7
STEPS = 3
SHAPE = toy.SHAPE.model_copy(update={"num_layers": 4, "num_kv_heads": 2})
GSPO = AlgorithmSettings(name="gspo", clip_low=0.05, clip_high=0.1, tis=True, kl_coef=0.1, entropy_coef=0.01)
# A step that hardly grows what rounding makes of a gradient near 0, as Adam's usual eps would.
OPTIMIZER = OptimizerSettings(lr_peak=1e-2, eps=1e-3, weight_decay=0.1)
GRAD_CLIP = 0.05  # below the norms here: it clips


def parent_policy() -> Policy:
    """The miniature with weights that are far enough from each other for routers to be sure; its vocabulary is odd."""
    policy = make_policy(SHAPE, [*toy.COLOURS, "one"], seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.05)
        for name, buffer in policy.model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(torch.randn(buffer.shape, generator=generator) * 0.05)
    return policy


def sequences() -> list[TokenSequence]:
    """Seven of all lengths, most with routing that no router chose; one without, and one with a gap in it."""
    rng = random.Random(0)
    made = []
    for index in range(7):
        length = rng.randint(4, 14)
        routed = np.array(
            [[rng.sample(range(SHAPE.num_experts), 2) for _ in range(SHAPE.num_layers)] for _ in range(length - 1)],
            dtype=np.int32,
        )
        if index == 1:
            routed[1:3] = UNRECORDED
        ids = [rng.randrange(20, 60) for _ in range(length)]
        made.append(TokenSequence(index, ids, [0, 0, *[1] * (length - 2)], None if index == 4 else routed))
    return made


def without_routing() -> list[TokenSequence]:
    return [TokenSequence(s.index, s.token_ids, s.mask) for s in sequences()]


def gspo(scored: Scored) -> LossOutput:
    """As the RL loop asks for it, with log-probs of before and of the rollout that differ from those now."""
    batch = scored.batch
    places = list(zip(batch.sequence_N.tolist(), batch.offset_N.tolist(), strict=True))
    old_N = torch.tensor([-4.0 - 0.1 * ((3 * s + t) % 5) for s, t in places])
    return policy_loss(
        scored.logprobs_N,
        old_N,
        old_N - 0.02,
        batch.sequence_N,
        torch.tensor([1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 0.1]),
        torch.ones_like(batch.sequence_N, dtype=torch.bool),
        denominator=loss_denominator([sum(s.mask) for s in sequences()], GSPO),
        settings=GSPO,
        ref_T=scored.reference_N,
        entropy_T=scored.entropy_N,
    )


@dataclass
class Found:
    """What a trainer said and became."""

    logprobs: list[list[float]] = field(default_factory=list)
    replayed: list[list[float]] = field(default_factory=list)
    alone: list[list[float]] = field(default_factory=list)  # of the first sequence: some ranks have nothing to do
    steps: list[dict[str, float]] = field(default_factory=list)  # loss, gradient norm and metrics
    weights: dict[str, Tensor] = field(default_factory=dict)
    exact_export: bool = False
    experts: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # recorded and taken, of each router here
    resumed: list[dict[str, float]] = field(default_factory=list)  # the steps after the first, from its state
    resumed_weights: dict[str, Tensor] = field(default_factory=dict)


def take_step(trainer: Trainer) -> dict[str, float]:
    outputs = trainer.accumulate(sequences(), gspo, TEMPERATURE, entropy=True, reference=True)
    found = merge_metrics(outputs) | {"loss": float(sum(output.loss for output in outputs))}
    return found | {"grad_norm": trainer.step(OPTIMIZER.lr_peak, GRAD_CLIP)}


def ask(trainer: Trainer) -> Found:
    return Found(
        trainer.logprobs(without_routing(), TEMPERATURE),
        trainer.logprobs(sequences(), TEMPERATURE),
        trainer.logprobs(sequences()[:1], TEMPERATURE),
    )


def try_layout(ranks: Ranks, parent: Path, layout: LayoutSettings, precision: str, folder: Path) -> Found:
    """All that is asked of a layout, in one life of its ranks."""
    cpu_megatron.install()
    from rufus_core.training.megatron.trainer import MegatronTrainer

    def start() -> MegatronTrainer:
        return MegatronTrainer(parent, OPTIMIZER, layout, ranks, precision=precision, reference=True)

    trainer = start()
    given, exported = load_file(parent / "model.safetensors"), dict(trainer.weights())
    found = ask(trainer)
    found.exact_export = given.keys() == exported.keys() and all(
        torch.equal(given[name].to(weight.dtype), weight) for name, weight in exported.items()
    )
    found.experts = _experts(trainer, layout)
    trainer.save_policy(folder / "untrained")
    for step in range(STEPS):
        found.steps.append(take_step(trainer))
        if step == 0:
            if ranks.rank == 0:
                (folder / "state").mkdir()
            dist.barrier()
            trainer.save_state(folder / "state")
    found.weights = {name: weight.clone() for name, weight in trainer.hf_model().state_dict().items()}
    resumed = start()
    resumed.accumulate(sequences(), gspo, TEMPERATURE, entropy=True, reference=True)
    resumed.discard()
    resumed.load_state(folder / "state")
    found.resumed = [take_step(resumed) for _ in range(STEPS - 1)]
    found.resumed_weights = dict(resumed.hf_model().state_dict())
    return found


def _experts(trainer: Any, layout: LayoutSettings) -> list[tuple[Tensor, Tensor]]:
    """What the routers here took of a single micro-batch [t, K], beside what was recorded for it."""
    from rufus_core.training.megatron.passes import Shares
    from rufus_core.training.megatron.replay import local_tokens

    (sequence,) = sequences()[:1]
    for_all = [sequence] * (dist.get_world_size() // layout.model_parallel)  # every data parallel rank has it
    trainer.logprobs(for_all, TEMPERATURE)
    shares = Shares(for_all, layout.micro_batch_tokens)
    recorded_SLK = shares.rows[0].routing(shares.batches[0])
    return [
        (local_tokens(recorded_SLK[:, router.layer]), router.get_recorded_indices())
        for router in trainer.replay.routers
    ]
