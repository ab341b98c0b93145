"""Filters that look at problems alone, by the name a recipe gives them (RRL-D2, CRL-D3 to D5, DECON-12, RM-D1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rufus_core.data.benchmarks import Benchmark
from rufus_core.data.code_filters import find_leak
from rufus_core.data.code_layouts import date_of, platform_of
from rufus_core.data.code_leakage import GRAM_CHARS, MIN_SHARED, OPENING_CHARS, read_reference
from rufus_core.data.code_records import FAMILIES, statement_in, statement_key
from rufus_core.data.decontaminate import Screen, problem_turns
from rufus_core.data.jsonl import read_rows
from rufus_core.data.preference_sets import candidate_of
from rufus_core.data.text import words
from rufus_core.errors import ConfigError, DataError
from rufus_core.jobs.problem_schema import problem_fault
from rufus_core.rewards.preference import DEGENERATE_REPEATED_SHARE, MIN_TOKENS
from rufus_core.rewards.preference_analysis import invalid
from rufus_core.types import Frozen, Json, Problem

Admit = Callable[[Problem], str | None]  # why a problem is dropped; None: it stays
ITEM_FIELDS = ("question", "problem", "prompt", "question_content", "instruction", "text", "statement")
ID_FIELDS = ("id", "task_id", "question_id", "key")
SCHEMA = "schema"
DEDUPLICATION = "deduplication"
BENCHMARKS = "benchmarks"  # the option that maps a benchmark's name to its file


class Dropped(Frozen):
    """A problem that a filter dropped, and why."""

    id: str
    source: str
    filter: str
    reason: str


@dataclass(frozen=True, slots=True)
class Filter:
    """`make(options, files)` gives a filter that remembers what it has seen. `files` are benchmarks by name."""

    make: Callable[[Mapping[str, Json], Mapping[str, Path]], Admit]
    options: tuple[str, ...] = ()
    needs: str | None = None  # the option without which it can't run


class Filters:
    """A recipe's filters in their order. What one drops, the later ones never see."""

    def __init__(self, chain: Mapping[str, Admit]) -> None:
        self._chain = chain
        self.dropped: list[Dropped] = []

    def admitted(self, problems: Iterator[Problem]) -> Iterator[Problem]:
        for problem in problems:
            fault = self._fault(problem)
            if fault is None:
                yield problem
            else:
                self.dropped.append(fault)

    def refuse(self, key: str, source: str, reason: str) -> None:
        """Note a row that was no problem: the filter `schema` dropped it while it was read."""
        self.dropped.append(Dropped(id=key, source=source, filter=SCHEMA, reason=reason))

    def _fault(self, problem: Problem) -> Dropped | None:
        for name, admit in self._chain.items():
            if reason := admit(problem):
                return Dropped(id=problem.id, source=problem.source, filter=name, reason=reason)
        return None


def _schema(_options: Mapping[str, Json], _files: Mapping[str, Path]) -> Admit:
    return problem_fault


def _deduplication(_options: Mapping[str, Json], _files: Mapping[str, Path]) -> Admit:
    """The first problem of a statement stays; case and whitespace tell no two apart."""
    first: dict[str, str] = {}

    def admit(problem: Problem) -> str | None:
        key = statement_key(statement(problem))
        kept = first.setdefault(key, problem.id)
        return None if kept == problem.id else f"asks what {kept} asks"

    return admit


def _contamination(options: Mapping[str, Json], files: Mapping[str, Path]) -> Admit:
    """Detectors A and B: a benchmark's item is in the prompt."""
    screens = [
        Screen(
            Benchmark.build(name, benchmark_items(path)),
            phrases_per_item=options.get("phrases_per_item", 20),
            drop_share=float(options.get("drop_share", 0.5)),
            allowed=options.get("allowed", ()),
        )
        for name, path in files.items()
    ]

    def admit(problem: Problem) -> str | None:
        turns = [words(turn) for turn in problem_turns(problem)]
        for screen in screens:
            for match in screen.matches(turns):
                if match.share >= screen.drop_share and match.item_id not in screen.allowed:
                    share = f"{len(match.phrases)} of {match.num_phrases} phrases"
                    return f"holds {share} of {screen.benchmark.name} {match.item_id}: {match.phrases[0]!r}"
        return None

    return admit


