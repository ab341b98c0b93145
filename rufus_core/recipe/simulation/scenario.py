"""From a stage of a recipe and what is assumed to the model of its step."""

from __future__ import annotations

from collections.abc import Sequence

from rufus_core.errors import ConfigError
from rufus_core.recipe.footprint.gpus import GPUS
from rufus_core.recipe.footprint.memory import BYTES, engine_weight_bytes, kv_bytes_per_token
from rufus_core.recipe.footprint.parameters import count_parameters
from rufus_core.recipe.footprint.stage import architecture_of
from rufus_core.recipe.phases import PhasePlan
from rufus_core.recipe.plan import make_plan
from rufus_core.recipe.simulation.assumptions import Assumptions, WorkloadAssumptions
from rufus_core.recipe.simulation.costs import RooflineCost
from rufus_core.recipe.simulation.engine import EngineModel
from rufus_core.recipe.simulation.episodes import DrawnEpisode, EpisodeSource, ModelledEpisodes, RecordedEpisodes
from rufus_core.recipe.simulation.rollout import Failures, RolloutModel
from rufus_core.recipe.simulation.step import StepModel, TrainerModel
from rufus_core.recipe.validate import nearest
from rufus_core.settings import ArchitectureSettings, Recipe, RLStage

FORWARD, BACKWARD = 2, 4  # FLOPs of a parameter and token
SECONDS_PER_HOUR = 3600


def step_model(
    recipe: Recipe,
    name: str,
    assumed: Assumptions,
    nodes: int,
    *,
    train_nodes: int = 0,
    step: int = 1,
    seed: int = 0,
    recorded: Sequence[DrawnEpisode] = (),
) -> StepModel:
    """The model of one step of an RL stage on so many nodes, of which `train_nodes` only train (0: colocated).

    Args:
        step: which step of the stage: a phase may have changed its batch and budget by then.
        recorded: episodes of a training, in the place of the assumed lengths.

    Raises:
        ConfigError: it is no RL stage or has no GPUs, nothing says what policy it trains or what its episodes are like,
            or an engine can't hold one.
    """
    stage = _rl_stage(recipe, name)
    phase = _phase_at(recipe, name, step)
    compute = stage.compute
    if not compute.gpus_per_node:
        hint = "simulate a profile of GPUs: --profile h200"
        raise ConfigError("this stage has no GPUs to simulate", where=f"stages.{name}.compute.gpus_per_node", hint=hint)
    if (arch := architecture_of(recipe.base)) is None:
        hint = "simulate a profile that says it: --profile h200"
        raise ConfigError("nothing says what policy is trained", where="base.architecture", hint=hint)
    per_engine = compute.gpus_per_rollout_engine or compute.gpus_per_node
    num_engines = (nodes - train_nodes) * compute.gpus_per_node // per_engine
    if num_engines < 1:
        what = f"{nodes - train_nodes} nodes of {compute.gpus_per_node} GPUs hold no engine of {per_engine}"
        raise ConfigError(what, where=name, hint="give more --nodes, or fewer --train-nodes")
    workload = _workload(assumed, name)
    window = stage.dynamic_sampling
    assert phase.prompts is not None
    assert phase.samples is not None
    longest = stage.rollout.trajectory_tokens or 0
    hours = assumed.engine.mean_hours_between_failures
    rollout = RolloutModel(
        num_engines=num_engines,
        engine=_engine(stage, name, arch, assumed, per_engine, max(longest, phase.budget_tokens), workload),
        episodes=_episodes(stage, phase, workload, recorded),
        num_groups=phase.prompts,
        group_size=phase.samples,
        oversample=window.oversample_factor if window else 1.0,
        max_rounds=window.max_rounds if window else 1,
        kept_share=workload.kept_share if window else 1.0,
        failures=Failures(hours * SECONDS_PER_HOUR, assumed.engine.recovery_seconds) if hours else Failures(),
        seed=seed,
    )
    return StepModel(
        rollout=rollout,
        trainer=_trainer(
            stage, phase, arch, assumed, (train_nodes or nodes) * compute.gpus_per_node, per_engine, train_nodes
        ),
        gpus_per_engine=per_engine,
        train_gpus=train_nodes * compute.gpus_per_node,
    )


def _rl_stage(recipe: Recipe, name: str) -> RLStage:
    known = [each for each, stage in recipe.stages.items() if isinstance(stage, RLStage)]
    stage = recipe.stages.get(name)
    if not isinstance(stage, RLStage):
        what = f"no RL stage {name!r}" if stage is None else f"{name!r} is no RL stage: it has no rollout"
        raise ConfigError(what, where=recipe.name, hint=nearest(name, known))
    return stage


