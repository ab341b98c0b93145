"""The few calls of Kubernetes' API that jobs need, with errors that say whether to wait, to mend or to give up."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rufus_core.errors import ConfigError
from rufus_core.settings import KubernetesSettings
from tasks.kubernetes.names import JOB_LABEL

Object = dict[str, Any]  # as Kubernetes writes it

KINDS = {"job": ("batch", "v1", "jobs"), "rayjob": ("ray.io", "v1", "rayjobs")}
CALL_SECONDS = (5.0, 30.0)  # to connect, and between two bytes of an answer
WATCH_SECONDS = 300  # then the server ends a watch, and the next one begins
_TRANSIENT = {408, 409, 425, 429}  # 409: it met another change, of a quota, say


class Unreachable(Exception):
    """The API server doesn't answer, or asks for patience. Whether it did what it was asked for isn't known."""


class AlreadyExists(Exception):
    """An object of that name is there."""


class WatchExpired(Exception):
    """The changes since then are no longer kept: list again."""


class Cluster:
    """One kind of job in one namespace. Its calls may come from several threads.

    They raise Unreachable, or ConfigError where the server refuses what was asked for.
    """

    def __init__(self, settings: KubernetesSettings) -> None:
        """Raises ConfigError without the client library, or a way to the cluster."""
        try:
            from kubernetes import client
        except ImportError as error:
            raise ConfigError("execution.launcher: kubernetes needs its client", hint=_INSTALL) from error
        configuration = _configuration(settings)
        configuration.retries = False  # ours are told and counted
        api = client.ApiClient(configuration)
        self._objects, self._pods = client.CustomObjectsApi(api), client.CoreV1Api(api)
        self._plain = api.sanitize_for_serialization
        self._look_at(settings.kind, settings.namespace)

    def at(self, kind: str, namespace: str) -> Cluster:
        """The same cluster's jobs of this kind and namespace."""
        other = copy.copy(self)
        other._look_at(kind, namespace)
        return other

    def _look_at(self, kind: str, namespace: str) -> None:
        self._namespace = namespace
        self._place = dict(zip(("group", "version", "plural"), KINDS[kind], strict=True)) | {"namespace": namespace}

    def create(self, manifest: Mapping[str, Any]) -> None:
        """Raises AlreadyExists."""
        with _told("create"):
            self._objects.create_namespaced_custom_object(**self._place, body=manifest, **_WITHIN)

    def get(self, name: str) -> Object | None:
        with _told("get"):
            try:
                return self._objects.get_namespaced_custom_object(**self._place, name=name, **_WITHIN)
            except _api_exception() as error:
                if error.status == 404:
                    return None
                raise

    def pods(self, name: str) -> list[Object]:
        """The pods of a job."""
        with _told("list"):
            found = self._pods.list_namespaced_pod(self._namespace, label_selector=f"{JOB_LABEL}={name}", **_WITHIN)
        return list(self._plain(found)["items"])

    def seen(self, name: str) -> tuple[Object | None, list[Object]]:
        """A job and its pods. The pods are looked at first: a job that has ended may have lost them since."""
        pods = self.pods(name)
        return self.get(name), pods

    def delete(self, name: str) -> None:
        """Ask for the end of a job and of all its pods. It is in the cluster until the last of them is gone."""
        with _told("delete"):
            call = self._objects.delete_namespaced_custom_object
            _if_there(lambda: call(**self._place, name=name, propagation_policy="Foreground", **_WITHIN))

    def delete_pod(self, name: str, grace_seconds: int) -> None:
        with _told("delete"):
            call = self._pods.delete_namespaced_pod
            _if_there(lambda: call(name, self._namespace, grace_period_seconds=grace_seconds, **_WITHIN))

    def changes(self, name: str, pods: bool, stopped: threading.Event) -> Iterator[None]:
        """Once at the beginning, and again whenever the job (or its pods) changed, until the server ends the watch.

        Raises WatchExpired.
        """
        from kubernetes.watch import Watch

        asked = {"label_selector": f"{JOB_LABEL}={name}"} | (
            {"namespace": self._namespace} if pods else dict(self._place)
        )
        call = self._pods.list_namespaced_pod if pods else self._objects.list_namespaced_custom_object
        with _told("watch"):
            listed = self._plain(call(**asked, **_WITHIN))
            yield
            since = listed["metadata"]["resourceVersion"]
            within = {"timeout_seconds": WATCH_SECONDS, "_request_timeout": (CALL_SECONDS[0], WATCH_SECONDS + 30)}
            for _ in Watch().stream(call, **asked, resource_version=since, **within):
                if stopped.is_set():
                    return
                yield


_INSTALL = "pip install 'rufus-air[kubernetes]'"
_WITHIN = {"_request_timeout": CALL_SECONDS}


def _configuration(settings: KubernetesSettings) -> Any:
    from kubernetes import client, config

    configuration = client.Configuration()
    named = settings.kubeconfig is not None or settings.context is not None
    try:
        if not named and _in_cluster():
            config.load_incluster_config(client_configuration=configuration)
        else:
            config.load_kube_config(
                config_file=settings.kubeconfig, context=settings.context, client_configuration=configuration
            )
    except (config.ConfigException, OSError) as error:
        hint = "execution.kubernetes.kubeconfig and context, or KUBECONFIG"
        raise ConfigError(f"no way to a Kubernetes cluster: {error}", hint=hint) from error
    return configuration


def _in_cluster() -> bool:
    from kubernetes.config import incluster_config

    return Path(incluster_config.SERVICE_TOKEN_FILENAME).exists()


def _api_exception() -> Any:
    from kubernetes.client.exceptions import ApiException

    return ApiException


def _if_there(call: Callable[[], object]) -> None:
    try:
        call()
    except _api_exception() as error:
        if error.status != 404:
            raise


@contextmanager
def _told(verb: str) -> Iterator[None]:
    """Turns the client's errors into ours."""
    from urllib3.exceptions import HTTPError

    try:
        yield
    except _api_exception() as error:
        if _reason(error) == "AlreadyExists":
            raise AlreadyExists from error
        if error.status == 410 and verb == "watch":
            raise WatchExpired from error
        said = _said(error)
        if error.status in _TRANSIENT or not error.status or error.status >= 500:
            raise Unreachable(said) from error
        hint = _OF_QUOTA if "exceeded quota" in said else _HINTS.get(error.status)
        raise ConfigError(f"Kubernetes refuses to {verb}: {said}", hint=hint) from error
    except (HTTPError, OSError, json.JSONDecodeError) as error:  # also an answer that was cut off
        raise Unreachable(str(error)) from error


_OF_QUOTA = "raise the namespace's quota (infra/kubernetes/base/quotas.yaml); ended jobs count, for keep_seconds"
_HINTS = {
    401: "the credentials of the kubeconfig or service account are not known to the cluster",
    403: "the role of infra/kubernetes: get, list, watch, create, delete of jobs, rayjobs and pods",
    404: "is there such a namespace, and KubeRay's operator for a rayjob?",
    422: "execution.kubernetes says something that the cluster doesn't take",
}


def _reason(error: Any) -> str:
    """The word by which the server tells errors of one status apart."""
    try:
        return str(json.loads(error.body)["reason"])
    except (ValueError, TypeError, KeyError):
        return ""


def _said(error: Any) -> str:
    """What the server said of an error, in one line."""
    try:
        return str(json.loads(error.body)["message"])
    except (ValueError, TypeError, KeyError):
        return f"{error.status} {error.reason}"