def _policy_issues(options: Mapping[str, Json], _files: Mapping[str, Path]) -> Admit:
    """The paper prints no criteria: a problem is dropped that holds one of the recipe's own phrases."""
    phrases = [" ".join(words(str(phrase))) for phrase in options["phrases"]]

    def admit(problem: Problem) -> str | None:
        turns = [" ".join(words(turn)) for turn in problem_turns(problem)]
        return next((f"holds {phrase!r}" for phrase in phrases if any(phrase in turn for turn in turns)), None)

    return admit


def _leakage(options: Mapping[str, Json], files: Mapping[str, Path]) -> Admit:
    """Coding problems that a benchmark holds, or may hold by platform and date."""
    _require_equal(options, "prefix_chars", OPENING_CHARS)
    _require_equal(options, "ngram_chars", GRAM_CHARS)
    _require_equal(options, "benchmark", *files)
    least = int(options.get("min_shared_ngrams", MIN_SHARED))
    references = [
        read_reference(path, min_shared=least, common_from=options.get("common_from")) for path in files.values()
    ]

    def admit(problem: Problem) -> str | None:
        truth = problem.ground_truth
        for reference in references:
            platform, name = platform_of(truth), str(truth.get("name", ""))
            found = find_leak(statement(problem), platform, date_of(truth), reference, name)
            if found is not None:
                return ": ".join(filter(None, found))
        return None

    return admit


def _validity(options: Mapping[str, Json], _files: Mapping[str, Path]) -> Admit:
    """Preference pairs of which a response is missing, empty, equal or degenerate; other prompts stay (RM-D1)."""
    _require_equal(options, "min_tokens", MIN_TOKENS)
    _require_equal(options, "max_repeated_ngram_share", DEGENERATE_REPEATED_SHARE)
    _require_equal(options, "allow_equal_responses", False)

    def admit(problem: Problem) -> str | None:
        candidate = candidate_of(problem)
        return None if candidate is None else invalid(candidate)

    return admit


def _require_equal(options: Mapping[str, Json], name: str, *able: Json) -> None:
    """An option that states what is fixed here. Raises ValueError for another value."""
    if name in options and options[name] not in able:
        raise ValueError(f"{name} is {options[name]!r}, and this release knows {', '.join(map(repr, able))}")


FILTERS: dict[str, Filter] = {
    SCHEMA: Filter(_schema),
    DEDUPLICATION: Filter(_deduplication),
    "contamination": Filter(
        _contamination, (BENCHMARKS, "phrases_per_item", "drop_share", "allowed"), needs=BENCHMARKS
    ),
    "leakage": Filter(
        _leakage,
        (BENCHMARKS, "benchmark", "prefix_chars", "ngram_chars", "min_shared_ngrams", "common_from"),
        needs=BENCHMARKS,
    ),
    "validity": Filter(_validity, ("min_tokens", "max_repeated_ngram_share", "allow_equal_responses")),
    "policy_issues": Filter(_policy_issues, ("phrases",), needs="phrases"),
}


def make_filters(settings: Mapping[str, Mapping[str, Json]], files: Mapping[str, Mapping[str, Path]]) -> Filters:
    """The filters of a recipe, in its order.

    Args:
        settings: options by filter; `benchmarks` is left out of them.
        files: benchmark files by filter and by name.

    Raises:
        ConfigError: an option can't be used.
        DataError: a benchmark's file can't be read, or holds no items.
    """
    chain = {}
    for name, options in settings.items():
        try:
            chain[name] = FILTERS[name].make(options, files.get(name, {}))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"an option of the filter {name} can't be used: {error}") from error
    return Filters(chain)


def statement(problem: Problem) -> str:
    """What a problem asks: all but the system prompt and, of a coding problem, starter code and the name asked for."""
    text = "\n".join(message.content for message in problem.prompt if message.role != "system")
    return statement_in(text) if problem.family in FAMILIES.values() else text


def benchmark_items(path: Path) -> dict[str, str]:
    """The texts of a benchmark's items, by id; a row without an id is named by its number.

    Raises:
        DataError: the file can't be read, or a row has no text.
    """
    items = {}
    for number, (where, row) in enumerate(read_rows(path), start=1):
        text = _first_text(row, ITEM_FIELDS)
        if text is None:
            hint = f"expected one of {', '.join(ITEM_FIELDS)}"
            raise DataError("the item has no text", where=where, hint=hint)
        given = next((row[name] for name in ID_FIELDS if isinstance(row.get(name), str | int)), number)
        items[str(given)] = text
    return items


def _first_text(row: Mapping[str, Json], names: Sequence[str]) -> str | None:
    return next((row[name] for name in names if isinstance(row.get(name), str) and row[name].strip()), None)
