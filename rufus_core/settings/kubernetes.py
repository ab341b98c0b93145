"""Where jobs run in a Kubernetes cluster. Placement: part of no fingerprint."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rufus_core.types import Frozen, Json

Label = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]  # DNS-1123
Quantity = Annotated[str, Field(pattern=r"^\d+(\.\d+)?(m|[kMGTP]i?)?$", coerce_numbers_to_str=True)]  # "16Gi", "500m"
AbsolutePath = Annotated[str, Field(pattern=r"^(/[^/\s]+)+$")]
Seconds = Annotated[int, Field(ge=0)]


class NodeSettings(Frozen):
    """What a pod takes of its node, and which nodes it may go to. Requests are limits."""

    cpus: Quantity = "4"
    memory: Quantity = "16Gi"  # with the shared memory, which counts as memory
    shared_memory: Quantity = "1Gi"  # of /dev/shm
    scratch: Quantity = "20Gi"  # of /tmp, on the node's disk
    node_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: tuple[dict[str, Json], ...] = ()  # as Kubernetes writes them


class KubernetesSettings(Frozen):
    """How jobs become Kubernetes' Jobs, or KubeRay's RayJobs where `kind` says so.

    The home lies on the claim `home_claim`, under the same path here and in every pod. Without `kubeconfig` and
    `context` the cluster is that of the pod that this runs in, elsewhere that of KUBECONFIG or of ~/.kube/config.
    """

    image: Annotated[str, Field(min_length=1)]  # with the same release of this project in it
    home_claim: Label
    home_path: AbsolutePath
    kind: Literal["job", "rayjob"] = "job"
    namespace: Label = "rufus-jobs"  # as infra/kubernetes names it; `rufus` is that of the services
    kubeconfig: str | None = None
    context: str | None = None

    cpu_node: NodeSettings = NodeSettings()  # of a job without GPUs
    gpu_node: NodeSettings = NodeSettings(cpus="96", memory="1500Gi", shared_memory="256Gi", scratch="500Gi")
    gpu_resource: str = "nvidia.com/gpu"

    service_account: Label = "default"  # its token isn't in the pods: jobs never speak to the API server
    image_pull_secrets: tuple[Label, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    env_from_secrets: tuple[Label, ...] = ()  # every key is a variable: credentials of stores and judges
    labels: dict[str, str] = Field(default_factory=dict)  # of jobs and pods; kueue.x-k8s.io/queue-name, say
    priority_class: str | None = None
    runtime_class: str | None = None
    run_as: Annotated[int, Field(gt=0)] = 10001  # user and group of the images, who must be able to write to the home
    sandbox_in_pod: bool = False  # let bubblewrap isolate a policy's code inside the pod; see docs/kubernetes.md
    seccomp_profile: str = "RuntimeDefault"  # or Unconfined, or the path of a node's profile under seccomp/

    grace_seconds: Seconds = 120  # from the word to stop to the kill: a training ends its step and saves
    image_patience_seconds: Seconds = 600  # with an image or a container that can't be had
    room_patience_seconds: Seconds = 86400  # with nodes that have no room
    node_patience_seconds: Seconds = 300  # with a node that doesn't end a pod, after its grace
    keep_seconds: Seconds = 86400  # how long ended jobs can be looked at in the cluster

    @model_validator(mode="after")
    def _bubblewrap_needs_system_calls(self) -> Self:
        if self.sandbox_in_pod and self.seccomp_profile == "RuntimeDefault":
            raise ValueError("sandbox_in_pod needs a seccomp_profile that permits mounts and namespaces")
        return self
