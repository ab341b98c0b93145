"""The stage table of a store: the newest chain of checkpoints, and the scores measured on them."""

from __future__ import annotations

from collections.abc import Mapping

from rufus_core.evaluation.scores import Scores
from rufus_core.evaluation.table import Checkpoint, StageRow, stage_table
from rufus_core.lineage.record import CHECKPOINT_KINDS, Record
from rufus_core.lineage.sharing import fetch
from rufus_core.lineage.store import Store

SCORES_OF_A_RUN = "scores/"  # what `rufus eval` measures has other names, and its own sizes: it must not replace these


def collect_rows(store: Store) -> list[StageRow]:
    """The table's rows, base first; empty while the store holds no checkpoint.

    Raises:
        DataError: an artifact of scores can't be read.
    """
    records = store.records()
    chain = newest_chain(records)
    digests = {record.digest for record in chain}
    scores = [
        Scores.load(fetch(store, record) / file)
        for record in records
        if record.kind == "scores" and record.name.startswith(SCORES_OF_A_RUN)
        for file in sorted(record.files)
    ]
    return stage_table(
        [_checkpoint(record) for record in chain], [measured for measured in scores if measured.digest in digests]
    )


def newest_chain(records: tuple[Record, ...]) -> list[Record]:
    """The newest checkpoint of those that no other descends from, and its ancestors, base first.

    `records` are oldest first. A checkpoint that was found broken and made again is newer than its children.
    """
    by_id = {record.id: record for record in records}
    checkpoints = [record for record in records if record.kind in CHECKPOINT_KINDS]
    parents = {record.id: _parent(record, by_id) for record in checkpoints}
    inner = {parent.id for parent in parents.values() if parent is not None}
    current = next((record for record in reversed(checkpoints) if record.id not in inner), None)
    chain = []
    while current is not None:
        chain.append(current)
        current = parents[current.id]
    return chain[::-1]


def _parent(record: Record, by_id: Mapping[str, Record]) -> Record | None:
    """The nearest checkpoint among what a record was made from, through artifacts of other kinds if need be.

    Problem sets descend from checkpoints too, by the screens of their policy; the role `parent` goes first.
    """
    level = [record]
    while level:
        sources = sorted((role != "parent", source.record_id) for each in level for role, source in each.inputs.items())
        level = [by_id[key] for key in dict.fromkeys(key for _, key in sources) if key in by_id]
        nearest = next((each for each in level if each.kind in CHECKPOINT_KINDS), None)
        if nearest is not None:
            return nearest
    return None


def _checkpoint(record: Record) -> Checkpoint:
    return Checkpoint(stage=record.stage or record.kind, checkpoint=record.name, digest=record.digest, step=record.step)
