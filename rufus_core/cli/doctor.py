"""`rufus doctor`: is this machine ready, and if not, what is missing and where to get it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer

from rufus_core.cli.parts import Home, Overrides, Profile, RecipeFile
from rufus_core.errors import RufusError
from rufus_core.ports.orchestration import Check
from rufus_core.settings import ExecutionSettings

PYTHON = (3, 11)
MIN_FREE_GIB = 2.0
MIN_MEMORY_GIB = 3.0
# Distribution, and what it is for.
REQUIRED = {
    "torch": "training and rollouts",
    "transformers": "models and tokenizers",
    "math-verify": "grading of mathematics",
    "reasoning-gym": "puzzles",
    "mcp": "tools of the General Agent stage",
}
OPTIONAL = {
    "sglang": "rollouts on GPUs",
    "megatron-core": "training across GPUs",
    "ray": "training in several processes",
    "e2b": "a policy's code in microVMs",
}


def doctor(
    profile: Profile = "cpu",
    recipe: RecipeFile = "rufus_air",
    set_: Overrides = None,
    home: Home = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check this machine and what a profile places elsewhere. Exits with 1 if something required is missing."""
    from rufus_core.cli.orchestration import load_orchestrator
    from rufus_core.cli.output import console, print_json
    from rufus_core.lineage.home import rufus_home
    from rufus_core.recipe.load import load_recipe

    execution = load_recipe(recipe, profile, set_ or ()).execution
    found = [*_checks(rufus_home(home), execution), *load_orchestrator().checks()]
    if json_:
        print_json([asdict(check) for check in found])
    else:
        out = console()
        for check in found:
            out.print(_line(check), soft_wrap=True, markup=False)
    if any(check.required and not check.ok for check in found):
        raise typer.Exit(1)


def _checks(home: Path, execution: ExecutionSettings) -> Iterator[Check]:
    python = ".".join(map(str, sys.version_info[:3]))
    yield Check("Python", sys.version_info[:2] == PYTHON, python, hint="make install PYTHON=python3.11")
    for package, purpose in REQUIRED.items():
        yield _package(package, purpose, required=True)
    if execution.sandbox == "local":
        yield _sandbox()
        yield _sessions()
    else:
        yield _microvms(execution)
    git = shutil.which("git")
    yield Check("git", git is not None, git or "not found: records name no commit", required=False, hint="install git")
    yield from _machine(home)
    for package, purpose in OPTIONAL.items():
        yield _package(package, purpose, required=False)


def _package(name: str, purpose: str, required: bool) -> Check:
    try:
        return Check(name, True, version(name), required)
    except PackageNotFoundError:
        hint = "make install" if required else "not needed on a CPU"
        return Check(name, False, f"not installed: {purpose}", required, hint)


def _sandbox() -> Check:
    from rufus_core.sandbox.isolation import probe

    report = probe()
    identity = {"root": "a user of its own", "user": "a user namespace"}[report.launch]
    detail = f"bubblewrap at {report.bubblewrap}: {identity}, a system call filter, no network"
    return Check("sandbox", report.isolated, detail if report.isolated else report.reason, hint=report.hint)


def _microvms(execution: ExecutionSettings) -> Check:
    from rufus_core.sandbox.placement import require_sandbox

    try:
        return Check("sandbox", True, require_sandbox(execution))
    except RufusError as error:
        return Check("sandbox", False, error.what, hint=error.hint or "")


def _sessions() -> Check:
    from rufus_core.sandbox.sessions import overlay_refusal

    refusal = overlay_refusal()
    detail = f"a copy of the task's files for each episode: {refusal}" if refusal else "overlays of each task's files"
    hint = "a kernel with overlayfs in user namespaces (Linux 5.11) and bubblewrap 0.11 begin an episode in less time"
    return Check("sessions", not refusal, detail, required=False, hint=hint)


def _machine(home: Path) -> Iterator[Check]:
    import psutil

    existing = next(folder for folder in (home, *home.parents) if folder.exists())
    free = shutil.disk_usage(existing).free / 2**30
    yield Check(
        "disk", free >= MIN_FREE_GIB, f"{free:.1f} GiB free", hint=f"{MIN_FREE_GIB:.0f} GiB are wanted; see --home"
    )
    memory = psutil.virtual_memory().available / 2**30
    yield Check(
        "memory",
        memory >= MIN_MEMORY_GIB,
        f"{memory:.1f} GiB free",
        required=False,
        hint=f"{MIN_MEMORY_GIB:.0f} GiB are wanted",
    )


def _line(check: Check) -> str:
    mark = "ok" if check.ok else "missing" if check.required else "absent"
    hint = f"  ({check.hint})" if check.hint and not check.ok else ""
    return f"{mark:<8} {check.name:<15} {check.detail}{hint}"
