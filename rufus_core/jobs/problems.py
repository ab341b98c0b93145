"""Data steps: an RL stage's problem set, or the SFT mixture, from generators and the user's files.

Files: `train.jsonl`, `validation.jsonl`, `heldout.jsonl` hold problems; for SFT `examples.jsonl` holds what is trained
on, and its training problems are left out. `report.json` counts what was kept and dropped, and why; where a recipe
filters, `dropped.jsonl` holds the id of each problem that was dropped, by which filter and why.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

from rufus_core.data.catalogue import generator
from rufus_core.data.holdout import HELDOUT_SHARE, VALIDATION_SHARE, share_splits, take_splits
from rufus_core.data.mixture import composition, deduplicate
from rufus_core.data.normalise import normalise
from rufus_core.data.sources import read_conversations
from rufus_core.data.split import SupervisedExample, split
from rufus_core.data.validate import valid
from rufus_core.errors import ConfigError, DataError
from rufus_core.jobs.filters import SCHEMA, Filters, make_filters
from rufus_core.jobs.job import Job, Outcome
from rufus_core.jobs.problem_files import save_examples, save_problems, save_report, save_rows
from rufus_core.jobs.problem_rows import read_problem_file
from rufus_core.lineage.external import unchanged_file
from rufus_core.lineage.record import ExternalFile
from rufus_core.sandbox.lazy import LazySandbox
from rufus_core.sandbox.placement import open_code_sandbox
from rufus_core.settings import ProblemSettings, SourceSettings
from rufus_core.types import Category, Conversation, Json, Problem, Split, content_id


def build_problems(job: Job) -> Outcome:
    config = dict(job.document.config)
    kind, split_seed = config.pop("kind"), int(config.pop("split_seed"))
    context_tokens = config.pop("context_tokens", None)
    order = config.pop("order")
    filters = _filters(config.pop("filters"), config.pop("filter_order", ()), job.document.external)
    settings = ProblemSettings.model_validate(config | {"sources": {name: config["sources"][name] for name in order}})
    counts: Counter[str] = Counter()
    external: dict[str, ExternalFile] = {}
    splits: dict[Split, list[Problem]] = {"train": [], "validation": [], "heldout": []}
    conversations: list[Conversation] = []
    shares = _shares(settings, [n for n in settings.sources if kind == "rl" or n not in job.document.external])
    for name, source in settings.sources.items():
        path = job.document.external.get(name)
        read: Counter[str] = Counter()
        taken: dict[Split, list[Problem]] = {}
        if path is None:
            taken = _generate(job, name, source, shares[name], split_seed, filters)
            if kind == "sft":
                conversations += _demonstrate(taken["train"], name, source, job.document.seed)
        elif kind == "sft":
            rows = read_conversations(path, name, source.category or "general_chat", source.format, read)
            conversations += islice(rows, source.count)
        else:
            taken = _read(job, name, source, path, shares[name], split_seed, read, filters)
        if path is not None:
            external[name] = unchanged_file(path, source.path, read["rows"])
        counts += read
        for each, problems in taken.items():
            splits[each] += problems
    save_problems(job.output, "validation", splits["validation"])
    save_problems(job.output, "heldout", splits["heldout"])
    report: dict[str, object] = {}
    if kind == "sft":
        report["composition"] = _save_mixture(job, conversations, settings, context_tokens, counts)
    else:
        save_problems(job.output, "train", splits["train"])
        counts["train"] = len(splits["train"])
        if filters is not None:
            external |= _benchmarks(job)
            report["filters"] = _tell_dropped(job, filters)
    counts["heldout"], counts["validation"] = len(splits["heldout"]), len(splits["validation"])
    report["counts"] = dict(sorted(counts.items()))
    save_report(job.output, report)
    return Outcome({name: float(value) for name, value in counts.items()}, external=external)


def _shares(settings: ProblemSettings, sources: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Each source's part of the validation and held-out problems: equal parts, the remainder to the first sources."""

    def part(total: int, index: int) -> int:
        return total // len(sources) + (index < total % len(sources))

    return {
        name: (part(settings.num_validation, index), part(settings.num_heldout, index))
        for index, name in enumerate(sources)
    }


def _generate(
    job: Job, name: str, source: SourceSettings, share: tuple[int, int], split_seed: int, filters: Filters | None
) -> dict[Split, list[Problem]]:
    assert source.generator is not None
    assert source.count is not None
    seed = int(content_id(job.document.seed, name)[:8], 16)
    wanted = _stream_length(source.count, *share)
    try:
        stream = generator(source.generator).problems(seed, wanted, source.options)
        return take_splits(_admitted(_named(stream, name), filters), source.count, *share, split_seed)
    except DataError as error:
        error.where = error.where or f"source {name}"
        error.hint = error.hint or f"{source.count} to train on need {wanted} with those set aside: lower the count"
        raise


