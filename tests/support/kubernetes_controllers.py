"""The controllers of the tests' cluster: pods of jobs, and processes of pods.

They follow Kubernetes in what the launcher relies on: one pod for each Job with backoffLimit 0, the conditions of Jobs
and pods, graceful and foreground deletion, eviction. A RayJob is a head that runs the entrypoint, and workers without a
process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.support import kubernetes_pod
from tests.support.kubernetes_objects import Object, State, condition, created, mark_deleted

TICK_SECONDS = 0.02
NODE = "node-1"


class Controllers:
    """Bring what runs to what is asked for, one tick after the other."""

    def __init__(self, state: State) -> None:
        self._state = state

    def run(self) -> None:
        while True:
            with self._state.changed:
                if self._state.knob_once("compact"):
                    self._state.forget_events()
                for kind, make in (("jobs", self._make_pod), ("rayjobs", self._make_cluster)):
                    for owner in list(self._state.objects[kind].values()):
                        self._reconcile(kind, owner, make)
                for pod in list(self._state.objects["pods"].values()):
                    self._run_pod(pod)
            time.sleep(TICK_SECONDS)

    def _reconcile(self, kind: str, owner: Object, make: Callable[[Object], None]) -> None:
        name = owner["metadata"]["name"]
        mine = [pod for pod in self._state.objects["pods"].values() if pod["owner"] == name]
        if "deletionTimestamp" in owner["metadata"]:
            for pod in mine:
                self._delete(pod)
            if not mine:
                self._state.remove(kind, name)
        elif not owner["status"]:
            if self._state.knob("no-pod") is None:
                make(owner)
                owner["status"] = {"active": 1} if kind == "jobs" else {"jobDeploymentStatus": "Initializing"}
                self._state.put(kind, owner)
        elif kind == "jobs":
            self._job_status(owner, mine)
        else:
            self._ray_status(owner, mine)

    def _make_pod(self, job: Object) -> None:
        template = job["spec"]["template"]
        self._add_pod(job, template, f"{job['metadata']['name']}-x", template["spec"]["containers"][0]["command"])

    def _make_cluster(self, job: Object) -> None:
        spec, name = job["spec"]["rayClusterSpec"], job["metadata"]["name"]
        head = ["/bin/sh", "-c", job["spec"]["entrypoint"]]
        self._add_pod(job, spec["headGroupSpec"]["template"], f"{name}-head", head)
        for group in spec["workerGroupSpecs"]:
            for number in range(group["replicas"]):
                self._add_pod(job, group["template"], f"{name}-worker-{number}", None)

    def _add_pod(self, owner: Object, template: Object, name: str, command: list[str] | None) -> None:
        meta = {**template["metadata"], "name": name}
        pod = created("pods", owner["metadata"]["namespace"], {"metadata": meta, "spec": {**template["spec"]}})
        pod |= {"owner": owner["metadata"]["name"], "command": command}
        pod["status"] = {"phase": "Pending"}
        self._state.put("pods", pod)

    def _run_pod(self, pod: Object) -> None:
        phase, deleted = pod["status"]["phase"], "deletionTimestamp" in pod["metadata"]
        if phase == "Pending":
            self._remove(pod) if deleted else self._begin(pod)
        elif phase == "Running":
            self._go_on(pod, deleted)
        elif deleted:
            self._remove(pod)

    def _begin(self, pod: Object) -> None:
        told = json.dumps(pod["status"], sort_keys=True)
        if (why := self._state.knob("unschedulable")) is not None:
            condition(pod, "PodScheduled", "False", "Unschedulable", why)
        else:
            condition(pod, "PodScheduled", "True", "Scheduled", "")
            pod["spec"]["nodeName"] = NODE
            if (why := self._state.knob("image")) is not None:
                waits = {"reason": "ImagePullBackOff", "message": why}
                pod["status"]["containerStatuses"] = [self._container(pod, {"waiting": waits})]
            else:
                self._spawn(pod)
                pod["status"] |= {"phase": "Running", "containerStatuses": [self._container(pod, {"running": {}})]}
        if json.dumps(pod["status"], sort_keys=True) != told:
            self._state.put("pods", pod)

    def _spawn(self, pod: Object) -> None:
        if pod["command"] is None:
            return
        folder = self._place(pod)
        folder.mkdir(parents=True)
        env = {one["name"]: one["value"] for one in pod["spec"]["containers"][0].get("env", [])}
        (folder / "pod.json").write_text(json.dumps({"command": pod["command"], "env": env}))
        shim = [sys.executable, "-S", str(Path(kubernetes_pod.__file__)), str(folder)]
        subprocess.Popen(shim, stdin=subprocess.DEVNULL, start_new_session=True)

    def _go_on(self, pod: Object, deleted: bool) -> None:
        exit_file = self._place(pod) / "exit"
        if exit_file.exists():
            self._ended(pod, json.loads(exit_file.read_text()))
        elif deleted and self._state.knob("node-lost") is None:
            if pod["command"] is None:
                self._ended(pod, {"code": 143, "reason": "Error"})
            elif time.time() >= pod["kill_at"]:
                self._signal(pod, signal.SIGKILL)
            elif not pod.get("told"):
                pod["told"] = self._stop(pod)

    def _ended(self, pod: Object, told: Object) -> None:
        code, reason = told["code"], told["reason"]
        if self._state.knob_once("out-of-memory"):
            code, reason = 137, "OOMKilled"
        log = self._place(pod) / "log"
        said = log.read_text(errors="replace")[-2000:] if code and log.exists() else ""
        ended = {"exitCode": code, "reason": reason, "message": told.get("message", said)}
        pod["status"] |= {
            "phase": "Failed" if code else "Succeeded",
            "containerStatuses": [self._container(pod, {"terminated": ended})],
        }
        self._state.put("pods", pod)

    def _remove(self, pod: Object) -> None:
        """Once its job has seen how it ended."""
        owner = self._state.objects["jobs"].get(pod["owner"])
        if owner is not None and "deletionTimestamp" not in owner["metadata"]:
            self._job_status(owner, [pod])
        self._state.remove("pods", pod["metadata"]["name"])

    def _job_status(self, job: Object, pods: list[Object]) -> None:
        if job["status"].get("conditions"):
            return
        phases = {pod["status"]["phase"] for pod in pods}
        if phases == {"Succeeded"}:
            condition(job, "Complete", "True", "CompletionsReached", "")
        elif disrupted := next((p for p in pods if p["status"]["phase"] == "Failed" and _disrupted(p)), None):
            name = disrupted["metadata"]["name"]
            message = f"Pod {name} has condition DisruptionTarget matching FailJob rule at index 0"
            condition(job, "Failed", "True", "PodFailurePolicy", message)
        elif not phases & {"Pending", "Running"}:
            condition(job, "Failed", "True", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
        else:
            return
        self._state.put("jobs", job)

    def _ray_status(self, job: Object, pods: list[Object]) -> None:
        status = job["status"]
        if status["jobDeploymentStatus"] in ("Complete", "Failed"):
            for pod in pods:  # shutdownAfterJobFinishes
                self._delete(pod)
            return
        head = next((pod for pod in pods if pod["command"] is not None), None)
        if head is None or _disrupted(head):  # KubeRay takes its time with it
            return
        match head["status"]["phase"]:
            case "Running" if status["jobDeploymentStatus"] != "Running":
                status |= {"jobDeploymentStatus": "Running", "jobStatus": "RUNNING"}
            case "Succeeded":
                status |= {"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"}
            case "Failed":
                code = head["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"]
                message = (
                    f"Job entrypoint command failed with exit code {code if code < 128 else 128 - code}, last logs:"
                )
                status |= {"jobDeploymentStatus": "Failed", "jobStatus": "FAILED", "reason": "AppFailed"}
                status["message"] = message
            case _:
                return
        self._state.put("rayjobs", job)

    def _delete(self, pod: Object) -> None:
        if "deletionTimestamp" not in pod["metadata"]:
            mark_deleted(pod, pod["spec"]["terminationGracePeriodSeconds"])
            self._state.put("pods", pod)

    def _stop(self, pod: Object) -> bool:
        """By its hook where it has one, else by SIGTERM; whether there was a process to hear it."""
        hook = pod["spec"]["containers"][0].get("lifecycle")
        if hook is None or not (self._place(pod) / "pid").exists():
            return self._signal(pod, signal.SIGTERM)
        subprocess.Popen(hook["preStop"]["exec"]["command"], stdin=subprocess.DEVNULL, start_new_session=True)
        return True

    def _signal(self, pod: Object, number: int) -> bool:
        """Whether there was a process to hear it: SIGTERM is for the leader, SIGKILL for all."""
        try:
            pid = int((self._place(pod) / "pid").read_text())
        except FileNotFoundError:
            return False
        with suppress(ProcessLookupError):
            os.killpg(pid, number) if number == signal.SIGKILL else os.kill(pid, number)
        return True

    def _place(self, pod: Object) -> Path:
        return self._state.folder / "pods" / pod["metadata"]["uid"]

    @staticmethod
    def _container(pod: Object, state: Object) -> Object:
        return {
            "name": pod["spec"]["containers"][0]["name"],
            "image": "image",
            "imageID": "",
            "ready": "running" in state,
            "restartCount": 0,
            "state": state,
        }


def _disrupted(pod: Object) -> bool:
    return any(one["type"] == "DisruptionTarget" for one in pod["status"].get("conditions", []))
