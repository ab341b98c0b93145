"""Settings of one stage. Units are in the names: *_tokens, *_steps, *_seconds; shares are in [0, 1]."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rufus_core.settings.architecture import NonNegative, Positive
from rufus_core.settings.compute import ComputeSettings
from rufus_core.types import Category, Frozen, Json

POLICY = "policy"  # a screen's sampler: the checkpoint that the stage starts from
DIAGNOSTIC = "diagnostic"  # of a training: its part of the step's identity, and its file's role
ENDPOINT = "openai:"  # before the id of a model that is a screen's sampler

Share = Annotated[float, Field(ge=0.0, le=1.0)]


class SourceSettings(Frozen):
    """Where problems or conversations come from: a generator of this project, or a file (`path`) of the user's."""

    generator: str | None = None
    path: str | None = None  # JSONL; rows are read by `format`
    format: Literal["auto", "messages", "question_answer"] = "auto"
    category: Category | None = None
    count: Positive | None = None  # of a generator: to train on; of a file: its first rows, at most; None: all of them
    error_rate: Share = 0.0  # share of a generator's demonstrations that are deliberately wrong
    options: dict[str, Json] = Field(default_factory=dict)
    # provenance, two separate columns (MIX-05)
    hf_id: str | None = None
    terms: str | None = None
    upstream: str | None = None
    upstream_generators: tuple[str, ...] = ()  # models that wrote the responses
    restricted: bool = False  # MIX-06: not for commercial use

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if self.generator is not None and self.path is not None:
            raise ValueError("a source is a generator or a path, not both; `!replace {path: FILE}` drops the generator")
        return self


class FilterSettings(Frozen):
    """One offline filter of a prompt set (PIPE-10); a mapping of them applies in its order.

    With `samplers` it is a screen: each makes `num_attempts` responses, p is the share that passes, and a problem stays
    if p lies in the window for at least one of them. `policy` is the stage's initial checkpoint, `openai:MODEL` a model
    behind an OpenAI-compatible endpoint. Without `samplers` it looks at the problem alone, with `options`, and its name
    says what it does.
    """

    samplers: tuple[str, ...] = ()
    num_attempts: Positive | None = None
    low_exclusive: float | None = None
    high_inclusive: float | None = None
    high_exclusive: float | None = None
    tools: bool = True  # False: closed book (SA-D2)
    options: dict[str, Json] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _screen_has_attempts(self) -> Self:
        if self.samplers and self.num_attempts is None:
            raise ValueError("a filter with samplers needs num_attempts")
        return self

    def admits(self, rate: float) -> bool:
        """Whether a share of passes lies in the window; a bound that isn't given is none."""
        return (
            (self.low_exclusive is None or rate > self.low_exclusive)
            and (self.high_inclusive is None or rate <= self.high_inclusive)
            and (self.high_exclusive is None or rate < self.high_exclusive)
        )

    def window(self) -> str:
        """The window as the paper writes it, for example `0 < p <= 0.8`."""
        return window_text(self.low_exclusive, self.high_inclusive, self.high_exclusive, "p")


def window_text(low: float | None, high_inclusive: float | None, high_exclusive: float | None, name: str) -> str:
    """For example `0 < p <= 0.8`; a bound that is None is left out."""
    start = "" if low is None else f"{low:g} < "
    if high_inclusive is not None:
        return f"{start}{name} <= {high_inclusive:g}"
    return f"{start}{name}" if high_exclusive is None else f"{start}{name} < {high_exclusive:g}"


class ProblemSettings(Frozen):
    """A stage's prompt set. Splits are disjoint by problem id and deterministic by seed."""

    sources: dict[str, SourceSettings]
    num_validation: NonNegative = 64
    num_heldout: NonNegative = 240
    sample_cap_tokens: Positive | None = None  # VALID-03, after the chat template
    filters: dict[str, FilterSettings] = Field(default_factory=dict)


