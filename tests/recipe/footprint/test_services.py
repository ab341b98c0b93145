"""Calls and list prices (COST-02, COST-03)."""

from __future__ import annotations

import pytest

from rufus_core.recipe.footprint.services import HOURS_PER_MONTH, calls, price
from rufus_core.recipe.load import load_recipe
from rufus_core.settings import LoadSettings, PriceSettings

PRICES = load_recipe(profile="h200").prices


def test_evaluating_browsecomp_once_COST_03() -> None:
    """On the order of 1e5 calls and some hundreds of dollars: Table 19's means over 1,266 questions."""
    load = LoadSettings(prompt_tokens=0, response_tokens=0, searches=51.9, pages=22.2, page_tokens=95_000)
    made = calls(load, 1266)
    assert made.searches + made.pages == pytest.approx(1e5, rel=0.1)
    cost = price(made, 1.0, PRICES)
    assert cost is not None
    assert 100 < cost < 1000


def test_a_sandbox_service_is_paid_by_the_month_COST_02() -> None:
    made = calls(LoadSettings(prompt_tokens=0, response_tokens=0, sandboxes=1), 2048)
    assert price(made, HOURS_PER_MONTH, PRICES) == 10_000
    assert price(made, HOURS_PER_MONTH / 2, PRICES) == 5_000


def test_what_nobody_prices_has_no_price() -> None:
    made = calls(LoadSettings(prompt_tokens=0, response_tokens=0, judge_calls=1, searches=2), 10)
    assert price(made, 1.0, PriceSettings()) is None
    assert price(calls(LoadSettings(prompt_tokens=1, response_tokens=1), 10), 1.0, PRICES) is None
