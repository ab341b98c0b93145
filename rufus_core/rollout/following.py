"""The embedded engine where a policy is trained: it copies the trainer's weights, in the same process."""

from __future__ import annotations

from rufus_core.ports.engine import PolicyWeights
from rufus_core.rollout.engine import EmbeddedEngine


class FollowingEngine(EmbeddedEngine):
    """Its memory is the process's own, and stays as it is while the trainer works."""

    def update_weights(self, policy: PolicyWeights, version: str) -> None:
        self.load_weights(policy.hf_model(), version)

    def release_memory(self) -> None: ...

    def resume_memory(self) -> None: ...
