"""Coding RL: small programs, graded by running the tests in a sandbox (spec section 5)."""

from rufus_core.gym.combined import HoldingGym
from rufus_core.gym.single_turn import SingleTurnGym
from rufus_core.ports import Gym
from rufus_core.rewards.code import tests_pass
from rufus_core.sandbox.interpreter import InterpreterPool
from rufus_core.stages.stage import GymContext, Stage


def open_gym(context: GymContext) -> Gym:
    pool = InterpreterPool(workers=context.workers, allow_unisolated=context.allow_unisolated)
    gym = SingleTurnGym(lambda episode: tests_pass(episode.problem, episode.final_text or "", pool))
    return HoldingGym(gym, pool)


STAGE = Stage("coding_rl", families=("python_function", "python_program"), open_gym=open_gym)
