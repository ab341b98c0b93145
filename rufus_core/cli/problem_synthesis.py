"""`rufus problems synthesize`: make instruction-following problems with models behind endpoints, or with scripts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from rufus_core.cli.changes import printable
from rufus_core.cli.output import console, print_json
from rufus_core.errors import ConfigError, DataError
from rufus_core.lineage.files import told_plainly
from rufus_core.types import Json

if TYPE_CHECKING:
    from rufus_core.jobs.synthesis.make import Made, SynthesisPlan

SHOWN = 5  # reasons of what failed, each a line
_MODEL = "MODEL"  # openai:ID, or openai:ID@URL


def synthesize(
    output: Annotated[Path, typer.Argument(metavar="FILE.jsonl", help="Where the problems go.")],
    queries: Annotated[
        Path | None,
        typer.Option(metavar="FILE.jsonl", help="Requests to begin with, one a row, perhaps with who asks (persona)."),
    ] = None,
    single: Annotated[int, typer.Option(min=0, metavar="N", help="Single-turn problems.")] = 14,
    multi: Annotated[int, typer.Option(min=0, metavar="N", help="Multi-turn dialogues.")] = 13,
    teacher: Annotated[
        str | None,
        typer.Option(
            metavar=_MODEL,
            help="Plays the user, writes checkers, attempts each problem: openai:ID or openai:ID@URL. Else a script.",
        ),
    ] = None,
    assistant: Annotated[
        list[str] | None, typer.Option(metavar=_MODEL, help="Plays the assistant; give several, and they rotate.")
    ] = None,
    judge: Annotated[
        str | None, typer.Option(metavar=_MODEL, help="Answers rubrics that no program decides; else there are none.")
    ] = None,
    policy: Annotated[
        str | None, typer.Option(metavar=_MODEL, help="Drop what this one finds too easy; else nothing is.")
    ] = None,
    checkers: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=4,
            metavar="N",
            help="Constraints of a single turn that the teacher writes, each with a checker; 1, of a script 0.",
        ),
    ] = None,
    min_turns: Annotated[int, typer.Option(min=2, metavar="N", help="Least turns of a dialogue's user.")] = 4,
    max_turns: Annotated[int, typer.Option(min=2, metavar="N", help="Most turns of a dialogue's user.")] = 8,
    system_share: Annotated[
        float, typer.Option(min=0, max=1, metavar="SHARE", help="Share of dialogues with a system prompt.")
    ] = 0.3,
    temperature: Annotated[float, typer.Option(min=0, help="Of all models but the judge.")] = 1.0,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Of one reply; by default the server's own limit.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Another seed makes other problems.")] = 0,
    workers: Annotated[int, typer.Option(min=1, metavar="N", help="How many problems are made side by side.")] = 8,
    json_: Annotated[bool, typer.Option("--json", help="Print the report as JSON; progress goes to stderr.")] = False,
) -> None:
    """Make instruction-following problems from queries: constraints that a program checks, and adversarial dialogues.

    Models are asked at RUFUS_TEACHER_URL; without a teacher scripts play all parts. What is finished is kept beside the
    file, so that the same command goes on where it was. Exits with 1 if something failed, which is then asked again.
    """
    from rufus_core.data.synthesis.dialogue import OWN_QUERIES
    from rufus_core.data.synthesis.queries import load_queries
    from rufus_core.jobs.synthesis.make import make_problems
    from rufus_core.jobs.synthesis.models import ModelNames, open_models
    from rufus_core.sandbox.interpreter import InterpreterPool
    from rufus_core.sandbox.lazy import LazySandbox

    if output.suffix != ".jsonl":
        raise ConfigError(f"{output.name!r} isn't named as JSON Lines", where="FILE.jsonl", hint="end it with .jsonl")
    if teacher is None and checkers:
        raise ConfigError("scripts write no checkers", where="--checkers", hint="name a --teacher")
    if teacher is not None and multi and not assistant:
        hint = "name one --assistant at least, or ask for --multi 0"
        raise ConfigError("the dialogues of a teacher need an assistant", where="--assistant", hint=hint)
    num_written = checkers if checkers is not None else int(teacher is not None)
    asked = OWN_QUERIES if queries is None else load_queries(queries)
    plan = _plan(single, multi, min_turns, max_turns, system_share, num_written, seed, workers)
    names = ModelNames(teacher=teacher, assistants=tuple(assistant or ()), judge=judge, policy=policy)
    folder = output.with_suffix(".synthesis")
    with told_plainly("make the folder of what is finished", folder):
        if output.is_dir():
            raise ConfigError("a folder is where the problems should go", where=str(output), hint="name another file")
        folder.mkdir(parents=True, exist_ok=True)
    lazy = LazySandbox(lambda: InterpreterPool(min(workers, os.cpu_count() or 1)))
    with open_models(names, temperature, max_tokens, workers) as models, lazy as sandbox, _bars() as bars:
        made = make_problems(plan, models, asked, folder, sandbox, bars)
    _write(output, folder, made)
    if json_:
        print_json({"file": str(output), **made.report})
    else:
        _show(output, made, console())
    if made.failures:
        raise typer.Exit(1)


def _plan(
    single: int, multi: int, min_turns: int, max_turns: int, share: float, num_written: int, seed: int, workers: int
) -> SynthesisPlan:
    from rufus_core.data.synthesis.dialogue import SynthesisSettings
    from rufus_core.jobs.synthesis.make import SynthesisPlan

    if not single + multi:
        raise ConfigError("nothing is asked for", hint="give --single or --multi a number")
    if max_turns < min_turns:
        raise ConfigError(f"--max-turns {max_turns} is below --min-turns {min_turns}", hint="raise the one")
    shape = {"min_turns": min_turns, "max_turns": max_turns, "system_share": share}
    dialogues = SynthesisSettings.model_validate({"count": multi, **shape}) if multi else None
    return SynthesisPlan(num_single=single, dialogues=dialogues, num_written=num_written, seed=seed, workers=workers)


@contextmanager
def _bars() -> Iterator[Callable[[str, int], Callable[[], None]]]:
    """A bar for each phase on a terminal's stderr; elsewhere a line as each begins."""
    err = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:

        def begin(phase: str, total: int) -> Callable[[], None]:
            if total and not err.is_terminal:
                err.print(f"{phase}: {total:,}")
            bar = progress.add_task(phase, total=total)
            return lambda: progress.advance(bar)

        yield begin


