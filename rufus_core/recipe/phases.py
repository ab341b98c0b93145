"""The batch of a stage, and what of it changes while the stage runs."""

from __future__ import annotations

from collections.abc import Iterator

from rufus_core.settings import RLStage, SFTStage
from rufus_core.types import Frozen


class PhasePlan(Frozen):
    """A stage's batch from step `from_step` on."""

    from_step: int
    prompts: int | None  # None for SFT
    samples: int | None
    sequences: int  # of one rollout; of one optimizer step for SFT
    opt_steps: int | None
    sequences_per_step: float
    budget_tokens: int  # of a response; of a packed row for SFT
    kl_coef: float | None


def phases_of(stage: SFTStage | RLStage) -> Iterator[PhasePlan]:
    """In their order. What a phase doesn't say is as in the one before."""
    if isinstance(stage, SFTStage):
        size = stage.batch.global_batch_sequences
        yield PhasePlan(
            from_step=1,
            prompts=None,
            samples=None,
            sequences=size,
            opt_steps=None,
            sequences_per_step=size,
            budget_tokens=stage.batch.context_tokens,
            kl_coef=None,
        )
        return
    rollout = stage.rollout
    prompts, budget, kl_coef = rollout.prompts_per_rollout, rollout.response_budget_tokens, stage.algorithm.kl_coef
    for from_step, phase in [(1, None), *((phase.from_step, phase) for phase in stage.phases)]:
        if phase is not None:
            prompts = phase.prompts_per_rollout or prompts
            budget = phase.response_budget_tokens or budget
            kl_coef = kl_coef if phase.kl_coef is None else phase.kl_coef
        sequences = prompts * rollout.samples_per_prompt
        yield PhasePlan(
            from_step=from_step,
            prompts=prompts,
            samples=rollout.samples_per_prompt,
            sequences=sequences,
            opt_steps=rollout.opt_steps_per_rollout,
            sequences_per_step=sequences / rollout.opt_steps_per_rollout,
            budget_tokens=budget,
            kl_coef=kl_coef,
        )
