"""The RL stages by name, in the recipe's order. SFT has no environment: see `rufus_core.training.sft`."""

from __future__ import annotations

from collections.abc import Mapping

from rufus_core.gym.combined import MixedGym
from rufus_core.ports.gym import Gym
from rufus_core.settings import ExecutionSettings, RLStage
from rufus_core.stages import coding_agent, coding_rl, general_agent, if_rl, reasoning_rl, rlhf, search_agent
from rufus_core.stages.stage import GymContext, Stage

STAGES: dict[str, Stage] = {
    stage.name: stage
    for stage in (
        reasoning_rl.STAGE,
        coding_rl.STAGE,
        if_rl.STAGE,
        general_agent.STAGE,
        coding_agent.STAGE,
        search_agent.STAGE,
        rlhf.STAGE,
    )
}


STAGE_OF_FAMILY = {family: name for name, stage in STAGES.items() for family in stage.families}


def open_mixed_gym(settings: Mapping[str, RLStage], execution: ExecutionSettings, label: str = "") -> Gym:
    """A gym for held-out problems of several stages at once: each is played and scored as in its own stage."""
    by_family: dict[str, Gym] = {}
    for name, stage_settings in settings.items():
        stage = STAGES[name]
        gym = stage.open_gym(GymContext(stage_settings, training=False, execution=execution, label=label))
        by_family |= dict.fromkeys(stage.families, gym)
    return MixedGym(by_family)
