"""Which reward model scores: the one trained here, or a public one on this machine or behind a server (RM-R1)."""

from __future__ import annotations

import os
from pathlib import Path

from rufus_core.errors import ConfigError
from rufus_core.ports.judging import RewardScorer
from rufus_core.rewards.remote_reward import RemoteRewardModel
from rufus_core.training.reward_model import RewardModel
from rufus_core.training.sequence_reward import ChatRenderer, SequenceRewardModel

FOLDER, URL, API_KEY = "RUFUS_REWARD_MODEL_PATH", "RUFUS_REWARD_MODEL_URL", "RUFUS_REWARD_MODEL_API_KEY"


def open_reward_scorer(name: str | None, trained: Path | None) -> RewardScorer:
    """The reward model that a recipe names, or the one that it trains where it names none.

    RUFUS_REWARD_MODEL_PATH is the folder of a named one. With RUFUS_REWARD_MODEL_URL SGLang serves the model, and only
    the tokenizer of that folder is read, with its chat template.

    Raises:
        ConfigError: there is none, or it isn't where the environment says.
    """
    if name is None:
        if trained is None:
            raise ConfigError("this stage has no reward model", hint="give `reward_model` or `models.reward_model`")
        return RewardModel.load(trained)
    folder = os.environ.get(FOLDER)
    if not folder:
        raise ConfigError(f"the reward model {name!r} needs a folder", hint=f"set {FOLDER} to where it lies")
    if url := os.environ.get(URL):
        return RemoteRewardModel(name, url, ChatRenderer(Path(folder)).text, os.environ.get(API_KEY))
    return SequenceRewardModel(Path(folder), name)
