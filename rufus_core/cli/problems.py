"""`rufus problems`: make a stage's problem set, screen it with a policy, look at any set, and synthesise one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from rufus_core.cli.output import chosen, console, print_json
from rufus_core.cli.parts import Home, Overrides, Profile, RecipeFile, Shared, open_home
from rufus_core.cli.problem_synthesis import synthesize
from rufus_core.errors import LineageError

if TYPE_CHECKING:
    from rufus_core.lineage.record import Record
    from rufus_core.lineage.store import Store
    from rufus_core.ports.orchestration import RunOutcome

problems = typer.Typer(
    name="problems",
    no_args_is_help=True,
    help="Build a stage's problem set, screen it with a policy, look into it; make one with models of yours.",
)

Stage = Annotated[str, typer.Argument(metavar="STAGE", help="A stage of the recipe.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON; progress goes to stderr.")]


@problems.command()
def build(
    stage: Stage,
    profile: Profile = "cpu",
    recipe: RecipeFile = "rufus_air",
    set_: Overrides = None,
    home: Home = None,
    shared: Shared = None,
    json_: AsJson = False,
) -> None:
    """Make one stage's problem set, with the filters that need no policy, and show what is in it.

    It is the artifact that `rufus run` makes: what is intact is reused, also by a later run.
    """
    from rufus_core.cli.orchestration import carry_out
    from rufus_core.cli.problem_sets import load_set
    from rufus_core.cli.problem_tables import show_set
    from rufus_core.recipe.load import load_recipe
    from rufus_core.recipe.screens import data_graph

    settings = load_recipe(recipe, profile, set_ or [])
    graph = data_graph(settings, stage)
    place, store = open_home(home, shared)
    out = _progress_console(json_)
    (record,) = _records(carry_out(settings, graph, place, out), store, [f"data/{stage}"])
    found = load_set(store, record)
    if json_:
        print_json(found.as_json())
        return
    out.print()
    show_set(found, out)
    out.print(f"next:  rufus problems inspect {stage} --num 5")


@problems.command()
def screen(
    stage: Stage,
    policy: Annotated[
        str | None,
        typer.Option(metavar="CHECKPOINT", help="Screen with this one: a stage, a stage and step (sft@200), a digest."),
    ] = None,
    num_attempts: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Attempts of the policy at each problem.")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="SCREEN", help="Show what moved since this screen: its name or digits of its digest."),
    ] = None,
    profile: Profile = "cpu",
    recipe: RecipeFile = "rufus_air",
    set_: Overrides = None,
    home: Home = None,
    shared: Shared = None,
    json_: AsJson = False,
) -> None:
    """Play a stage's training problems with a policy, and show which of them stay in the recipe's window.

    Makes what is missing. By default the policy is the checkpoint that the stage starts from; with `--policy` another
    one of the store screens, and what moved since the last screen is shown. An interrupted screen goes on where it was.
    """
    from rufus_core.cli.orchestration import carry_out
    from rufus_core.cli.problem_sets import earlier_screen, load_screen
    from rufus_core.cli.screen_tables import screen_json, show_screen
    from rufus_core.recipe.load import load_recipe
    from rufus_core.recipe.screens import screen_graph

    settings = load_recipe(recipe, profile, set_ or [])
    place, store = open_home(home, shared)
    ref = None if policy is None else chosen(store, policy)
    graph, names = screen_graph(settings, stage, ref, num_attempts)
    given = None if against is None else _screen_of(store, against)
    out = _progress_console(json_)
    records = _records(carry_out(settings, graph, place, out), store, names)
    shown = []
    for record in records:
        before = given or (earlier_screen(store, record) if record.name.startswith("rescreens/") else None)
        shown.append((load_screen(store, record), None if before is None else load_screen(store, before)))
    if json_:
        print_json([screen_json(new, old) for new, old in shown])
        return
    for new, old in shown:
        out.print()
        show_screen(new, old, out)


@problems.command()
def inspect(
    what: Annotated[
        str,
        typer.Argument(metavar="SET", help="A stage, an artifact's name or digits of its digest, or a .jsonl file."),
    ],
    problem: Annotated[
        str | None, typer.Option(metavar="ID", help="Show this one whole; the first digits will do.")
    ] = None,
    source: Annotated[str | None, typer.Option(metavar="SOURCE", help="Only problems of this source.")] = None,
    num: Annotated[int, typer.Option(min=0, metavar="N", help="Also list the first N problems.")] = 0,
    reward_model: Annotated[
        str | None,
        typer.Option(
            metavar="RECORD", help="Score preference pairs with this one, for example stages/rlhf/reward_model."
        ),
    ] = None,
    home: Home = None,
    shared: Shared = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Show what is in a problem set: families, sources, prompt tokens, answers, tests, constraints; or one problem.

    Reads any set: the newest of a stage, one by its digest, or a file of yours. Plays nothing and makes nothing.
    """
    from rufus_core.cli.problem_sets import find_set, screens_on
    from rufus_core.cli.problem_tables import analysed, list_problems, show_pairs, show_problem, show_set

    _, store = open_home(home, shared, cached=True)
    found = find_set(store, what).of_source(source)
    out = console()
    if problem is not None:
        one = found.problem(problem)
        seen = screens_on(store, one.id)
        if json_:
            rows = [{"screen": screened.record.id, **row.model_dump(mode="json")} for screened, row in seen]
            print_json({**one.model_dump(mode="json"), "screens": rows})
        else:
            show_problem(one, seen, out)
        return
    pairs = None if reward_model is None else analysed(store, chosen(store, reward_model), found)
    if json_:
        shown = found.as_json()
        if pairs is not None:
            shown["pairs"] = pairs.model_dump(mode="json")
        if num:
            shown["problems"] = [each.model_dump(mode="json") for each in found.problems[:num]]
        print_json(shown)
        return
    show_set(found, out)
    if pairs:
        show_pairs(pairs, out)
    if num:
        list_problems(found.problems[:num], out)


problems.command()(synthesize)


def _progress_console(json_: bool) -> Console:
    return Console(stderr=True, highlight=False) if json_ else console()


def _records(outcome: RunOutcome, store: Store, names: Sequence[str]) -> list[Record]:
    records = []
    for name in names:
        record = store.get(outcome.steps[name].record_id or "")
        assert record is not None
        records.append(record)
    return records


def _screen_of(store: Store, text: str) -> Record:
    record = chosen(store, text).record
    if record.kind != "screen":
        raise LineageError(f"{record.id} is no screen: its kind is {record.kind}", where="--against")
    return record
