"""What a stage asks of services beside GPUs, and its list price (COST-02, COST-03)."""

from __future__ import annotations

from rufus_core.settings import LoadSettings, PriceSettings
from rufus_core.types import Frozen

HOURS_PER_MONTH = 730


class Calls(Frozen):
    """Of a number of episodes."""

    sandboxes: float
    test_runs: float
    judge_calls: float
    searches: float
    pages: float
    page_tokens: float  # of all pages

    @property
    def any(self) -> bool:
        return any(getattr(self, name) for name in Calls.model_fields)


def calls(load: LoadSettings, episodes: float) -> Calls:
    return Calls(
        sandboxes=episodes * load.sandboxes,
        test_runs=episodes * load.test_runs,
        judge_calls=episodes * load.judge_calls,
        searches=episodes * load.searches,
        pages=episodes * load.pages,
        page_tokens=episodes * load.pages * load.page_tokens,
    )


def price(made: Calls, hours: float, prices: PriceSettings) -> float | None:
    """Of calls over so many hours; None where none of them has a price.

    A sandbox service is paid by the month for what it can hold, so that its part is that of the hours it is needed.
    """
    parts = []
    if made.searches and prices.searches_per_1000 is not None:
        parts.append(made.searches / 1000 * prices.searches_per_1000)
    if made.page_tokens and prices.page_tokens_per_million is not None:
        parts.append(made.page_tokens / 1e6 * prices.page_tokens_per_million)
    if made.sandboxes and prices.sandboxes_per_month is not None:
        parts.append(hours / HOURS_PER_MONTH * prices.sandboxes_per_month)
    return sum(parts) if parts else None
