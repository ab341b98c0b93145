"""What the documentation shows exists: commands and their options, settings, links, paths and names in snippets."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from rufus_core.cli.main import app
from rufus_core.recipe.load import load_recipe

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("infra/*.md")])
TOP = {"flows", "tasks", "rufus_core", "deployments", "infra", "tests", "docs", "benchmarks", ".ci"}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def inline_code(text: str) -> list[str]:
    return [" ".join(code.split()) for code in INLINE.findall(FENCE.sub("", text))]


def command_lines(text: str, program: str) -> Iterator[list[str]]:
    """Arguments of every line that starts with `program`, in fenced, indented and inline code."""
    blocks = [line for _, block in FENCE.findall(text) for line in block.splitlines()]
    indented = [line for line in FENCE.sub("", text).splitlines() if line.startswith("    ")]
    for line in (*blocks, *indented, *inline_code(text)):
        shown = re.sub(r"[─→].*", "", line.strip())  # a diagram goes on after its first word
        if not shown.startswith(f"{program} "):
            continue
        if "[-" in shown:  # a synopsis: [--option this|that]
            shown = re.sub(r"\|\w+|[\[\]]", "", shown)
        yield shlex.split(shown, comments=True)[1:]


def check_rufus(words: list[str]) -> None:
    """Raises what the command line itself raises for an unknown command or option, or an unknown setting."""
    print("rufus", shlex.join(words))  # shown where it raises
    group = typer.main.get_command(app)
    if words[0].startswith("-"):
        group.make_parser(typer.Context(group)).parse_args(words)
        return
    command = group.commands[words[0]]
    if len(words) > 1 and hasattr(command, "commands"):  # a group: the command is its next word
        command, words = command.commands[words[1]], words[1:]
    if len(words) == 1:  # a command that is only named
        return
    given = command.make_context(words[0], words[1:]).params
    if overrides := given.get("overrides") or given.get("set_"):
        load_recipe(overrides=overrides)


@pages
def test_rufus_commands_options_and_settings_exist(page: Path) -> None:
    for words in command_lines(page.read_text(), "rufus"):
        check_rufus(words)


@pages
def test_set_arguments_exist(page: Path) -> None:
    lines = (line for _, block in FENCE.findall(page.read_text()) for line in block.splitlines())
    for line in lines:
        if line.startswith("--set "):
            check_rufus(["plan", *shlex.split(line, comments=True)])


@pages
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for words in command_lines(page.read_text(), "make"):
        assert {word for word in words if "=" not in word} <= targets, words


def test_the_readme_lists_every_command() -> None:
    listed = {words[0] for words in command_lines((ROOT / "README.md").read_text(), "rufus")}
    assert listed >= set(typer.main.get_command(app).commands)


@pages
def test_links_lead_somewhere(page: Path) -> None:
    targets = [target.partition("#")[0] for target in LINK.findall(page.read_text()) if "://" not in target]
    missing = [target for target in targets if target and not (page.parent / target).exists()]
    assert not missing


@pages
def test_paths_and_modules_exist(page: Path) -> None:
    missing = []
    for code in inline_code(page.read_text()):
        path = code.partition(":")[0]
        if not re.fullmatch(r"[\w.-]+(/[\w.*-]*)+", path):
            if re.fullmatch(r"(flows|tasks|rufus_core)(\.\w+)+", code) and not module_file(code):
                missing.append(code)
        elif path.split("/")[0] in TOP:
            missing += [] if any(ROOT.glob(path.rstrip("/"))) else [code]
        elif path.endswith((".py", ".jinja")):  # pages about a room leave out where it stands
            missing += [] if (ROOT / "rufus_core" / path).exists() else [code]
    assert not missing


def module_file(dotted: str) -> Path | None:
    """The file of a module, or of the module that a dotted name stands in."""
    parts = dotted.split(".")
    for place in (ROOT.joinpath(*parts), ROOT.joinpath(*parts[:-1])):
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if file.exists():
                return file
    return None


def names_of(file: Path) -> set[str]:
    """What a module defines or imports at its top level, read without importing it."""
    names: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


@pages
def test_python_snippets_parse_and_import_what_exists(page: Path) -> None:
    for language, block in FENCE.findall(page.read_text()):
        if language != "python":
            continue
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Import):
                assert all(importlib.util.find_spec(alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.module is not None
                file = module_file(node.module)
                assert file is not None, node.module
                assert {alias.name for alias in node.names} <= names_of(file), node.module


def test_the_index_lists_every_page() -> None:
    listed = set(LINK.findall((ROOT / "docs/README.md").read_text()))
    docs = ROOT / "docs"
    assert listed == {str(page.relative_to(docs)) for page in docs.glob("**/*.md")} - {"README.md"}


def layers() -> list[str]:
    """Rooms of the core from top to bottom, as the import contract orders them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    named = [room.strip() for line in contracts[0]["layers"] for room in line.split("|")]
    return [room.removeprefix("rufus_core.") for room in named if room.startswith("rufus_core.")]


def test_the_architecture_page_lists_the_rooms_in_the_order_of_the_import_contract() -> None:
    rooms = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/architecture.md").read_text(), re.MULTILINE)
    assert rooms[: len(layers())] == layers()


def test_the_readme_shows_every_room() -> None:
    tree = next(block for _, block in FENCE.findall((ROOT / "README.md").read_text()) if "rufus_core/" in block)
    shown = re.findall(r"^  (\w+)/", tree, re.MULTILINE)
    assert set(shown) == {file.parent.name for file in ROOT.glob("rufus_core/*/__init__.py")}
    assert all((ROOT / folder).is_dir() for folder in re.findall(r"^(\w+)/", tree, re.MULTILINE))


def test_the_readme_lists_the_stages_and_benchmarks_of_the_recipe() -> None:
    recipe = load_recipe()
    text = (ROOT / "README.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == list(recipe.stages)
    measured = text.partition("<!-- stage table -->")[2].partition("<!-- end of stage table -->")[0]
    assert [name.strip() for name in measured.splitlines()[1].strip("|").split("|")][1:] == list(recipe.benchmarks)
