"""`rufus trace`: where a checkpoint came from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from rufus_core.cli.changes import printable
from rufus_core.cli.parts import Home, Shared, open_home
from rufus_core.lineage.record import CHECKPOINT_KINDS, Decision
from rufus_core.lineage.trace import Node, Trace
from rufus_core.lineage.trace import trace as trace_artifact
from rufus_core.types import Json

WIDTH = 100
MAX_CONFIG = 150  # characters of a configuration's summary
OWN_LINES = ("sources", "phases")  # of a configuration: told apart from its summary


def trace(
    checkpoint: Annotated[
        str, typer.Argument(help="A stage, a stage and step (coding_rl@12), a digest, or an artifact's name.")
    ],
    home: Home = None,
    shared: Shared = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a tree.")] = False,
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Don't hash the files.")] = False,
) -> None:
    """Show which data, configuration, code and parents made a checkpoint, and why its step was chosen.

    Every artifact on the way is hashed. Exits with 1 if one differs from its record.
    """
    _, store = open_home(home, shared)
    result = trace_artifact(store, store.resolve(checkpoint), verify=not no_verify)
    if as_json:
        typer.echo(result.model_dump_json(indent=2))
    else:
        show(result, _console())
    for problem in result.problems:
        typer.echo(printable(problem), err=True)
    if result.problems:
        raise typer.Exit(1)


def show(result: Trace, console: Console) -> None:
    """Print a trace as a tree of at most 100 columns."""
    step = f", step {result.step}" if result.step is not None else ""
    inside = f" ({result.subfolder})" if result.subfolder else ""
    tree = Tree(Text(f"lineage of {result.node(result.root).name}{inside}{step}"))
    told: set[str] = set()
    for node in result.nodes:
        if (
            node.id == result.root or node.kind in CHECKPOINT_KINDS
        ):  # at the first level, so that a long recipe stays flat
            _grow(tree, node, "", result, told)
    console.print(tree)
    for line in _footer(result):
        console.print(Text(line))


def _grow(tree: Tree, node: Node, role: str, result: Trace, told: set[str]) -> None:
    told.add(node.id)
    branch = tree.add(_title(node, role))
    if node.decision:
        branch.add(Text(_why(node.decision)))
    summary = _summary(node)
    if summary:
        branch.add(Text(f"config: {summary}", style="dim"))
    for phase in phases(node.config):
        branch.add(Text(_phase(phase)))
    for edge in (edge for edge in result.edges if edge.child == node.id):
        parent = result.node(edge.parent)
        if parent.kind in CHECKPOINT_KINDS or parent.id in told:
            branch.add(_mention(parent, edge.role, "above" if parent.id in told else "below"))
        else:
            _grow(branch, parent, edge.role, result, told)


def _title(node: Node, role: str) -> Text:
    text = Text(f"{role}: " if role else "")
    text.append(printable(node.name), style="bold")
    if node.problem:
        text.append(f"  {node.status.upper()}", style="bold red")
    for fact in _facts(node):
        text.append(f"  {fact}")
    return text


def _facts(node: Node) -> Iterator[str]:
    if node.kind == "generator":
        yield "generator"
    if node.status == "collected":
        yield "(collected)"
    if node.status == "shared":
        yield "(only in the shared store)"
    if node.digest:
        yield f"{'sha256' if node.kind == 'data' else 'digest'} {node.digest[:12]}"
    if node.step is not None:
        yield f"step {node.step}"
    if node.seed is not None:
        yield f"seed {node.seed}"
    if node.rows is not None:
        yield f"{node.rows} rows"
    if node.commit:
        yield f"commit {node.commit[:8]}{'-dirty' if node.dirty else ''}"


def _mention(node: Node, role: str, where: str) -> Text:
    digest = f" {node.digest[:12]}" if node.digest else ""
    return Text(f"{role}: {printable(node.name)}{digest} (see {where})")


def _why(decision: Decision) -> str:
    """For example `carried forward: step 8, peak of pass@1 [4: 0.25, 8: 0.5, 12: 0.375], rejected: 4, 12`."""
    values = [f"{c.step}: {c.value:.4g}" for c in decision.candidates if c.value is not None]
    rejected = [str(c.step) for c in decision.candidates if c.step != decision.chosen_step]
    metric = f" of {decision.metric}" if decision.metric else ""
    among = f" [{', '.join(values)}]" if values else ""
    reason = f", {decision.reason}" if decision.reason else ""
    others = f"; rejected: {', '.join(rejected)}" if rejected else ""
    return printable(f"carried forward: step {decision.chosen_step}, {decision.rule}{metric}{among}{reason}{others}")


def phases(config: Json) -> Iterator[Mapping[str, Json]]:
    """The forks inside a training: settings that hold from a step on, wherever `phases` stands in a configuration."""
    if not isinstance(config, Mapping):
        return
    for key, value in config.items():
        if key == "phases" and isinstance(value, list):
            yield from (phase for phase in value if isinstance(phase, Mapping))
        else:
            yield from phases(value)


def _phase(phase: Mapping[str, Json]) -> str:
    settings = (
        f"{key}={json.dumps(value)}" for key, value in phase.items() if key != "from_step" and value is not None
    )
    return printable(f"from step {phase.get('from_step')} on: {', '.join(settings)}")


def _summary(node: Node) -> str:
    """As many of a configuration's values as fit two lines, the shallow ones first.

    What is off, empty or in the node's title is left out.
    """
    told = ("generator", "count") if node.kind == "generator" else ()
    leaves = sorted(
        (leaf for leaf in _leaves(node.config, "") if leaf[0] not in told), key=lambda leaf: leaf[0].count(".")
    )
    shown: list[str] = []
    for key, value in leaves:
        shown.append(f"{key}={json.dumps(value)}")
        if len(", ".join(shown)) > MAX_CONFIG:
            shown.pop()
            break
    hidden = len(leaves) - len(shown)
    return ", ".join(shown) + (f", and {hidden} more (--json shows all)" if hidden else "")


def _leaves(value: Mapping[str, Json], prefix: str) -> Iterator[tuple[str, Json]]:
    for key, item in value.items():
        if key in OWN_LINES:
            continue
        if isinstance(item, dict):
            yield from _leaves(item, f"{prefix}{key}.")
        elif item not in (None, False, 0, []):
            yield f"{prefix}{key}", item


def _footer(result: Trace) -> Iterator[str]:
    tables: dict[str, list[str]] = {}
    for node in result.nodes:
        if node.packages:
            line = ", ".join(f"{name} {version}" for name, version in sorted(node.packages.items()))
            tables.setdefault(line, []).append(node.name)
    for line, names in tables.items():
        of = f" of {', '.join(names)}" if len(tables) > 1 else ""
        yield f"packages{of}: {line}"
    checked = [node for node in result.nodes if node.status != "unchecked"]
    if checked and not result.problems:
        gone = sum(node.status == "collected" for node in checked)
        but = f", but for what was collected of {gone}" if gone else ""
        yield f"all {len(checked)} artifacts and data files are as recorded{but}"


def _console() -> Console:
    console = Console(highlight=False)
    console.width = min(console.width, WIDTH) if console.is_terminal else WIDTH
    return console
