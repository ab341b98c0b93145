"""Episodes of a training that was really run, as a simulation plays them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from rufus_core.errors import LineageError
from rufus_core.recipe.simulation.episodes import DrawnEpisode, Turn
from rufus_core.rollout.stored import StoredRollout, read_rollouts, step_file, steps_in
from rufus_core.types import Fate


def recorded_episodes(folder: Path) -> list[DrawnEpisode]:
    """Of every step of the training in this folder, but for aborted ones, whose end says nothing of their length.

    Raises:
        LineageError: it has no rollouts, or they can't be read.
    """
    episodes = [episode for step in steps_in(folder) for episode in _of_step(step_file(folder, step))]
    if not episodes:
        hint = "name the checkpoint of an RL stage whose rollouts weren't collected"
        raise LineageError("this training has no rollouts", where=str(folder), hint=hint)
    return episodes


def _of_step(path: Path) -> Iterator[DrawnEpisode]:
    for rollout in read_rollouts(path):
        if rollout.fate is not Fate.ABORTED and any(rollout.loss_mask):
            yield episode_of(rollout)


def episode_of(rollout: StoredRollout) -> DrawnEpisode:
    """Its prompt, and its turns with what followed each. Tools' seconds are in no rollout, and 0 here."""
    spans = [(sampled, len(list(run))) for sampled, run in itertools.groupby(rollout.loss_mask)]
    prompt = 0 if spans[0][0] else spans[0][1]
    turns = []
    for (sampled, tokens), (_, following) in itertools.zip_longest(spans, spans[1:], fillvalue=(0, 0)):
        if sampled:
            turns.append(Turn(tokens, observation_tokens=following))
    return DrawnEpisode(prompt, tuple(turns), rollout.termination.outcome == "context_overflow")
