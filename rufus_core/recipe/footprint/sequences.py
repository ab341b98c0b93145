"""How long the sequences of a stage can be."""

from __future__ import annotations

from rufus_core.settings import ArchitectureSettings, RLStage, SFTStage


def longest_sequence(stage: SFTStage | RLStage, arch: ArchitectureSettings) -> int:
    """Tokens of the longest sequence that can be trained, prompt and all; of a prompt its mean."""
    if isinstance(stage, SFTStage):
        return stage.batch.context_tokens
    rollout, load = stage.rollout, stage.compute.load
    budgets = [rollout.response_budget_tokens, *(phase.response_budget_tokens or 0 for phase in stage.phases)]
    prompt = int(load.prompt_tokens) if load else 0
    return min(rollout.trajectory_tokens or prompt + max(budgets), arch.context_tokens)
