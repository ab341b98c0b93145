"""The `rufus` command. Each command is a function in its own file; what is heavy, a command imports when it runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from rufus_core.cli.adopt import adopt
from rufus_core.cli.changes import printable
from rufus_core.cli.chat import chat
from rufus_core.cli.collect import collect
from rufus_core.cli.deploy import deploy
from rufus_core.cli.diff import diff
from rufus_core.cli.doctor import doctor
from rufus_core.cli.eval import eval_
from rufus_core.cli.export import export
from rufus_core.cli.grade import grade
from rufus_core.cli.impact import impact
from rufus_core.cli.plan import plan
from rufus_core.cli.problems import problems
from rufus_core.cli.rebuild import rebuild_mlflow
from rufus_core.cli.reproduce import reproduce
from rufus_core.cli.rollouts import rollouts
from rufus_core.cli.run import run
from rufus_core.cli.serve import serve
from rufus_core.cli.simulate import simulate
from rufus_core.cli.table import table
from rufus_core.cli.trace import trace
from rufus_core.cli.ui import ui
from rufus_core.cli.verify import verify
from rufus_core.errors import RufusError
from rufus_core.lineage.files import machine_hint

COMMANDS: tuple[Callable[..., Any], ...] = (
    run,
    plan,
    simulate,
    eval_,
    grade,
    trace,
    diff,
    impact,
    verify,
    reproduce,
    export,
    adopt,
    serve,
    chat,
    collect,
    table,
    ui,
    rebuild_mlflow,
    deploy,
    doctor,
)

app = typer.Typer(name="rufus", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for command in COMMANDS:
    app.command(command.__name__.removesuffix("_").replace("_", "-"))(command)  # `eval` is Python's own word
app.add_typer(problems)
app.add_typer(rollouts)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rufus {version('rufus-air')}")
        raise typer.Exit


@app.callback()
def _rufus(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Post-train a language model in eight stages: from a laptop's CPU to a cluster."""


def _require_folder() -> None:
    """Paths that a user gives start at the current folder. Raises RufusError when it was deleted."""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise RufusError("the current folder was deleted", hint="cd to another one") from None


def _print_error(error: RufusError) -> None:
    """Names of files and of what is in them are anybody's, and may not steer the terminal."""
    print("error: " + "\n".join(map(printable, str(error).split("\n"))), file=sys.stderr)


def main() -> None:
    """Run the command line.

    A user's mistake, and what the machine refuses (a full disk, say), is one line on stderr and an exit code.
    """
    try:
        _require_folder()
        app()
    except RufusError as error:
        _print_error(error)
        sys.exit(error.exit_code)
    except OSError as error:
        hint = machine_hint(error)
        if hint is None:
            raise
        _print_error(RufusError(str(error.strerror), where=error.filename, hint=hint))
        sys.exit(RufusError.exit_code)
    except SystemExit as stop:
        leaving = stop.__context__  # typer's: made from the interrupt, unless the command chose to leave
        if leaving and isinstance(leaving.__cause__, KeyboardInterrupt):
            print("interrupted", file=sys.stderr)
        raise


if __name__ == "__main__":
    main()
