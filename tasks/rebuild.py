"""Writes MLflow anew from the records: beside the home's old database and then in its place, or into an empty one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from rufus_core.errors import InfrastructureError, RufusError
from rufus_core.lineage.aliases import Aliases
from rufus_core.lineage.canonical import with_seed
from rufus_core.lineage.home import open_store
from rufus_core.lineage.record import Record
from rufus_core.lineage.store import Store
from rufus_core.ports.orchestration import Rebuilt
from rufus_core.training.reporter import CURVES, reported
from tasks.databases import MLFLOW_DATABASE, MLFLOW_SERVER, home_database, reason, without_password
from tasks.entries import flatten, milliseconds_of, send_record, tags_of, without_last
from tasks.mlflow_projection import OUTAGES, MlflowProjection, open_database, open_elsewhere
from tasks.replay import any_alive, apply, leftovers, read_journal, writing


def rebuild_mlflow(home: Path, experiment: str, uri: str | None, warn: Callable[[str], None]) -> Rebuilt:
    """Write all records of a home as runs and models of `experiment`.

    Args:
        uri: a server or database without runs of this experiment; without it, the home's database is replaced.
        warn: hears of each record that can't be read, and of each entry that MLflow refuses.

    Raises:
        RufusError: a run writes to MLflow now, or what `uri` names has runs of another making.
        InfrastructureError: MLflow can't be written. The old database stays.
    """
    folder = home / "mlflow"
    store = open_store(home)
    listing = store.listing()
    for fault in listing.faults:
        warn(str(fault))
    records = {record.id: record for record in _parents_first(listing.records)}
    try:
        with writing(folder):
            if uri is not None:
                _fill(_empty(uri, experiment, records.values()), records, store, folder, warn)
                return Rebuilt(len(records), without_password(uri), None)
            if any_alive(folder):
                raise RufusError(
                    "a run writes to MLflow now", hint="wait for its end, or stop it; then type this again"
                )
            return _replaced(records, store, folder, experiment, warn)
    except OUTAGES as error:
        where = without_password(uri) if uri else str(folder)
        raise InfrastructureError(f"MLflow can't be written: {reason(error)}", where=where) from error


def _replaced(
    records: dict[str, Record], store: Store, folder: Path, experiment: str, warn: Callable[[str], None]
) -> Rebuilt:
    database, fresh = home_database(folder), folder / "mlflow.rebuilding.db"
    fresh.unlink(missing_ok=True)  # of a rebuild that was killed
    projection = open_database(fresh.absolute(), experiment)
    _fill(projection, records, store, folder, warn)
    sent = [_replay(journal, fresh, records, folder, warn) for journal in leftovers(folder)]
    kept = None
    if database.exists():
        kept = folder / f"mlflow.until-{datetime.now(UTC):%Y%m%dT%H%M%S}.db"
        database.rename(kept)
    fresh.rename(database)
    for journal in sent:
        journal.unlink()
    return Rebuilt(len(records), str(database), kept)


def _fill(
    projection: MlflowProjection,
    records: dict[str, Record],
    store: Store,
    folder: Path,
    warn: Callable[[str], None],
) -> None:
    def send(entry: str, **arguments: Any) -> None:
        apply(projection, {"entry": entry, **arguments}, folder, lambda what, why: warn(f"{what}: {why}"))

    for record in records.values():
        _send_run(record, store, records.get, send)
    for pointer in Aliases(store.root).current().values():
        if pointer.record_id in records:
            model = records[pointer.record_id].as_input().model_copy(update={"digest": pointer.digest})
            send("point_alias", registered=pointer.registered, alias=pointer.alias, model=tags_of(model))


def _send_run(record: Record, store: Store, find: Callable[[str], Record | None], send: Callable[..., None]) -> None:
    """A run as the record knows it, under the key that it had."""
    key = key_of(record)
    ended = milliseconds_of(record)
    started = ended - int(1000 * record.timings.seconds) if record.timings else ended
    params = flatten(with_seed(record.config, record.seed))
    tags = {"rufus.step": record.name, "rufus.rebuilt": "from its record"}
    send("start_run", key=key, name=record.name, at=started, params=params, tags=tags)
    curves = store.path(record) / CURVES
    if record.kind == "training" and curves.exists():
        # When a step was done the artifact doesn't say: all have the time of the last.
        rows = ((name, value, step, ended) for step, metrics in reported(curves) for name, value in metrics.items())
        send("log_metrics", key=key, rows=without_last(rows, record))
    send_record(key, record, find, send)
    send("end_run", key=key, status="FINISHED", at=ended, tags={})


def key_of(record: Record) -> str:
    """The key of the run that made an artifact; of one that was never tracked, its id."""
    return record.links.get("mlflow.key", record.id)


def _replay(journal: Any, fresh: Path, records: dict[str, Record], folder: Path, warn: Callable[[str], None]) -> Path:
    """What a dead run left, but for runs whose artifact has its record: those were written already."""
    with journal:
        experiment, entries = read_journal(journal)
        done = {e["key"] for e in entries if e["entry"] == "mark_run" and e["tags"].get("rufus.record") in records}
        if entries:
            projection = open_database(fresh.absolute(), experiment)
            for entry in entries:
                if entry.get("key") not in done:
                    apply(projection, entry, folder, lambda what, why: warn(f"{what}: {why}"))
            projection.end_orphans()
        return Path(journal.name)


def _empty(uri: str, experiment: str, records: Iterable[Record]) -> MlflowProjection:
    projection = open_elsewhere(uri, experiment)
    if projection.holds_other_runs(map(key_of, records)):
        raise RufusError(
            f"this MLflow has runs of experiment {experiment} that the records don't know",
            where=without_password(uri),
            hint=f"--experiment names another one, {MLFLOW_SERVER} or {MLFLOW_DATABASE} an empty MLflow",
        )
    return projection


def _parents_first(records: Iterable[Record]) -> list[Record]:
    by_id = {record.id: record for record in records}
    made_from = {record.id: [one.record_id for one in record.inputs.values()] for record in by_id.values()}
    return [by_id[name] for name in TopologicalSorter(made_from).static_order() if name in by_id]