class OptimizerSettings(Frozen):
    name: Literal["adamw"] = "adamw"
    lr_peak: Annotated[float, Field(gt=0.0)]
    lr_min: Annotated[float, Field(ge=0.0)] | None = None  # None: constant at lr_peak
    schedule: Literal["constant", "cosine"] = "constant"
    warmup_steps: NonNegative = 0
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-8
    weight_decay: float = 0.1
    grad_clip: float = 1.0


class AlgorithmSettings(Frozen):
    name: Literal["gspo", "grpo"]
    clip_low: Annotated[float, Field(gt=0.0)]
    clip_high: Annotated[float, Field(gt=0.0)]
    kl_coef: Annotated[float, Field(ge=0.0)] = 0.0
    entropy_coef: float = 0.0
    advantage: Literal["group_normalised", "mean_only"] = "group_normalised"
    length_normalization: Literal["per_sequence", "per_token"] = "per_sequence"
    tis: bool = False
    tis_cap: float = 2.0
    truncation_masking: bool = False


class RewardSettings(Frozen):
    """What a stage is rewarded by (PIPE-04), and the numbers its reward needs."""

    kind: Literal["token_supervision", "rule_based_verifier", "hybrid_verifier", "reward_model"]
    similarity_threshold: float | None = None  # RRL-R1: fuzzy match of science answers
    max_tests_per_problem: Positive | None = None  # CRL-R2
    seconds_per_test: float | None = None
    memory_mib: Positive | None = None  # of the sandbox that runs the tests
    min_successful_tool_calls: int | None = None  # SA-R3
    malformed_call_factor_floor: float | None = None  # SA-R4
    no_answer_budget_exhausted: float | None = None  # SA-R5: the reward then


class LengthPenaltySettings(Frozen):
    """`shortest_correct` is Reasoning RL's (RRL-R2), `over_length` is RLHF's (RM-R2)."""

    kind: Literal["shortest_correct", "over_length"]
    cap: float = 0.2  # shortest_correct: the largest deduction
    threshold_tokens: int = 2000  # over_length: L0
    max_tokens: int = 8000  # L_max


class RolloutSettings(Frozen):
    prompts_per_rollout: Positive
    samples_per_prompt: Positive
    opt_steps_per_rollout: Positive = 1
    response_budget_tokens: Positive  # per turn for agents
    trajectory_tokens: Positive | None = None  # prompt and all turns
    temperature: Annotated[float, Field(ge=0.0)] = 1.0
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0


class DynamicSamplingSettings(Frozen):
    """Keep groups whose mean raw verifier reward lies in the window; refill up to `max_rounds` rounds."""

    low_exclusive: float = 0.0
    high_inclusive: float | None = None  # RRL-T6: 0.8
    high_exclusive: float | None = None  # DAPO: 1.0
    oversample_factor: Annotated[float, Field(ge=1.0)] = 1.0
    max_rounds: Positive = 3

    @model_validator(mode="after")
    def _window_is_open(self) -> Self:
        for high in (self.high_inclusive, self.high_exclusive):
            if high is not None and high <= self.low_exclusive:
                raise ValueError(f"the window ({self.low_exclusive}, {high}) holds no reward")
        return self


class ToolSettings(Frozen):
    surface: tuple[str, ...] | str = ()
    tool_call_limit_train: Positive
    tool_call_limit_eval: Positive
    result_tokens: Positive = 8000  # GYM-24
    command_timeout_seconds: float = 120.0


class ModelSettings(Frozen):
    """Other models a stage consults; a value is a model id, or `builtin:NAME` for one that ships here."""

    teacher: str | None = None
    judge: str | None = None
    eval_judge: str | None = None
    summarizer: str | None = None  # SA-E2; as printed, no step reads it: `gym/search.py` cuts pages without a model
    reward_model: str | None = None


class RewardModelSettings(Frozen):
    """How the small Bradley-Terry reward model of the CPU profile is trained."""

    num_pairs: Positive
    steps: Positive
    batch_pairs: Positive
    optimizer: OptimizerSettings


