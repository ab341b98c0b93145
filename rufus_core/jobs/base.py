"""Step 0: the base policy, made here from the recipe's seed, or taken over from files of the user's."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

from rufus_core.data.catalogue import CLOSED_VOCABULARY
from rufus_core.data.tokenizer import count_words
from rufus_core.errors import RufusError
from rufus_core.jobs.job import Job, Outcome
from rufus_core.jobs.resume import training_state
from rufus_core.lineage.external import unchanged_file
from rufus_core.rollout.gguf import load_gguf
from rufus_core.rollout.policy import Policy, load_policy
from rufus_core.settings import PolicyShape, PretrainSettings
from rufus_core.training.base_policy import make_policy, pretrain_to_copy
from rufus_core.types import Message

_SAMPLES_PER_GENERATOR = 400  # enough for every word of the closed vocabularies to be seen


def build_base(job: Job) -> Outcome:
    """Make a base policy, or go on from the state that a dead job left; or take over the user's.

    Raises:
        Preempted: SIGTERM arrived during pre-training; the step in progress was ended and the state saved.
    """
    job.use_threads()
    if "gguf" in job.document.config:
        return _convert(job)
    if job.document.external:
        return _take_over(job)
    shape = PolicyShape.model_validate(job.document.config["shape"])
    pretrain = PretrainSettings.model_validate(job.document.config["pretrain"])
    policy = make_policy(shape, count_words(_generated_texts(), shape.num_words), job.document.seed)
    with job.report(pretrain.steps) as report, job.stoppable() as stop:
        state = training_state(job, pretrain.steps, stop)
        metrics = pretrain_to_copy(policy, pretrain, job.document.seed, report.log, state)
    policy.save(job.output)
    metrics["parameters"] = _parameters(policy)
    metrics["vocabulary"] = float(len(policy.chat.tokenizer))
    return Outcome(metrics, step=pretrain.steps)


def _take_over(job: Job) -> Outcome:
    for name, path in job.document.external.items():
        shutil.copyfile(path, job.output / Path(name).name)
    try:
        policy = load_policy(job.output)
    except RufusError as error:
        error.where = str(Path(next(iter(job.document.external.values()))).parent)  # the user's, and not our copy
        raise
    hashes = job.document.config["files"]
    external = {name: unchanged_file(path, hashes[name]) for name, path in job.document.external.items()}
    return Outcome({"parameters": _parameters(policy)}, step=0, external=external)


def _convert(job: Job) -> Outcome:
    path = job.document.external["gguf"]
    policy = load_gguf(Path(path))
    policy.save(job.output)
    file = unchanged_file(path, job.document.config["gguf"])
    return Outcome({"parameters": _parameters(policy)}, step=0, external={"gguf": file})


def _parameters(policy: Policy) -> float:
    return float(sum(p.numel() for p in policy.model.parameters()))


def _generated_texts() -> Iterator[str]:
    """What the generators write, with a seed of its own: the vocabulary depends on no problem set."""
    rng = random.Random(0)
    for generator in CLOSED_VOCABULARY.values():
        for problem in generator.problems(0, _SAMPLES_PER_GENERATOR, {}):
            yield " ".join(tool.name for tool in problem.tools)
            for message in (*problem.prompt, *generator.demonstrate(problem, rng, False)):
                yield _text(message)


def _text(message: Message) -> str:
    calls = [f"{call.name} {call.arguments}" for call in message.tool_calls]
    return " ".join([message.content, message.reasoning or "", *calls])
