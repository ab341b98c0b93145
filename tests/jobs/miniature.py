"""The CPU recipe made so small that its jobs run in a test's process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rufus_core.jobs.document import JobDocument
from rufus_core.jobs.run import run_job
from rufus_core.lineage import Record, Store
from rufus_core.recipe.documents import document_of
from rufus_core.recipe.graph import build_graph
from rufus_core.recipe.load import load_recipe
from rufus_core.recipe.step import Step
from rufus_core.settings import EvaluationSettings, Recipe

SHAPE = (
    "{hidden_size: 32, num_heads: 2, num_kv_heads: 1, head_dim: 16, intermediate_size: 64, "
    "expert_intermediate_size: 16, num_experts: 4, context_tokens: 1024, num_words: 640}"
)
RL_STAGES = ("reasoning_rl", "coding_rl", "if_rl", "general_agent", "coding_agent", "search_agent", "rlhf")
SMALL = (
    f"base.shape={SHAPE}",
    "base.pretrain={steps: 3, batch_sequences: 4}",
    "stages.sft.data={num_validation: 10, num_heldout: 20}",
    "stages.sft.batch.global_batch_sequences=8",
    "stages.sft.run={steps: 2, checkpoint_interval_steps: 1}",
    "stages.rlhf.reward_model={num_pairs: 40, steps: 2, batch_pairs: 4}",
    "execution={threads: 1, rollout_workers: 2}",
)
SMALL_RL = (
    "run={steps: 2, checkpoint_interval_steps: 1}",
    "rollout={prompts_per_rollout: 2, samples_per_prompt: 4, response_budget_tokens: 12}",
    "problems={num_validation: 12, num_heldout: 12}",
)


def small_recipe(*overrides: str) -> Recipe:
    """Every stage of the CPU profile with a dozen problems a split and a step or two."""
    return load_recipe("rufus_air", "cpu", [*small_overrides(), *overrides])


def small_overrides() -> list[str]:
    """What `--set` must say to get `small_recipe`."""
    full = load_recipe("rufus_air", "cpu")
    counts = [f"stages.sft.data.sources.{name}.count=6" for name in full.stages["sft"].data.sources]  # type: ignore[union-attr]
    for stage in RL_STAGES:
        sources = full.stages[stage].problems.sources  # type: ignore[union-attr]
        counts += [f"stages.{stage}.problems.sources.{name}.count={12 // len(sources)}" for name in sources]
    rl = [f"stages.{stage}.{change}" for stage in RL_STAGES for change in SMALL_RL]
    phases = ["stages.coding_rl.phases=[]"]
    sizes = [f"benchmarks.{name}={{num_problems: 12, samples_per_problem: 1}}" for name in full.benchmarks]
    return [*SMALL, *counts, *rl, *phases, *sizes]


def short_chain(*overrides: str) -> Recipe:
    """SFT and, right after it, RLHF: a reward model tells any two answers apart, so that even random weights learn."""
    recipe = small_recipe(*overrides)
    alone = {"parent": "sft", "evaluation": EvaluationSettings(targets=("preference",))}
    rlhf = recipe.stages["rlhf"].model_copy(update=alone)
    stages = {"sft": recipe.stages["sft"], "rlhf": rlhf}
    return recipe.model_copy(update={"stages": stages})


class Runner:
    """Makes steps of a recipe's graph (or of `graph`), and what they are made from, in this process."""

    def __init__(self, folder: Path, recipe: Recipe, graph: Sequence[Step] | None = None) -> None:
        self.store = Store(folder / "store")
        self.steps = {step.name: step for step in graph or build_graph(recipe)}
        self._folder, self._recipe = folder, recipe
        self._records: dict[str, Record] = {}

    def run(self, name: str) -> Record:
        """The step's record; what the store holds is reused."""
        given = self.steps[name].artifact
        if given is not None:
            return given
        if name not in self._records:
            document = self.document(name)
            found = self.store.find(name, document.fingerprint)
            self._records[name] = found or run_job(document)
        return self._records[name]

    def path(self, name: str) -> Path:
        return self.store.path(self.run(name))

    def document(self, name: str, /, **changes: Any) -> JobDocument:
        step = self.steps[name]
        inputs = {role: self.run(earlier) for role, earlier in step.inputs.items()}
        progress = self._folder / "progress" / f"{step.name.replace('/', '.')}.jsonl"
        document = document_of(step, inputs, self.store, self._recipe.execution, progress)
        return document.model_copy(update=changes)
