"""Reasoning RL: math, puzzles and science questions, graded by deterministic verifiers (spec section 4)."""

from rufus_core.gym.combined import HoldingGym
from rufus_core.gym.single_turn import SingleTurnGym
from rufus_core.ports.gym import Gym
from rufus_core.rewards.fuzzy import THRESHOLD
from rufus_core.rewards.math import MathVerifier
from rufus_core.rewards.reasoning import verify_reasoning
from rufus_core.sandbox.lazy import LazySandbox
from rufus_core.stages.stage import GymContext, Stage


def open_gym(context: GymContext) -> Gym:
    math = MathVerifier()
    sandbox = LazySandbox(lambda: context.code_sandbox(context.workers))
    given = context.reward.similarity_threshold
    threshold = THRESHOLD if given is None else given
    gym = SingleTurnGym(lambda episode: verify_reasoning(episode.problem, episode.final_text, math, threshold, sandbox))
    return HoldingGym(gym, math, sandbox)


STAGE = Stage("reasoning_rl", families=("arithmetic", "math", "puzzle", "science", "calculation"), open_gym=open_gym)