class DiagnosticSettings(Frozen):
    """Prompts of the user's on which the reward is logged every `run.eval_interval_steps` steps (RM-T2)."""

    path: str  # JSONL, the layouts of the stage's problems; for RLHF `prompt` alone will do
    num_prompts: Positive | None = None  # the first ones; None: all


class PrecisionSettings(Frozen):
    train: Literal["bf16", "fp32"] = "bf16"
    rollout: Literal["bf16", "fp8", "fp32"] = "bf16"
    rollout_bf16_first_layers: int = 0  # SLM-07
    router_replay: bool = True  # R3, SLM-06


class PhaseSettings(Frozen):
    """Values that change inside a stage, from step `from_step` on (Coding RL's budget extension, CRL-T4)."""

    from_step: Positive
    prompts_per_rollout: Positive | None = None
    response_budget_tokens: Positive | None = None
    kl_coef: float | None = None


class SelectionSettings(Frozen):
    """Which checkpoint is carried forward. `peak` compares the candidates, never on held-out problems."""

    rule: Literal["last", "step", "peak"]
    step: Positive | None = None
    metric: str | None = None  # of `peak`: an outside benchmark; None: pass@1 on the validation problems

    @model_validator(mode="after")
    def _rule_has_its_value(self) -> Self:
        if self.rule == "step" and self.step is None:
            raise ValueError("rule 'step' needs a step")
        return self


class RunSettings(Frozen):
    steps: Positive | None  # None: the paper doesn't state it
    epochs: float | None = None
    checkpoint_interval_steps: Positive | None = None
    eval_interval_steps: Positive | None = (
        None  # of a diagnostic (RM-T2); benchmarks score only what is carried forward
    )
    select: SelectionSettings

    def saves(self, step: int) -> bool:
        """Whether the weights of this step are kept as a candidate: at every interval, and at the end."""
        interval = self.checkpoint_interval_steps
        return step == self.steps or bool(interval and step % interval == 0)


class EvaluationSettings(Frozen):
    """Names of benchmarks measured on this stage's checkpoint and on its parent's (PIPE-07, PIPE-08)."""

    targets: tuple[str, ...]
    guardrails: tuple[str, ...] = ()


class _Stage(Frozen):
    title: str
    section: str = ""
    parent: str
    capability: str = ""
    reward: RewardSettings | None = None
    optimizer: OptimizerSettings
    run: RunSettings
    evaluation: EvaluationSettings
    precision: PrecisionSettings = PrecisionSettings()
    compute: ComputeSettings = ComputeSettings()
    models: ModelSettings = ModelSettings()
    published: dict[str, Json] = Field(default_factory=dict)  # printed facts shown by `plan`, used by no step


class SFTBatchSettings(Frozen):
    global_batch_sequences: Positive
    context_tokens: Positive  # of a packed row
    long_sample_tokens: Positive | None = None  # SFT-07: from this length on, fewer samples share a batch


class SFTStage(_Stage):
    kind: Literal["sft"] = "sft"
    data: ProblemSettings
    batch: SFTBatchSettings


class RLStage(_Stage):
    kind: Literal["rl"] = "rl"
    problems: ProblemSettings
    rollout: RolloutSettings
    algorithm: AlgorithmSettings
    dynamic_sampling: DynamicSamplingSettings | None = None
    length_penalty: LengthPenaltySettings | None = None
    tools: ToolSettings | None = None
    reward_model: RewardModelSettings | None = None
    diagnostic: DiagnosticSettings | None = None
    phases: tuple[PhaseSettings, ...] = ()

    @model_validator(mode="after")
    def _phases_in_order(self) -> Self:
        starts = [phase.from_step for phase in self.phases]
        if starts != sorted(set(starts)):
            raise ValueError(f"phases start at steps {starts}, which is no rising order")
        return self


StageSettings = Annotated[SFTStage | RLStage, Field(discriminator="kind")]
