"""How rollouts by SGLang are placed. Never part of a fingerprint."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rufus_core.settings.architecture import Positive
from rufus_core.settings.compute import ComputeSettings
from rufus_core.settings.layout import num_engines_of
from rufus_core.types import Frozen

Address = Annotated[str, Field(pattern=r"^https?://[^/\s]+$")]  # http://host:port


class SGLangSettings(Frozen):
    """Servers that a job starts on its own machine, or servers that run already (`urls`)."""

    python: str | None = None  # of the environment that SGLang is installed in; None: the job's own
    urls: tuple[Address, ...] = ()
    num_engines: Positive = 1
    tensor_parallel: Positive = 1  # GPUs of one server
    device: Literal["cuda", "cpu"] = "cuda"
    memory_fraction: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None  # of a GPU, for weights and cache
    max_total_tokens: Positive | None = None  # in the cache of one server
    max_running_requests: Positive | None = None  # of one server, which queues the others
    deterministic: bool = False  # seeds decide what is sampled, whatever runs beside it; slower, and on GPUs alone
    weights: Literal["disk", "broadcast"] = "disk"  # how they come from the trainer: a folder, or a process group
    broadcast_host: str = "127.0.0.1"  # of rank 0, as the servers reach it
    colocated: bool = False  # the servers leave their GPUs to the trainer while it works (SLM-10)
    start_seconds: Positive = 1800  # until a server has loaded its weights and sampled a token
    request_seconds: Positive = 7200  # until a reply is there
    requests_at_once: Positive = 256  # to one server
    extra_args: tuple[str, ...] = ()  # of sglang.launch_server, behind ours
    environment: dict[str, str] = Field(default_factory=dict)  # of the servers, beside the job's own

    @model_validator(mode="after")
    def _running_servers_have_their_own_ways(self) -> Self:
        starting = {"python", "num_engines", "memory_fraction", "max_total_tokens"}
        starting |= {"max_running_requests", "extra_args", "environment"}
        if not self.urls:
            return self
        plain = SGLangSettings()  # and not `model_fields_set`: a job's document sets every field
        if idle := sorted(name for name in starting if getattr(self, name) != getattr(plain, name)):
            raise ValueError(f"the servers at urls run already: {', '.join(idle)} would change nothing")
        return self

    def on(self, compute: ComputeSettings, *, training: bool) -> SGLangSettings:
        """On the GPUs of a stage, as `gpus_per_rollout_engine` divides them. Raises ConfigError where it can't."""
        of_engine = compute.gpus_per_rollout_engine or compute.gpus_per_node
        nodes = 1 if not training else compute.nodes if compute.colocated else compute.extra_nodes
        gpus = nodes * compute.gpus_per_node
        update = {
            "device": "cuda",
            "tensor_parallel": of_engine,
            "num_engines": num_engines_of(gpus, of_engine, "compute.gpus_per_rollout_engine"),
            "colocated": training and compute.colocated,
        }
        return self.model_copy(update=update)