def _phase_at(recipe: Recipe, name: str, step: int) -> PhasePlan:
    [planned] = [stage for stage in make_plan(recipe).stages if stage.name == name]
    return [phase for phase in planned.phases if phase.from_step <= step][-1]


def _workload(assumed: Assumptions, name: str) -> WorkloadAssumptions:
    if name not in assumed.stages:
        raise ConfigError(
            f"nothing is assumed of the episodes of {name!r}",
            where="stages of the assumptions",
            hint=f"--assume 'stages.{name}={{prompt_tokens: {{median: 200}}, turn_tokens: {{median: 2000}}}}'",
        )
    return assumed.stages[name]


def _engine(
    stage: RLStage,
    name: str,
    arch: ArchitectureSettings,
    assumed: Assumptions,
    num_gpus: int,
    longest: int,
    workload: WorkloadAssumptions,
) -> EngineModel:
    gpu, engine, counts = GPUS[stage.compute.gpu], assumed.engine, count_parameters(arch)
    weights, of_token = engine_weight_bytes(arch, stage.precision), kv_bytes_per_token(arch, num_gpus)
    experts = weights * counts.experts / counts.total
    flops = gpu.flops[stage.precision.rollout]
    free = num_gpus * gpu.memory_bytes * engine.memory_share - weights
    cache_tokens = int(free / of_token)
    if cache_tokens <= longest:
        held = f"{cache_tokens:,} tokens" if free > 0 else "not even its weights"
        raise ConfigError(
            f"an engine of {num_gpus} GPUs holds {held}, and an episode may have {longest:,}",
            where=f"stages.{name}.compute.gpus_per_rollout_engine",
            hint="give an engine more GPUs",
        )
    cost = RooflineCost(
        dense_bytes=weights - experts,
        expert_bytes=experts,
        num_experts=max(arch.num_experts, 1),
        experts_per_token=max(arch.experts_per_token, 1),
        flops_per_token=FORWARD * counts.active,
        kv_bytes_per_token=of_token,
        bytes_per_second=num_gpus * gpu.memory_bandwidth * engine.bandwidth_share,
        decode_flops_per_second=num_gpus * flops * engine.decode_flops_share,
        prefill_flops_per_second=num_gpus * flops * engine.prefill_flops_share,
        overhead_seconds=engine.step_overhead_seconds,
    )
    reserved = int(engine.reserved_share * min(workload.turn_tokens.median, longest))
    return EngineModel(cost, cache_tokens, engine.max_running, reserved)


def _episodes(
    stage: RLStage, phase: PhasePlan, workload: WorkloadAssumptions, recorded: Sequence[DrawnEpisode]
) -> EpisodeSource:
    tools = stage.tools
    longest_wait = tools.command_timeout_seconds if tools else 0.0
    if recorded:
        return RecordedEpisodes(tuple(recorded), workload.tool_seconds, longest_wait)
    # A budget of responses alone leaves room for any prompt.
    whole = stage.rollout.trajectory_tokens or phase.budget_tokens + int(workload.prompt_tokens.median * 100) + 1
    return ModelledEpisodes(
        prompt_tokens=workload.prompt_tokens,
        turn_tokens=workload.turn_tokens,
        turn_budget=phase.budget_tokens,
        trajectory_budget=whole,
        num_turns=workload.num_turns,
        max_turns=tools.tool_call_limit_train + 1 if tools else 1,
        tool_seconds=workload.tool_seconds,
        max_tool_seconds=longest_wait,
        observation_tokens=workload.observation_tokens,
        max_observation_tokens=tools.result_tokens if tools else 0,
    )


def _trainer(
    stage: RLStage,
    phase: PhasePlan,
    arch: ArchitectureSettings,
    assumed: Assumptions,
    num_gpus: int,
    per_engine: int,
    train_nodes: int,
) -> TrainerModel:
    """Passes of a step: the gradient's; log-probs before it where several optimizer steps follow; the reference's."""
    passes = FORWARD + BACKWARD
    passes += FORWARD if stage.rollout.opt_steps_per_rollout > 1 else 0
    passes += FORWARD if phase.kl_coef else 0
    counts, trainer = count_parameters(arch), assumed.trainer
    sent = counts.total * BYTES["bf16"] / (trainer.interconnect_bytes_per_second * per_engine)
    return TrainerModel(
        flops_per_token=passes * counts.active,
        flops_per_second=num_gpus * GPUS[stage.compute.gpu].flops[stage.precision.train] * trainer.flops_share,
        update_seconds=sent + (0.0 if train_nodes else trainer.offload_seconds),
    )
