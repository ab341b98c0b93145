"""Instruction-Following RL: every rubric must hold; code decides where it can, a judge elsewhere (spec section 6)."""

from contextlib import closing

from rufus_core.gym.combined import HoldingGym
from rufus_core.gym.single_turn import SingleTurnGym
from rufus_core.ports.gym import Gym
from rufus_core.rewards.instructions import BENCHMARKS, verify_benchmark
from rufus_core.rewards.judges import LEXICAL, make_judge
from rufus_core.rewards.rubrics import score_rubrics
from rufus_core.sandbox.lazy import LazySandbox
from rufus_core.stages.stage import GymContext, Stage
from rufus_core.types import Episode, Verdict


def open_gym(context: GymContext) -> Gym:
    judge = make_judge(context.settings.models.judge or LEXICAL, meter=context.meter)
    sandbox = LazySandbox(lambda: context.code_sandbox(context.workers))

    def verify(episode: Episode) -> Verdict:
        if episode.problem.family in BENCHMARKS:
            return verify_benchmark(episode.problem, episode.final_text)
        return score_rubrics(episode.problem, episode.final_text, judge, sandbox)

    return HoldingGym(SingleTurnGym(verify), closing(judge), sandbox)


STAGE = Stage("if_rl", families=("instructions", *BENCHMARKS), open_gym=open_gym)
