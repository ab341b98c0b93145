"""RLHF: a reward model's score of the final response; evaluated by an external diagnostic it never saw (section 10)."""

import math

from rufus_core.errors import InfrastructureError
from rufus_core.gym.single_turn import SingleTurnGym
from rufus_core.ports.gym import Gym
from rufus_core.ports.judging import RewardScorer
from rufus_core.rewards.preference import prefers
from rufus_core.stages.stage import GymContext, Stage
from rufus_core.training.reward_scorer import open_reward_scorer
from rufus_core.types import Episode, Verdict


def open_gym(context: GymContext) -> Gym:
    if not context.training:
        return SingleTurnGym(lambda episode: prefers(episode.problem, episode.final_text))
    scorer = open_reward_scorer(context.settings.models.reward_model, context.reward_model)
    return SingleTurnGym(lambda episode: raw_score(episode, scorer))


def raw_score(episode: Episode, scorer: RewardScorer) -> Verdict:
    """The raw score of the policy's own response (RM-R1); one that is no finite number is nobody's reward."""
    try:
        [score] = scorer.scores([(episode.problem.prompt, episode.final_text or "")])
    except InfrastructureError as error:
        return Verdict.aborted(f"the reward model gave no score: {error}")
    if not math.isfinite(score):
        return Verdict.aborted(f"the reward model's score is {score}")
    return Verdict.scored(score, score > 0)


STAGE = Stage("rlhf", families=("chat",), open_gym=open_gym)
