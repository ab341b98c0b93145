"""Stored rollouts as episodes: prompt, turns and what followed each come from the loss mask."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rufus_core.errors import LineageError
from rufus_core.recipe.simulation.episodes import Turn
from rufus_core.recipe.simulation.recorded import episode_of, recorded_episodes
from rufus_core.rollout.stored import step_file, write_rollouts
from rufus_core.types import Fate, Termination
from tests.rollout.test_stored import rollout


def masked(mask: str, **changes):
    bits = [int(bit) for bit in mask]
    tokens = {"token_ids": [1] * len(bits), "loss_mask": bits, "logprobs": [0.0] * len(bits), "routed_experts": None}
    return replace(rollout(), **tokens, **changes)


def test_runs_of_the_mask_are_prompt_turns_and_observations() -> None:
    episode = episode_of(masked("000110001", termination=Termination.TASK_COMPLETE))
    assert (episode.prompt_tokens, episode.truncated) == (3, False)
    assert episode.turns == (Turn(2, observation_tokens=3), Turn(1))
    assert episode.num_tokens == 9


def test_an_episode_that_was_cut_off_says_so() -> None:
    assert episode_of(masked("01", termination=Termination.MAX_GENERATION_LENGTH)).truncated


def test_all_steps_of_a_training_but_for_what_was_aborted(tmp_path) -> None:
    write_rollouts(step_file(tmp_path, 1), [masked("0111"), masked("01", fate=Fate.ABORTED)])
    write_rollouts(step_file(tmp_path, 2), [masked("011")])
    assert [episode.sampled_tokens for episode in recorded_episodes(tmp_path)] == [3, 2]


def test_a_training_without_rollouts_is_refused(tmp_path) -> None:
    with pytest.raises(LineageError, match="no rollouts"):
        recorded_episodes(tmp_path)
