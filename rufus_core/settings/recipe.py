"""Settings of a whole recipe."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rufus_core.settings.architecture import ArchitectureSettings, NonNegative, Positive
from rufus_core.settings.compute import ComputeSettings, LayoutSettings
from rufus_core.settings.kubernetes import KubernetesSettings
from rufus_core.settings.layout import data_parallel_of
from rufus_core.settings.planning import PriceSettings
from rufus_core.settings.sglang import SGLangSettings
from rufus_core.settings.stage import OptimizerSettings, StageSettings
from rufus_core.types import Frozen, Json


class PolicyShape(Frozen):
    """Shape of the GLM-4.5-Air miniature (`Glm4MoeForCausalLM`)."""

    hidden_size: Positive = 128
    num_layers: Positive = 2
    first_dense_layers: int = 1
    num_heads: Positive = 4
    num_kv_heads: Positive = 2
    head_dim: Positive = 32
    intermediate_size: Positive = 256
    expert_intermediate_size: Positive = 64
    num_experts: Positive = 8
    experts_per_token: Positive = 2
    num_shared_experts: int = 1
    context_tokens: Positive = 1024
    num_words: Positive = 640  # whole-word tokens at most; other text falls back to letters and bytes


class PretrainSettings(Frozen):
    """Step 0: sequences in which random parts recur, until the miniature can copy."""

    steps: Positive
    batch_sequences: Positive = 64
    span_tokens: Positive = 12
    max_gap_tokens: int = 7
    optimizer: OptimizerSettings


class GgufSettings(Frozen):
    """A GGUF file: by its own path, or by its path inside an installed Python package, which is not imported."""

    file: str
    package: str | None = None  # a top-level package by its import name
    requirement: str | None = None  # what to install where the package is missing, for the hint


class BaseModelSettings(Frozen):
    """The base policy: a directory (`path`), else a GGUF file, else a miniature made here from the seed (`shape`)."""

    name: str
    path: str | None = None
    gguf: GgufSettings | None = None
    shape: PolicyShape | None = None
    pretrain: PretrainSettings | None = None
    architecture: ArchitectureSettings | None = None  # for the plan, where there is no directory to read it from
    total_params: str | None = None  # as printed, for the plan
    active_params: str | None = None


class BenchmarkSettings(Frozen):
    """One benchmark and its protocol. `heldout` scores a stage's held-out problems; `external` names a harness."""

    kind: Literal["heldout", "external"]
    title: str = ""
    stage: str | None = None  # heldout: whose problems and environment
    num_problems: Positive | None = None
    samples_per_problem: Positive = 4
    temperature: float = 1.0
    metric: str = "pass@1"
    release: str | None = None  # version or window of the benchmark, printed with its numbers
    response_budget_tokens: Positive | None = None  # None: the stage's
    harness: str | None = None
    judge: str | None = None
    user_simulator: str | None = None  # SIM-01

    @model_validator(mode="after")
    def _heldout_names_its_stage(self) -> Self:
        if self.kind == "heldout" and self.stage is None:
            raise ValueError("a heldout benchmark needs a stage")
        return self


class NgramScreenSettings(Frozen):
    """Detectors A and B: an item hits a sample that holds enough of its phrases (DECON-01 to 08)."""

    benchmarks: tuple[str, ...]  # chained in this order
    phrase_words: Positive = 8
    phrases_per_item: Positive | None = None  # evenly spaced; None takes every phrase
    drop_share: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5  # drop from this share of phrases on
    whole_item_min_words: Positive = 5  # an item shorter than a phrase is one phrase, down to this length


class DenseScreenSettings(Frozen):
    """Detector C: near neighbours in an embedding, judged by hand (DECON-09)."""

    benchmarks: tuple[str, ...]
    model: str
    min_cosine: Annotated[float, Field(ge=-1.0, le=1.0)] = 0.8
    neighbours_per_problem: Positive = 50


class DecontaminationSettings(Frozen):
    """Screens of the SFT mix and of every RL prompt set (DECON-12)."""

    sampled: NgramScreenSettings
    exhaustive: NgramScreenSettings
    dense: DenseScreenSettings


ClusterAddress = Annotated[str, Field(pattern=r"^(ray://)?[^/]+:\d+$")]  # host:port, ray://host:port
HttpAddress = Annotated[str, Field(pattern=r"^https?://[^/]+/?$")]


