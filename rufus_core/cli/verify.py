"""`rufus verify`: whether everything still is what its record says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from rufus_core.cli.output import console, print_json
from rufus_core.cli.parts import Home, Shared, open_home
from rufus_core.errors import ConfigError
from rufus_core.lineage.export import verify_bundle
from rufus_core.lineage.home import store_root
from rufus_core.lineage.record import Record
from rufus_core.lineage.store import Store
from rufus_core.lineage.verify import StoreCheck, verify_store
from rufus_core.ports.orchestration import PagesCheck


def verify(
    artifacts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ARTIFACT]...", help="Stages, digests or names; by default the whole store."),
    ] = None,
    home: Home = None,
    shared: Shared = None,
    check_shared: Annotated[
        bool, typer.Option("--shared", help="Read every byte in the shared store too: all of it travels here.")
    ] = False,
    bundle: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Compare what `rufus export` wrote, instead of a home.")
    ] = None,
    prefect: Annotated[bool, typer.Option(help="Ask Prefect too, which starts its server for some seconds.")] = True,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")] = False,
) -> None:
    """Compare every record with its bytes, inputs and data files, and with what MLflow and Prefect show.

    Each difference is one line, with the command to type next. Exits with 1 if there is one.
    """
    from rufus_core.cli.orchestration import load_orchestrator

    if bundle is not None:
        _verify_bundle(bundle, json_)
        return
    place, store = open_home(home, shared)
    chosen = [store.resolve(text).record for text in artifacts] if artifacts else None
    if check_shared and store.shared is None:
        raise ConfigError("this home shares no store", where="--shared", hint="name one with --store or RUFUS_STORE")
    checked = _hash(store, chosen, check_shared)
    only = None if chosen is None else {record.id for record in chosen}
    pages = load_orchestrator().verify_pages(place, only, prefect and place.exists())
    if not check_shared:
        pages = replace(pages, not_checked=(*pages.not_checked, *_unread(store, checked)))
    _end(checked, pages, json_)


def _verify_bundle(folder: Path, json_: bool) -> None:
    checked = verify_store(Store(store_root(folder)))
    pages = PagesCheck(tuple(verify_bundle(folder)), ("pages: a bundle has none",))
    _end(checked, pages, json_)


def _unread(store: Store, checked: StoreCheck) -> list[str]:
    """What a check of this machine's bytes leaves out."""
    if store.shared is None:
        return []
    only = f", which alone has {len(checked.only_shared)} of these artifacts" if checked.only_shared else ""
    return [f"the shared store {store.shared.url}{only}: --shared reads it"]


def _hash(store: Store, chosen: Sequence[Record] | None, shared: bool) -> StoreCheck:
    """Verify the store, with a bar of bytes on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    err = Console(stderr=True)
    columns = (TextColumn("hashing"), BarColumn(bar_width=24), DownloadColumn(), TimeRemainingColumn(compact=True))
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        bar = progress.add_task("", total=None)
        return verify_store(
            store, chosen, lambda done, total: progress.update(bar, completed=done, total=total), shared
        )


def _end(checked: StoreCheck, pages: PagesCheck, as_json: bool) -> None:
    _tell(checked, pages, as_json)
    if checked.differences or pages.differences:
        raise typer.Exit(1)


def _tell(checked: StoreCheck, pages: PagesCheck, as_json: bool) -> None:
    differences = [*checked.differences, *pages.differences]
    if as_json:
        print_json(
            {
                "artifacts": checked.num_artifacts,
                "collected": checked.num_collected,
                "only_shared": list(checked.only_shared),
                "bytes": checked.num_bytes,
                "differences": [asdict(each) for each in differences],
                "not_checked": list(pages.not_checked),
            }
        )
        return
    out = console()
    for each in differences:
        out.print(str(each), markup=False, soft_wrap=True)
    gone = f" ({checked.num_collected} collected in part or whole)" if checked.num_collected else ""
    gone += f" ({len(checked.only_shared)} only in the shared store)" if checked.only_shared else ""
    out.print(
        f"{checked.num_artifacts} artifacts{gone}, {checked.num_bytes / 1e6:,.1f} MB compared with their records",
        markup=False,
    )
    for what in pages.not_checked:
        out.print(f"not checked: {what}", markup=False)
    out.print("nothing differs" if not differences else f"{len(differences)} differ", markup=False)
