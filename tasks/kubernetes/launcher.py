"""Jobs of a run in a Kubernetes cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rufus_core.errors import ConfigError
from rufus_core.settings import ExecutionSettings, KubernetesSettings
from tasks.jobs import DOCUMENT, JobResources
from tasks.kubernetes.cluster import Cluster
from tasks.kubernetes.job import KubernetesJob
from tasks.kubernetes.manifests import manifest
from tasks.spawner import job_variables

JOB_COMMAND = ("python", "-m", "rufus_core.jobs")  # of the image; carries out the document that follows


class KubernetesLauncher:
    """Makes jobs whose names in the cluster follow from their folders."""

    def __init__(self, settings: KubernetesSettings, threads: int, command: Sequence[str] | None = None) -> None:
        """`command` carries out a job document. Raises ConfigError without a way to the cluster."""
        self._settings, self._variables = settings, job_variables(threads)
        self._command = tuple(command or JOB_COMMAND)
        self._cluster = Cluster(settings)

    def job(self, folder: Path, resources: JobResources) -> KubernetesJob:
        """Raises ConfigError where the folder isn't on the home's claim, or the job spans nodes as a plain Job."""
        folder = folder.absolute()
        if not folder.is_relative_to(self._settings.home_path):
            raise ConfigError(
                f"the job's folder {folder} isn't on the home's claim",
                where="execution.kubernetes.home_path",
                hint=f"rufus run --home {self._settings.home_path}/...: pods see the home under this path alone",
            )
        command = [*self._command, str(folder / DOCUMENT)]
        make = partial(
            manifest,
            self._settings,
            folder=folder,
            command=command,
            variables=self._variables,
            nodes=resources.nodes,
            gpus_per_node=resources.gpus_per_node,
        )
        return KubernetesJob(folder, self._settings, self._cluster, make)


@contextmanager
def kubernetes_jobs(execution: ExecutionSettings, command: Sequence[str] | None) -> Iterator[KubernetesLauncher]:
    """Raises ConfigError without a way to the cluster."""
    assert execution.kubernetes is not None
    yield KubernetesLauncher(execution.kubernetes, execution.threads, command)
