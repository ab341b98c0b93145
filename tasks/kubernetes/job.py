"""A job in the cluster: created at most once for each attempt, joined while it lives, cancelled for certain."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from rufus_core.errors import InfrastructureError, JobFailed, JobLost, JobNotStarted
from rufus_core.lineage.files import locked
from rufus_core.settings import KubernetesSettings
from tasks.jobs import LOG, JobCancelled, Progress, pass_on, tail
from tasks.kubernetes.attempts import Attempt
from tasks.kubernetes.cluster import AlreadyExists, Cluster, Object, Unreachable
from tasks.kubernetes.names import object_name
from tasks.kubernetes.patience import Patience
from tasks.kubernetes.verdict import Ended, Failed, TakenAway, Verdict, alive, judge
from tasks.kubernetes.watching import Bell, backoff

POLL_SECONDS = 0.1
CONFIRM_SECONDS = 0.5  # between two looks at what is to end
AT_ONCE_SECONDS = 1  # of grace: with 0 the cluster would forget a pod that may run on

Manifest = Callable[[str], Object]  # of a name


class KubernetesJob:
    """The job of one folder, which lies on the home's claim; see `LaunchedJob`."""

    def __init__(self, folder: Path, settings: KubernetesSettings, cluster: Cluster, manifest: Manifest) -> None:
        self.folder = folder
        self.log = folder / LOG
        self._settings, self._cluster, self._manifest = settings, cluster, manifest

    def start(self, prepare: Callable[[], None]) -> bool:
        """Raises JobLost where the API server doesn't answer, ConfigError where it refuses."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder / "kubernetes.lock"):
            try:
                attempt = self._next()
                if attempt.created:
                    return True
                prepare()
                self.log.touch()
                try:
                    self._of(attempt).create(self._manifest(object_name(self.folder, attempt.number)))
                    joined = False
                except AlreadyExists:  # asked for before, by us or by another host's run
                    joined = True
            except Unreachable as error:
                raise JobLost(f"Kubernetes' API server doesn't answer: {error}") from error
            attempt.model_copy(update={"created": True}).save(self.folder)
            return joined

    def wait(
        self,
        progress_file: Path,
        on_progress: Progress,
        cancelled: threading.Event,
        at_once: threading.Event | None = None,
    ) -> int | None:
        """Passes on as a warning why it can't begin, and that the API server is away.

        Raises:
            JobCancelled: after `cancelled` was set. Its pods are gone by then.
            JobLost: the cluster took its node, or the node doesn't answer.
            JobNotStarted: it couldn't begin for as long as the settings have patience.
            JobFailed: the cluster says why another try would fail, too.
        """
        attempt = self._last()
        name, cluster = object_name(self.folder, attempt.number), self._of(attempt)
        lines = tail(progress_file)
        try:
            with Bell(cluster, name) as bell:
                watched = Patience(self._settings, lambda text: on_progress({"warning": text}))
                next_look = 0.0
                while not isinstance(verdict := watched.verdict, Ended | TakenAway | Failed):
                    if bell.rang() or time.monotonic() >= next_look:
                        next_look = time.monotonic() + _look(cluster, name, watched)
                    pass_on(lines, on_progress)
                    if cancelled.wait(POLL_SECONDS):
                        raise JobCancelled
            pass_on(lines, on_progress)
        except BaseException:
            self.cancel(at_once or threading.Event())
            raise
        return self._told(attempt, verdict, watched)

    def cancel(self, at_once: threading.Event) -> None:
        """Delete the job; on return none of its pods is left. They have their grace unless `at_once` is set.

        Raises InfrastructureError where that can't be confirmed: the next run then joins the job.
        """
        attempt = Attempt.last(self.folder)
        if attempt is None or attempt.over:
            return
        self._remove(attempt, at_once)
        self._over()

    def lives(self) -> bool:
        """Whether its last attempt lives. One that nobody can be asked about is taken to live."""
        last = Attempt.last(self.folder)
        if last is None or last.over:
            return False
        name = object_name(self.folder, last.number)
        try:
            return not isinstance(judge(*self._of(last).seen(name)), Ended | TakenAway | Failed)
        except Unreachable:
            return True

    def _next(self) -> Attempt:
        """The attempt to create, or to join where it is `created`."""
        last, (kind, namespace) = Attempt.last(self.folder), (self._settings.kind, self._settings.namespace)
        if last is not None and not last.over:
            name = object_name(self.folder, last.number)
            job, pods = self._of(last).seen(name)
            if not isinstance(judge(job, pods), Ended | TakenAway | Failed):
                return last.model_copy(update={"created": True})
            same = (last.kind, last.namespace) == (kind, namespace)
            if job is None and not last.created and same:  # asked for, and never answered: it may still come to be
                return last
            if job is not None and _outlives_its_work(last):
                self._remove(last, threading.Event())
        return Attempt(number=last.number + 1 if last else 1, kind=kind, namespace=namespace).save(self.folder)

    def _of(self, attempt: Attempt) -> Cluster:
        """Where this attempt was created: the settings may name another kind or namespace by now."""
        return self._cluster.at(attempt.kind, attempt.namespace)

    def _last(self) -> Attempt:
        attempt = Attempt.last(self.folder)
        assert attempt is not None, "it was started"
        return attempt

    def _told(self, attempt: Attempt, verdict: Verdict, watched: Patience) -> int | None:
        """The exit code of what has ended, its pods gone. Raises what has to be raised."""
        name = object_name(self.folder, attempt.number)
        if _outlives_its_work(attempt) or watched.gave_up or watched.lost:
            self._remove(attempt, threading.Event(), lost=watched.lost)
        self._over()
        match verdict:
            case Ended(code, said):
                if said:
                    with self.log.open("a") as log:
                        log.write(said + "\n")
                return code
            case TakenAway(why):
                raise JobLost(f"{why} [{name}]")
            case Failed(why, hint):
                raise (JobNotStarted if watched.gave_up else JobFailed)(f"{why} [{name}]", hint=hint)
        raise AssertionError(verdict)

    def _over(self) -> None:
        self._last().model_copy(update={"over": True}).save(self.folder)

    def _remove(self, attempt: Attempt, at_once: threading.Event, lost: bool = False) -> None:
        """Delete the job and wait until no pod of it is left; of a node that was given up nobody waits for pods."""
        name, cluster = object_name(self.folder, attempt.number), self._of(attempt)
        grace, patience = self._settings.grace_seconds, self._settings.node_patience_seconds
        deadline = time.monotonic() + grace + patience
        asked, hurried, failures = False, False, 0
        while time.monotonic() < deadline:
            try:
                if not asked:
                    cluster.delete(name)
                    asked = True
                pods = [pod for pod in cluster.pods(name) if alive(pod)]
                if lost or (not pods and cluster.get(name) is None):
                    return
                if at_once.is_set() and not hurried:
                    for pod in pods:
                        cluster.delete_pod(pod["metadata"]["name"], AT_ONCE_SECONDS)
                    hurried = True
                failures = 0
            except Unreachable:
                failures += 1
            time.sleep(backoff(failures) if failures else CONFIRM_SECONDS)
        hint = f"kubectl delete job,rayjob {name} -n {attempt.namespace}, or the next run joins it"
        raise InfrastructureError(f"nobody can say that the job {name} is gone", hint=hint)


def _look(cluster: Cluster, name: str, watched: Patience) -> float:
    """Look at the job; seconds until the next look."""
    try:
        verdict = judge(*cluster.seen(name))
    except Unreachable as error:
        return watched.away(error)
    return watched.saw(verdict)


def _outlives_its_work(attempt: Attempt) -> bool:
    """Whether pods are left when the work has ended: KubeRay's are, until it has ended them."""
    return attempt.kind == "rayjob"
