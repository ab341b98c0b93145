"""A toy training by any trainer with any engine, as a job puts them together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rufus_core.jobs.backends import open_rollouts, open_trainer
from rufus_core.ports.engine import GenerateRequest, RolloutEngine, SamplingParams
from rufus_core.settings import ExecutionSettings, RLStage
from rufus_core.training.collect import Issued
from rufus_core.training.forward import TokenSequence
from rufus_core.training.ranks import Ranks
from rufus_core.training.rl import train_rl
from rufus_core.training.trainer import Trainer
from tests.support import cpu_megatron
from tests.training import toy


@dataclass
class Learned:
    """What became of it: metrics of each step, the versions that were rolled out in it, and the last check."""

    rows: list[dict[str, float]] = field(default_factory=list)
    versions: list[set[str]] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)  # of sampled tokens' log-probs, engine against trainer, at the end
    last_version: set[str] = field(default_factory=set)


def learn(ranks: Ranks, parent: Path, execution: ExecutionSettings, stage: RLStage, folder: Path) -> Learned:
    """Train the policy in `parent`; then bring the engine to the newest weights and compare once more."""
    if execution.trainer == "megatron":
        cpu_megatron.install()
    job: Any = SimpleNamespace(
        execution=execution,
        input=lambda _: parent,
        document=SimpleNamespace(progress=folder / "progress.jsonl"),
    )
    sink, learned = toy.Sink(), Learned()

    def keep(_: int, issued: Sequence[Issued]) -> None:
        learned.versions.append({one.trajectory.weight_version for one in issued})

    trainer = open_trainer(execution, parent, stage, ranks)
    with open_rollouts(job, stage, trainer, ()) as engine:
        train_rl(trainer, engine, toy.PROBLEMS, toy.colour_gym(), stage, 0, sink, lambda _: None, keep, workers=2)
        learned.rows = sink.rows
        _check_newest(learned, trainer, engine)
    return learned


def _check_newest(learned: Learned, trainer: Trainer, engine: RolloutEngine) -> None:
    engine.resume_memory()
    engine.update_weights(trainer, "newest")

    def sample(numbers: Sequence[int]) -> list[Any]:
        return engine.generate([_request(trainer, number) for number in numbers])

    results = trainer.ranks.spread(range(len(toy.PROBLEMS)), sample)
    learned.last_version = {result.weight_version for result in results}
    sequences = []
    for number, result in enumerate(results):
        prompt = _request(trainer, number).input_ids
        mask = [0] * len(prompt) + [1] * len(result.output_ids)
        sequences.append(TokenSequence(number, [*prompt, *result.output_ids], mask, result.routed_experts))
    for result, row in zip(results, trainer.logprobs(sequences, 1.0), strict=True):
        expected = row[-len(result.output_ids) :]
        learned.gaps += [abs(a - b) for a, b in zip(result.output_logprobs, expected, strict=True)]


def _request(trainer: Trainer, number: int) -> GenerateRequest:
    problem = toy.PROBLEMS[number]
    params = SamplingParams(max_new_tokens=6, stop_token_ids=tuple(trainer.chat.stop_token_ids), sampling_seed=number)
    ids = trainer.chat.prompt_ids(problem.prompt, problem.tools)
    return GenerateRequest(f"check-{number}", ids, params, return_routed_experts=True)
