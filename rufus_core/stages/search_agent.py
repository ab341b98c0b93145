"""Search Agent: search, scrape and python over a corpus; a judge's score behind rule gates (spec section 9)."""

from contextlib import closing
from functools import partial
from typing import Any

from rufus_core.gym.combined import HoldingGym
from rufus_core.gym.search import SearchGym
from rufus_core.ports.gym import Gym
from rufus_core.rewards.judges import LEXICAL, make_judge
from rufus_core.rewards.search import search_verdict
from rufus_core.stages.stage import GymContext, Stage


def open_gym(context: GymContext) -> Gym:
    models = context.settings.models
    name = models.judge if context.training else models.eval_judge or models.judge
    judge = make_judge(name or LEXICAL, meter=context.meter)
    numbers = {
        "min_successful_calls": context.reward.min_successful_tool_calls,
        "malformed_factor_floor": context.reward.malformed_call_factor_floor,
        "no_answer_penalty": context.reward.no_answer_budget_exhausted,
    }
    given: dict[str, Any] = {name: number for name, number in numbers.items() if number is not None}
    pool = context.code_sandbox(1)
    return HoldingGym(SearchGym(pool, judge, reward=partial(search_verdict, **given)), pool, closing(judge))


STAGE = Stage("search_agent", families=("person", "thing", "owner", "pair"), open_gym=open_gym)
