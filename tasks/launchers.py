"""Which launcher starts a recipe's jobs: `execution.launcher`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

from rufus_core.errors import ConfigError
from rufus_core.settings import ExecutionSettings
from tasks.jobs import JobLauncher
from tasks.kubernetes.launcher import kubernetes_jobs
from tasks.launcher import local_jobs
from tasks.ray_jobs import ray_jobs

Opened = Callable[[ExecutionSettings, Sequence[str] | None], AbstractContextManager[JobLauncher]]

LAUNCHERS: Mapping[str, Opened] = {"local": local_jobs, "ray": ray_jobs, "kubernetes": kubernetes_jobs}


def open_launcher(
    execution: ExecutionSettings, command: Sequence[str] | None = None
) -> AbstractContextManager[JobLauncher]:
    """The launcher of these settings. On leaving the `with`, jobs live on.

    `command` carries out a job document; None: the launcher's own way. Raises ConfigError where there is no such one.
    """
    if execution.launcher not in LAUNCHERS:
        raise ConfigError(
            f"nothing here starts jobs by {execution.launcher}",
            where="execution.launcher",
            hint=f"it can be {' or '.join(LAUNCHERS)}",
        )
    return LAUNCHERS[execution.launcher](execution, command)