def _write(output: Path, folder: Path, made: Made) -> None:
    """The report, what was dropped, then the problems, whole or not at all. Raises DataError where there is none."""
    report = json.dumps(made.report, indent=2, ensure_ascii=False, allow_nan=False)
    (folder / "report.json").write_text(report + "\n", encoding="utf-8")
    rows = [{"id": each.id, "reason": each.reason.value, "detail": each.detail} for each in made.dropped]
    _write_lines(folder / "dropped.jsonl", [json.dumps(row, ensure_ascii=False) for row in rows])
    if not made.problems:
        told = "; ".join(_reasons(made.report))
        hint = "the same command asks for what failed again" if made.failures else "ask for more, or of other models"
        raise DataError(f"no problem is left: {told}", where=str(output), hint=hint)
    _write_lines(output, [problem.model_dump_json() for problem in made.problems])


def _write_lines(path: Path, lines: Sequence[str]) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    part.replace(path)


def _reasons(report: dict[str, Json]) -> list[str]:
    return [f"{reason} {count:,}" for part in ("dropped", "failed") for reason, count in report[part].items()]


def _show(output: Path, made: Made, out: Console) -> None:
    report = made.report
    kept = ", ".join(f"{source} {count:,}" for source, count in report["kept_by_source"].items())
    out.print(Text(printable(f"{output}: {report['kept']:,} of {report['asked']:,} asked for ({kept})"), style="bold"))
    turns = f", {report['user_turns_mean']:.1f} turns of a dialogue's user" if report["user_turns_mean"] else ""
    out.print(f"on average {report['rubrics_mean']:.1f} rubrics{turns}")
    for name in ("dropped", "failed"):
        if report[name]:
            out.print(f"{name}: " + ", ".join(f"{reason} {count:,}" for reason, count in report[name].items()))
    checkers = report["checkers"]
    if checkers["admitted"] or checkers["refused"]:
        refused = ", ".join(f"{fault} {count:,}" for fault, count in checkers["refused"].items()) or "none"
        out.print(f"checkers: {checkers['admitted']:,} admitted, refused: {refused}")
    models = report["models"]
    out.print(Text(printable(f"quality: {models['quality']}; difficulty: {models['difficulty'] or 'not asked'}")))
    for part, used in report["usage"].items():
        cost = f", cost {used['cost']:.4f}" if "cost" in used else ""
        out.print(
            f"{part}: {used['requests']:,} requests ({used['retries']:,} again), {used['prompt_tokens']:,} tokens in,"
            f" {used['completion_tokens']:,} out, {used['mean_seconds']:.2f} s each{cost}"
        )
    for reason, count in list(report["unfinished"].items())[:SHOWN]:
        out.print(Text(printable(f"failed {count:,} times: {reason}")))
    if made.failures:
        out.print("the same command asks for what failed again")
    else:
        out.print(Text(printable(f"next:  rufus problems inspect {output} --num 5")))