class ExecutionSettings(Frozen):
    """How a run uses its machine or cluster. Never part of a fingerprint."""

    trainer: Literal["torch", "megatron"] = "torch"  # what trains a stage's policy
    engine: Literal["embedded", "sglang"] = "embedded"  # what rolls it out, screens and scores with it
    launcher: Literal["local", "ray", "kubernetes"] = "local"  # what starts the jobs
    kubernetes: KubernetesSettings | None = None  # of the launcher of that name
    layout: LayoutSettings = LayoutSettings()  # of stages that say none; for megatron
    sglang: SGLangSettings = SGLangSettings()

    threads: Positive = 2  # torch threads of a job that trains
    scoring_threads: Positive = 1  # of one that scores: two side by side use two cores better than one after the other
    rollout_workers: Positive = 2  # threads that run tools and verifiers
    device: Literal["cpu", "cuda"] = "cpu"  # that the torch trainer trains on; cuda where a stage names GPUs
    data_parallel: Positive = 1  # copies of a trained policy, which share its steps; with GPUs as many as they hold
    ray_address: ClusterAddress | None = None  # of the Ray cluster they run on; None: the job's own, on this machine
    ray_dashboard: HttpAddress | None = None  # launcher ray: where the cluster's head takes jobs
    ray_resources: dict[str, float] = Field(default_factory=dict)  # what each asks of Ray beside its threads as CPU
    gym_actors: NonNegative = 0  # of that cluster, which play a training's environments; 0: the training's own process
    job_tries: Positive = 3  # of a job whose process or machine went away; no other failure is tried again
    retry_seconds: Annotated[float, Field(ge=0.0)] = 5.0  # until the second try; the wait for each later one is longer
    allow_unisolated_code: bool = False  # run a policy's code without a sandbox where the kernel offers none
    sandbox: Literal["local", "e2b"] = "local"  # where a policy's code runs: on this machine, or in E2B's microVMs
    sandbox_template: str | None = None  # e2b: the prepared image of a microVM (CA-E2)
    sandbox_domain: str | None = None  # e2b: of a deployment of one's own; None: E2B_DOMAIN, else E2B's
    sandbox_url: str | None = None  # e2b: one address that serves both API and sandboxes, instead of a domain

    @model_validator(mode="after")
    def _microvms_have_a_template(self) -> Self:
        if self.sandbox == "e2b" and not self.sandbox_template:
            raise ValueError("sandbox: e2b needs a sandbox_template")
        return self

    @model_validator(mode="after")
    def _ray_jobs_have_a_head(self) -> Self:
        if self.launcher == "ray" and not self.ray_dashboard:
            raise ValueError("launcher: ray needs a ray_dashboard")
        return self

    @model_validator(mode="after")
    def _a_cluster_is_described(self) -> Self:
        if self.launcher == "kubernetes" and self.kubernetes is None:
            raise ValueError("launcher: kubernetes needs kubernetes: {image, home_claim, home_path}")
        return self

    def for_step(self, kind: str, compute: ComputeSettings | None = None) -> ExecutionSettings:
        """The settings of a job that makes an artifact of this kind on the machines of `compute`; None: on a CPU.

        A training takes all GPUs that its stage names: each rank has one, and ranks that hold no part of one copy of
        the policy are data parallel. Engines take them in turns with it, or have the extra nodes. Everything else is
        one process, whose engines have the GPUs of one node.

        Raises:
            ConfigError: the GPUs can't be divided so.
        """
        threads = self.scoring_threads if kind == "scores" else self.threads
        alone = self.model_copy(update={"threads": threads, "data_parallel": 1, "layout": LayoutSettings()})
        settings = self.model_copy(update={"layout": (compute and compute.layout) or self.layout})
        if compute is None or not compute.gpus_per_node:
            return settings if kind == "training" else alone
        sglang = self.sglang if self.sglang.urls else self.sglang.on(compute, training=kind == "training")
        update: dict[str, object] = {"device": "cuda", "sglang": sglang}
        if kind != "training":
            return alone.model_copy(update=update)
        ranks = compute.nodes * compute.gpus_per_node
        update["data_parallel"] = data_parallel_of(ranks, settings.layout, "compute.layout")
        update["ray_resources"] = {"GPU": 1.0, **self.ray_resources}
        return settings.model_copy(update=update)

    @property
    def num_ranks(self) -> int:
        """Processes that a training is shared by."""
        return self.data_parallel * self.layout.model_parallel

    @property
    def cores(self) -> int:
        """Of this machine, that a job takes."""
        if self.launcher != "local":
            return 0
        return self.threads if self.ray_address else self.threads * self.num_ranks


class Recipe(Frozen):
    name: str
    profile: str = ""
    seed: int = 0
    base: BaseModelSettings
    stages: dict[str, StageSettings]  # ordered by parent
    decontamination: DecontaminationSettings | None = None
    benchmarks: dict[str, BenchmarkSettings] = Field(default_factory=dict)
    pins: dict[str, str] = Field(default_factory=dict)  # INF-01, T15
    gpu_hour_price: float | None = None
    prices: PriceSettings = PriceSettings()
    execution: ExecutionSettings = ExecutionSettings()
    published: dict[str, Json] = Field(default_factory=dict)  # printed facts that no step uses

    @property
    def registered(self) -> str:
        """The name of its model in MLflow's registry, and the alias of its last checkpoint."""
        return self.name.replace("_", "-")
