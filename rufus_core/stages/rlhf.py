"""RLHF: a reward model's score of the final response; evaluated by an external diagnostic it never saw (section 10)."""

from rufus_core.gym.single_turn import SingleTurnGym
from rufus_core.ports import Gym
from rufus_core.rewards.preference import prefers
from rufus_core.stages.stage import GymContext, Stage
from rufus_core.training.reward_model import RewardModel
from rufus_core.types import Episode, Verdict


def open_gym(context: GymContext) -> Gym:
    if not context.training:
        return SingleTurnGym(lambda episode: prefers(episode.problem, episode.final_text))
    assert context.reward_model is not None
    model = RewardModel.load(context.reward_model)

    def score(episode: Episode) -> Verdict:
        value = model.score(episode.problem.prompt, episode.final_text or "")
        return Verdict.scored(value, value > 0)

    return SingleTurnGym(score)


STAGE = Stage("rlhf", families=("chat",), open_gym=open_gym)
