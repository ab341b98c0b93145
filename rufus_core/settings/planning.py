"""What `plan` reckons with and no step uses: means of what a stage will see, and prices of services."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rufus_core.types import Frozen

Mean = Annotated[float, Field(ge=0.0)]
Price = Annotated[float, Field(ge=0.0)]  # in one currency, that of `gpu_hour_price`


class LoadSettings(Frozen):
    """Means over a stage's sequences. A sequence is a prompt, then sampled tokens and what the tools answered."""

    prompt_tokens: Mean
    response_tokens: Mean  # sampled over all turns; of SFT, those with loss
    observation_tokens: Mean = 0.0
    sandboxes: Mean = 0.0  # held for an episode
    test_runs: Mean = 0.0  # in a sandbox, for its reward
    judge_calls: Mean = 0.0  # to a judge or a reward model
    searches: Mean = 0.0
    pages: Mean = 0.0  # read of those found
    page_tokens: Mean = 0.0

    @property
    def sequence_tokens(self) -> float:
        return self.prompt_tokens + self.response_tokens + self.observation_tokens


class PriceSettings(Frozen):
    """List prices of services beside GPUs (COST-02, COST-03)."""

    searches_per_1000: Price | None = None
    page_tokens_per_million: Price | None = None
    sandboxes_per_month: Price | None = None  # of a service of `sandboxes` at once, however much they are used
    sandboxes: Annotated[int, Field(gt=0)] | None = None
