"""What a training goes on from."""

from __future__ import annotations

import threading

from rufus_core.errors import InfrastructureError, LineageError
from rufus_core.jobs.job import Job
from rufus_core.training.ranks import ALONE, Ranks
from rufus_core.training.state import FollowedState, TrainingState, Unkept


def training_state(job: Job, steps: int, stop: threading.Event, ranks: Ranks = ALONE) -> Unkept:
    """The state to go on from. One that can't be used is told in the job's log, and the training starts anew.

    Rank 0 decides, and alone keeps a state; the others read what it found.

    Raises:
        InfrastructureError: another rank can't read the state.
    """
    if ranks.rank == 0:
        state = _taken_up(job, steps, stop, ranks)
        ranks.concat([state.position.step])
        return state
    step = ranks.concat(list[int]())[0]
    try:
        return FollowedState(job.state, job.document.fingerprint, step, steps, ranks)
    except LineageError as error:
        hint = "every rank needs the home under the same path"
        raise InfrastructureError(f"rank {ranks.rank}: {error.what}", where=error.where, hint=hint) from error


def _taken_up(job: Job, steps: int, stop: threading.Event, ranks: Ranks) -> TrainingState:
    state = TrainingState(job.state, job.output, job.document.fingerprint, steps, stop, ranks)
    try:
        state.take_up()
    except LineageError as error:
        print(f"warning: {error}; this training starts anew", flush=True)
        state.discard()
    return state
