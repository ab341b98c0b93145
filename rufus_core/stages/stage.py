"""What a stage is in code: the environment its problems are played in and the reward they earn.

Everything else (data, budgets, algorithm, selection) is the recipe's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rufus_core.ports.gym import Gym
from rufus_core.ports.programs import CodeSandbox
from rufus_core.ports.sessions import SandboxSessions
from rufus_core.rewards.usage import UsageMeter
from rufus_core.sandbox.placement import open_code_sandbox, open_sessions
from rufus_core.settings import ExecutionSettings, RewardSettings, RLStage


@dataclass(frozen=True, slots=True)
class GymContext:
    """What a stage's gym is opened with. `training` is False in evaluations, which a stage may score otherwise.

    `label` names the step where something is opened outside of this machine.
    """

    settings: RLStage
    training: bool
    execution: ExecutionSettings = field(default_factory=ExecutionSettings)
    label: str = ""
    reward_model: Path | None = None
    meter: UsageMeter = field(default_factory=UsageMeter)  # of what judges behind endpoints are asked

    @property
    def workers(self) -> int:
        return self.execution.rollout_workers

    def code_sandbox(self, workers: int, **limits: int) -> CodeSandbox:
        """Opened where the recipe says that a policy's code runs; see `open_code_sandbox`."""
        return open_code_sandbox(self.execution, workers, label=self.label, **limits)

    def sessions(self) -> SandboxSessions:
        """See `open_sessions`."""
        return open_sessions(self.execution, label=self.label)

    @property
    def reward(self) -> RewardSettings:
        """The numbers of the stage's reward; those that are None have the verifier's own values."""
        return self.settings.reward or RewardSettings(kind="rule_based_verifier")


@dataclass(frozen=True, slots=True)
class Stage:
    """One RL stage. `families` are the problem families that its gym can play."""

    name: str
    families: tuple[str, ...]
    open_gym: Callable[[GymContext], Gym]
