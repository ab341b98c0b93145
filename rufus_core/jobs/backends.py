"""What trains and what rolls out a stage's policy, by what `execution` names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from rufus_core.jobs.job import Job
from rufus_core.ports.engine import RolloutEngine
from rufus_core.ports.ranks import EngineServer
from rufus_core.rollout.opening import open_engine, placed_engines
from rufus_core.rollout.policy import load_policy
from rufus_core.rollout.sglang.facts import PolicyFacts
from rufus_core.settings import ExecutionSettings, RLStage, SFTStage
from rufus_core.training.ranks import Ranks
from rufus_core.training.rl import longest_trajectory, needs_reference
from rufus_core.training.torch_trainer import TorchTrainer
from rufus_core.training.trainer import Trainer


def require_backends(execution: ExecutionSettings) -> None:
    """Raises ConfigError where what trains isn't installed here."""
    if execution.trainer == "megatron":
        from rufus_core.training.megatron.layout import require_megatron

        require_megatron()


def open_trainer(execution: ExecutionSettings, parent: Path, stage: SFTStage | RLStage, ranks: Ranks) -> Trainer:
    """The policy in `parent`, ready to be trained. Raises ConfigError where it can't be cut as the layout says."""
    reference = isinstance(stage, RLStage) and needs_reference(stage)
    if execution.trainer == "megatron":
        from rufus_core.training.megatron.trainer import MegatronTrainer

        precision, layout = stage.precision.train, execution.layout
        return MegatronTrainer(parent, stage.optimizer, layout, ranks, precision=precision, reference=reference)
    return TorchTrainer(
        load_policy(parent),
        stage.optimizer,
        ranks,
        reference=reference,
        micro_batch_tokens=execution.layout.micro_batch_tokens,
        device=execution.device,
    )


def neighbours(execution: ExecutionSettings) -> int:
    """How many neighbouring ranks share a node: those of a tensor, and those that an engine takes turns with."""
    of_tensor, engines = execution.layout.tensor_parallel, execution.sglang
    turns = execution.engine == "sglang" and engines.colocated
    return math.lcm(of_tensor, engines.tensor_parallel) if turns else of_tensor


def engines_beside_ranks(job: Job, stage: SFTStage | RLStage) -> Sequence[EngineServer]:
    """Rollout engines that are to be placed with the ranks of a training; none where a rank holds its own."""
    if isinstance(stage, SFTStage) or job.execution.engine == "embedded":
        return ()
    parent = job.input("parent")
    longest = longest_trajectory(stage, PolicyFacts.of(parent).context_length)
    return placed_engines(job.execution, parent, longest, stage.precision)


def open_rollouts(
    job: Job, stage: RLStage, trainer: Trainer, placed: Sequence[str]
) -> AbstractContextManager[RolloutEngine]:
    """The engine of a training; `placed` are the addresses of those that were started beside its ranks."""
    execution = job.execution
    if placed:
        execution = execution.model_copy(update={"sglang": execution.sglang.model_copy(update={"urls": tuple(placed)})})
    return open_engine(
        execution,
        job.input("parent"),
        trainer.hf_model,
        context_tokens=longest_trajectory(stage, trainer.context_length),
        precision=stage.precision,
        scratch=job.document.progress.parent / "engine",
        company=trainer.ranks,
        tell=lambda said: print(said, flush=True),
    )
