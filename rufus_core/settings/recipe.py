"""Settings of a whole recipe."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rufus_core.settings.stage import OptimizerSettings, Positive, StageSettings
from rufus_core.types import Frozen


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


class BaseModelSettings(Frozen):
    """The base policy: a directory or hub id (`path`), or a miniature made here from the recipe's seed (`shape`)."""

    name: str
    path: str | None = None
    shape: PolicyShape | None = None
    pretrain: PretrainSettings | None = None
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
    harness: str | None = None
    judge: str | None = None


class Recipe(Frozen):
    name: str
    profile: str = ""
    seed: int = 0
    base: BaseModelSettings
    stages: dict[str, StageSettings]  # ordered by parent
    benchmarks: dict[str, BenchmarkSettings] = Field(default_factory=dict)
    pins: dict[str, str] = Field(default_factory=dict)  # INF-01, T15
    gpu_hour_price: float | None = None
