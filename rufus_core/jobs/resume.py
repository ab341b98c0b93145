"""What a training goes on from."""

from __future__ import annotations

import threading

from rufus_core.errors import LineageError
from rufus_core.jobs.job import Job
from rufus_core.training.state import TrainingState


def training_state(job: Job, steps: int, stop: threading.Event) -> TrainingState:
    """The state to go on from. One that can't be used is told in the job's log, and the training starts anew."""
    state = TrainingState(job.state, job.output, job.document.fingerprint, steps, stop)
    try:
        state.take_up()
    except LineageError as error:
        print(f"warning: {error}; this training starts anew", flush=True)
        state.discard()
    return state
