"""Instruction-Following RL: every rubric must hold; code decides where it can, a judge elsewhere (spec section 6)."""

from contextlib import closing

from rufus_core.gym.combined import HoldingGym
from rufus_core.gym.single_turn import SingleTurnGym
from rufus_core.ports import Gym
from rufus_core.rewards.judges import LEXICAL, make_judge
from rufus_core.rewards.rubrics import score_rubrics
from rufus_core.stages.stage import GymContext, Stage


def open_gym(context: GymContext) -> Gym:
    judge = make_judge(context.settings.models.judge or LEXICAL, meter=context.meter)
    gym = SingleTurnGym(lambda episode: score_rubrics(episode.problem, episode.final_text, judge))
    return HoldingGym(gym, closing(judge))


STAGE = Stage("if_rl", families=("instructions",), open_gym=open_gym)
