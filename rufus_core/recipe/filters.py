"""The offline filters of a recipe: which of them are screens, which of them run here, and their identity."""

from __future__ import annotations

from collections.abc import Mapping

from rufus_core.errors import ConfigError
from rufus_core.jobs.filters import BENCHMARKS, DEDUPLICATION, FILTERS, SCHEMA
from rufus_core.recipe.validate import nearest
from rufus_core.settings import ENDPOINT, POLICY, FilterSettings, RLStage, SFTStage
from rufus_core.types import Json


def screens_of(stage: RLStage) -> dict[str, FilterSettings]:
    """The filters that play problems, in their order."""
    return {name: each for name, each in stage.problems.filters.items() if each.samplers}


def benchmark_files(settings: FilterSettings) -> dict[str, str]:
    """Paths of the benchmark files that a filter reads, by the benchmark's name."""
    given: dict[str, str] = settings.options.get(BENCHMARKS, {})
    return given


def options_of(settings: FilterSettings) -> dict[str, Json]:
    """A filter's options without paths, which are placement."""
    return {name: value for name, value in settings.options.items() if name != BENCHMARKS}


def refuse_filters(filters: Mapping[str, FilterSettings], where: str, stage: RLStage | SFTStage) -> None:
    """Raises ConfigError for a filter that can't be run here, before anything runs."""
    for name, each in filters.items():
        place = f"{where}.{name}"
        if isinstance(stage, SFTStage):
            what = f"this release doesn't run the filters {', '.join(filters)} on supervised data"
            raise ConfigError(what, where=where, hint=f"--set '{where}=!replace {{}}'")
        if each.samplers:
            _refuse_screen(name, each, place, stage)
        else:
            _refuse_filter(name, each, place)
    _refuse_order(filters, where)


def _refuse_order(filters: Mapping[str, FilterSettings], where: str) -> None:
    """The order of RRL-D2 to D5, CRL-D8 and IF-D6. Among filters of one place the recipe's order applies."""
    last, last_place = "", 0
    for name, each in filters.items():
        place = _place(name, each)
        if place < last_place:
            what = f"the filter {name} comes after the {'screen' if filters[last].samplers else 'filter'} {last}"
            raise ConfigError(what, where=f"{where}.{name}", hint=f"put it before {last}: {_REASONS[place]}")
        last, last_place = name, place


def _place(name: str, settings: FilterSettings) -> int:
    if settings.samplers:
        return 4 if set(settings.samplers) == {POLICY} else 3
    return {SCHEMA: 0, DEDUPLICATION: 1}.get(name, 2)


_REASONS = (
    "of two equal statements the one that can't be graded might stay",
    "each statement is looked at once",
    "what it drops needs no sampling",
    "what a teacher never solves needs no attempt of the policy, and another policy changes nothing of it",
)


def _refuse_screen(name: str, settings: FilterSettings, place: str, stage: RLStage) -> None:
    for sampler in settings.samplers:
        if sampler == POLICY:
            continue
        if not sampler.startswith(ENDPOINT) or sampler == ENDPOINT:
            raise ConfigError(
                f"there is no sampler {sampler!r}",
                where=f"{place}.samplers",
                hint=f"{POLICY}, or {ENDPOINT}{sampler} for a model behind an OpenAI-compatible endpoint",
            )
        if stage.tools is not None:
            what = f"{sampler} can't play problems with tools: a model behind an endpoint answers in a single turn"
            raise ConfigError(what, where=f"{place}.samplers", hint=f"samplers: [{POLICY}]")
    if not settings.tools:
        what = f"this release doesn't run the filters {name}: it plays no problem closed-book"
        raise ConfigError(what, where=f"{place}.tools", hint=f"--set {place}.tools=true")
    if settings.options:
        raise ConfigError(f"the screen {name} has no options", where=f"{place}.options")


def _refuse_filter(name: str, settings: FilterSettings, place: str) -> None:
    if name not in FILTERS:
        raise ConfigError(
            f"this release doesn't run the filters {name}: it is none of those that look at a problem alone",
            where=place,
            hint=f"{nearest(name, FILTERS)}; a screen has samplers and num_attempts",
        )
    known = FILTERS[name]
    for option in settings.options:
        if option not in known.options:
            raise ConfigError(
                f"the filter {name} has no option {option!r}",
                where=f"{place}.options",
                hint=nearest(option, known.options),
            )
    if known.needs is not None and not settings.options.get(known.needs):
        given = "{NAME: FILE.jsonl}" if known.needs == BENCHMARKS else "[TEXT]"
        raise ConfigError(
            f"the filter {name} needs {known.needs}",
            where=f"{place}.options",
            hint=f"--set '{place}.options.{known.needs}={given}', or leave the filter out",
        )
    files = settings.options.get(BENCHMARKS, {})
    if not isinstance(files, dict) or not all(isinstance(path, str) for path in files.values()):
        raise ConfigError("benchmarks map names to files", where=f"{place}.options.{BENCHMARKS}")
