"""What `rufus problems` prints of a set: tables as Tables 5, 7 and 13, and one problem whole."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rufus_core.cli.changes import printable
from rufus_core.cli.problem_sets import ProblemSet, Screen
from rufus_core.cli.transcript import print_message
from rufus_core.errors import DataError, LineageError
from rufus_core.evaluation.problem_sets import SHORT_LABEL_TOKENS, SetFacts, preference_candidates
from rufus_core.evaluation.screening import DECISIONS, Screened
from rufus_core.lineage.resolve import Ref
from rufus_core.lineage.sharing import fetch
from rufus_core.lineage.store import Store
from rufus_core.types import Json, Problem

if TYPE_CHECKING:
    from rufus_core.rewards.preference_analysis import PreferenceReport

ID_DIGITS = 12
MAX_KINDS = 12  # kinds of rubrics on the line; --json has all
_MAX_TRUTH = 4000  # characters of a ground truth


def show_set(found: ProblemSet, out: Console) -> None:
    facts = found.facts()
    sizes = ", ".join(f"{split} {len(some):,}" for split, some in found.splits.items())
    told = sizes if len(found.splits) > 1 else f"{len(found.problems):,} problems"  # a file isn't split yet
    out.print(Text(printable(f"{found.title}: {told}"), style="bold"), soft_wrap=True)
    out.print(_groups(facts, found.unit.partition(" ")[0]))
    if facts.domains:
        out.print(_domains(facts, found.unit.partition(" ")[0]))
    for line in _lines(found, facts):
        out.print(Text(printable(line)))


def _groups(facts: SetFacts, unit: str) -> Table:
    """Families and sources with their shares of prompts and of prompt tokens (T5, T7)."""
    table = plain_table(("family", "source", "modality"), ("problems", "%", unit, "%"))
    for each in facts.groups:
        table.add_row(
            *(Text(printable(text)) for text in (each.family, each.source, each.modality)),
            f"{each.num_problems:,}",
            percent(each.share),
            f"{each.num_tokens:,}",
            percent(each.token_share),
        )
    if len(facts.groups) > 1:
        table.add_row("total", "", "", f"{facts.num_problems:,}", "100.0", f"{facts.num_tokens:,}", "100.0")
    return table


def _domains(facts: SetFacts, unit: str) -> Table:
    """Subjects of Reasoning RL as a keyword heuristic sees them: each family, then its domains (T5)."""
    table = plain_table(("subject", "domain"), ("problems", "%", unit, "%"))
    for family, some in groupby(facts.domains, key=attrgetter("family")):
        domains = list(some)
        for name, domain, each in ((family, "", domains), *(("", one.domain, [one]) for one in domains)):
            table.add_row(
                *(Text(printable(text)) for text in (name, domain)),
                f"{sum(one.num_problems for one in each):,}",
                percent(sum(one.share for one in each)),
                f"{sum(one.num_tokens for one in each):,}",
                percent(sum(one.token_share for one in each)),
            )
    return table


def _lines(found: ProblemSet, facts: SetFacts) -> Iterator[str]:
    yield f"prompts are measured in {found.unit}"
    if facts.answers:
        share, middle = percent(facts.answers.share), f"{facts.answers.median_tokens:g}"
        yield f"{share}% are answered by a short label (up to {SHORT_LABEL_TOKENS}, median {middle})"
    for tests in facts.tests:
        yield (
            f"tests for each {tests.modality} problem: {tests.least:,} to {tests.most:,}, median {tests.median:g}"
            f" ({tests.num_problems:,} problems)"
        )
    if facts.platforms:
        names = list(facts.platforms.items())[:MAX_KINDS]
        told = ", ".join(f"{name} {count:,} ({percent(count / facts.num_problems)}%)" for name, count in names)
        yield f"from the platforms {told}"
    if facts.rubrics:
        counts = ", ".join(f"{count} x {number:,}" for count, number in facts.rubrics.by_count.items())
        yield f"constraints for each prompt: mean {facts.rubrics.mean:.1f} ({counts})"
        kinds = [f"{kind} {number:,}" for kind, number in facts.rubrics.by_kind.items()]
        more = f", and {len(kinds) - MAX_KINDS} kinds more" if len(kinds) > MAX_KINDS else ""
        yield f"of kinds: {', '.join(kinds[:MAX_KINDS])}{more}"
    if facts.turns:
        yield (
            f"{facts.turns.num_problems:,} conversations of several turns: mean {facts.turns.mean_turns:.1f} of users,"
            f" {facts.turns.num_with_system:,} with a system prompt"
        )
    if facts.num_pairs:
        yield f"{facts.num_pairs:,} preference pairs (--reward-model scores them)"
    if found.faults:
        yield f"{len(found.faults):,} problems can't be graded: {found.faults[0]}"
    yield from _dropped(found.report)


def _dropped(report: Mapping[str, Json]) -> Iterator[str]:
    """What each filter and each screen took away, by source."""
    for name, sources in report.get("filters", {}).items():
        told = ", ".join(f"{source} {count:,}" for source, count in sources.items())
        yield f"{name} dropped {sum(sources.values()):,}" + (f" ({told})" if told else "")
    if "window" in report:
        counts = report["counts"]
        told = ", ".join(f"{word} {counts[word]:,}" for word in DECISIONS if word in counts)
        yield f"screened by {report['window']} at n={report['num_attempts']}: {told}"


def list_problems(problems: Sequence[Problem], out: Console) -> None:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for name in ("problem", "family", "source"):
        table.add_column(name, no_wrap=True)
    table.add_column("asks")  # the only one that gives way where a terminal is narrow
    for each in problems:
        asked = printable(" ".join(each.prompt[-1].content.split()))
        row = (each.id[:ID_DIGITS], each.family, each.source)
        table.add_row(*(Text(printable(text)) for text in row), Text(asked, no_wrap=True, overflow="ellipsis"))
    out.print()
    out.print(table)


def show_problem(problem: Problem, seen: Sequence[tuple[Screen, Screened]], out: Console) -> None:
    """The prompt turn by turn, the ground truth, and how often it was passed."""
    out.print(Text(printable(f"problem {problem.id}, {problem.family} of {problem.source}"), style="bold"))
    for message in problem.prompt:
        print_message(message, out)
    if problem.tools:
        out.print()
        out.print(Text(printable(f"tools: {', '.join(tool.name for tool in problem.tools)}"), style="cyan"))
    out.print()
    out.print(Text("ground truth, which no policy sees", style="bold"))
    truth = json.dumps(problem.ground_truth, indent=2, ensure_ascii=False)
    for line in truth[:_MAX_TRUTH].split("\n"):
        out.print(Text(f"  {printable(line)}"))
    if len(truth) > _MAX_TRUTH:
        out.print(f"  and {len(truth) - _MAX_TRUTH:,} characters more (--json has them)")
    out.print()
    if not seen:
        out.print("no screen has played it")
        return
    table = plain_table(("screen", "sampler"), ("passed", "of", "lost"))
    table.add_column("verdict")
    for screen, row in seen:
        for name, each in row.attempts.items():
            policy = screen.policy if len(row.attempts) == 1 else name
            lost = each.num_aborted + each.num_unscorable
            numbers = (str(each.num_passed), str(each.num_scored), str(lost))
            named = Text(f"{screen.record.name.rpartition('/')[2]} {screen.record.digest[:12]}", no_wrap=True)
            table.add_row(named, Text(printable(policy)), *numbers, row.verdict)
    out.print(table)


def analysed(store: Store, ref: Ref, found: ProblemSet) -> PreferenceReport:
    """Table 13's analysis of a set's preference pairs by one reward model."""
    if ref.record.kind != "reward_model":
        raise LineageError(f"{ref.record.id} is no reward model: its kind is {ref.record.kind}", where="--reward-model")
    candidates = preference_candidates(found.problems)
    if not candidates:
        raise DataError("the set holds no preference pairs", where=found.title, hint="rows need chosen and rejected")
    from rufus_core.rewards.preference_analysis import analyse
    from rufus_core.training.reward_model import RewardModel

    model = RewardModel.load(fetch(store, ref.record))
    return analyse(found.title, candidates, model, lambda text: found.count([text])[0])


def show_pairs(report: PreferenceReport, out: Console) -> None:
    from rufus_core.rewards.preference_analysis import HEADINGS, SCALE_NOTE

    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for index, name in enumerate(HEADINGS):
        table.add_column(name, justify="right" if index else "left", overflow="fold")
    table.add_row(*(Text(printable(cell)) for cell in report.row))
    out.print()
    out.print(table)
    if report.agreement is not None:
        out.print(f"the chosen response scores higher in {percent(report.agreement)}% of the pairs")
    for reason, number in report.dropped.items():
        out.print(f"not valid: {number:,} {reason}")
    out.print(SCALE_NOTE)


def plain_table(left: Sequence[str], right: Sequence[str]) -> Table:
    """Names to the left, numbers to the right; names give way where a terminal is narrow."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for name in left:
        table.add_column(name, overflow="fold")
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def percent(share: float) -> str:
    return f"{100 * share:.1f}"