def _read(
    job: Job,
    name: str,
    source: SourceSettings,
    path: str,
    share: tuple[int, int],
    split_seed: int,
    counts: Counter[str],
    filters: Filters | None,
) -> dict[Split, list[Problem]]:
    """The first `count` problems of a file are taken, filtered, then split."""
    from rufus_core.stages import STAGES  # brings torch, which generated problems don't need

    assert job.document.stage is not None
    on_fault = None
    if filters is not None and SCHEMA in job.document.config["filters"]:
        on_fault = partial(_refuse_line, filters, name)
    families = STAGES[job.document.stage].families
    try:
        with LazySandbox(lambda: open_code_sandbox(job.execution, label=job.document.name)) as sandbox:
            rows = read_problem_file(path, name, families, counts, on_fault, sandbox)
            return share_splits(_admitted(islice(rows, source.count), filters), None, *share, split_seed)
    except DataError as error:
        error.where = error.where or path
        if filters is not None and filters.dropped:
            first = filters.dropped[0]
            told = f"the filters dropped {len(filters.dropped):,}, the first one by {first.filter}: {first.reason}"
            error.hint = f"{told}; {error.hint}"
        raise


def _filters(
    settings: Mapping[str, Mapping[str, Json]], order: Iterable[str], external: Mapping[str, str]
) -> Filters | None:
    """The recipe's filters that look at problems alone; None where it has none."""
    if not settings:
        return None
    files = {
        name: {benchmark: Path(external[f"{name}/{benchmark}"]) for benchmark in settings[name]["files"]}
        for name in order
    }
    return make_filters({name: settings[name]["options"] for name in order}, files)


def _refuse_line(filters: Filters, source: str, line: str, reason: str) -> None:
    filters.refuse(f"line {line}", source, reason)


def _admitted(problems: Iterator[Problem], filters: Filters | None) -> Iterator[Problem]:
    return problems if filters is None else filters.admitted(problems)


def _benchmarks(job: Job) -> dict[str, ExternalFile]:
    """The benchmark files that the filters read, if they are still what the step's identity says."""
    return {
        f"{name}/{benchmark}": unchanged_file(job.document.external[f"{name}/{benchmark}"], sha256)
        for name, each in job.document.config["filters"].items()
        for benchmark, sha256 in each["files"].items()
    }


def _tell_dropped(job: Job, filters: Filters) -> dict[str, dict[str, int]]:
    """Write what was dropped; how many problems of each source, by filter in the recipe's order."""
    save_rows(job.output / "dropped.jsonl", filters.dropped)
    return {
        name: dict(Counter(each.source for each in filters.dropped if each.filter == name))
        for name in job.document.config["filter_order"]
    }


def _stream_length(num_train: int, num_validation: int, num_heldout: int) -> int:
    """How many problems a generator must make so that every split fills up by its share, with some to spare."""
    needed = max(
        num_train / (1 - HELDOUT_SHARE - VALIDATION_SHARE),
        num_validation / VALIDATION_SHARE,
        num_heldout / HELDOUT_SHARE,
    )
    return math.ceil(needed * 1.2) + 100


def _named(problems: Iterable[Problem], source: str) -> Iterator[Problem]:
    return (problem.model_copy(update={"source": source}) for problem in problems)


def _demonstrate(problems: Iterable[Problem], name: str, source: SourceSettings, seed: int) -> Iterator[Conversation]:
    """Answers to training problems; a share of them is wrong, as supervised data in the wild is."""
    assert source.generator is not None
    demonstrate = generator(source.generator).demonstrate
    category: Category = source.category or "general_chat"
    for problem in problems:
        rng = random.Random(int(content_id(seed, "demonstrate", problem.id)[:12], 16))
        wrong = rng.random() < source.error_rate
        messages = (*problem.prompt, *demonstrate(problem, rng, wrong))
        yield Conversation(messages=messages, tools=problem.tools, source=name, category=category)


def _save_mixture(
    job: Job,
    conversations: Iterable[Conversation],
    settings: ProblemSettings,
    context_tokens: int | None,
    counts: Counter[str],
) -> dict[str, object]:
    """Normalise, split, check and measure the conversations, and write what is left as examples."""
    from rufus_core.data.chat import load_chat  # brings transformers, which problem sets don't need

    chat = load_chat(job.input("base"))
    lengths: dict[int, tuple[int, int]] = {}

    def measure(example: SupervisedExample) -> int:
        ids = chat.example_ids([(example.messages, example.supervise, example.tools)])[0]
        lengths[id(example)] = len(ids.token_ids), sum(ids.loss_mask)
        return len(ids.token_ids)

    cap = min(settings.sample_cap_tokens or context_tokens or 2**31, context_tokens or 2**31)
    unique = deduplicate(normalise(conversations, counts), counts)
    examples = list(valid((e for c in unique for e in _examples(c, settings, counts)), counts, measure, cap))
    if not examples:
        told = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()) if count)
        raise ConfigError("no example is left after normalising, splitting and checking", hint=f"counts: {told}")
    save_examples(job.output / "examples.jsonl", examples)
    report = composition((e.category, lengths[id(e)][1]) for e in examples).as_dict()
    counts["examples"] = len(examples)
    return report


def _examples(conversation: Conversation, settings: ProblemSettings, counts: Counter[str]) -> list[SupervisedExample]:
    """Of a generated problem its answer alone: an earlier turn of its prompt may be all of a held-out problem's."""
    examples = list(split(conversation, counts))
    return examples if settings.sources[conversation.source].generator is None else examples[-1:]
