"""What a record says, as entries for MLflow: the same for a live run and for a rebuild."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from rufus_core.lineage.record import CHECKPOINT_KINDS, Input, Record

MODEL_KINDS = (*CHECKPOINT_KINDS, "reward_model")  # what MLflow shows as a model; all else is data to it
PARENT_ROLES = ("parent", "policy")

Find = Callable[[str], Record | None]  # a record by its id
Send = Callable[..., None]  # the entry's name, and its arguments by name
Row = tuple[str, float, int, int]  # metric, value, training step, milliseconds since the epoch


def send_record(key: str, record: Record, find: Find, send: Send) -> None:
    """What the run `key` made, and of what. Of a checkpoint that was selected, training is what says of what."""
    send("mark_run", key=key, tags={"rufus.record": record.id, "rufus.digest": record.digest})
    models, datasets = inputs_of(record, find)
    send("log_inputs", key=key, models=list(models.values()), datasets=list(datasets.values()))
    if record.kind in MODEL_KINDS:
        training = record.inputs.get("training")
        maker = find(training.record_id) if training else None
        made_from, read = inputs_of(maker, find) if maker else (models, datasets)
        send(
            "log_model",
            key=key,
            model=tags_of(record.as_input()),
            step=record.step or 0,
            params=flatten({**record.config, "decision": record.decision and record.decision.model_dump(mode="json")}),
            parents=[one for role, one in made_from.items() if role in PARENT_ROLES],
            others=[one for role, one in made_from.items() if role not in PARENT_ROLES],
            datasets=list(read.values()),
            source=maker.id if maker else None,
        )
    at = milliseconds_of(record)
    for rows, about in _metrics(record, models, datasets):
        send(
            "log_metrics", key=key, rows=[(name, value, record.step or 0, at) for name, value in rows.items()], **about
        )


def inputs_of(record: Record, find: Find) -> tuple[dict[str, dict[str, str]], dict[str, dict[str, str]]]:
    """Inputs by role: models, and all others as datasets. Where a record is gone, the name tells."""
    models: dict[str, dict[str, str]] = {}
    datasets: dict[str, dict[str, str]] = {}
    for role, one in record.inputs.items():
        made = find(one.record_id)
        kind = made.kind if made else one.name.rpartition("/")[2]
        (models if kind in MODEL_KINDS else datasets)[role] = tags_of(one)
    return models, datasets


def tags_of(one: Input) -> dict[str, str]:
    """An artifact as entries speak of it."""
    return {"name": one.name, "digest": one.digest, "record": one.record_id}


def without_last(curve: Iterable[Row], record: Record) -> list[Row]:
    """A curve without what the record says of its last step, which would else be there twice."""
    return [row for row in curve if row[2] != (record.step or 0) or row[0] not in record.metrics]


def milliseconds_of(record: Record) -> int:
    """When the artifact was there, in milliseconds since the epoch."""
    ended = record.timings.ended if record.timings else record.published
    return int(ended.timestamp() * 1000)


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as dotted names, None left out: {"a": {"b": 1}} is {"a.b": "1"}."""
    flat: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        elif value is not None:
            flat[prefix + name] = value if isinstance(value, str) else json.dumps(value)
    return flat


def _metrics(
    record: Record, models: Mapping[str, Any], datasets: Mapping[str, Any]
) -> Iterator[tuple[dict[str, float], dict[str, Any]]]:
    """Metrics with the model and the dataset that they are of. A score is of its benchmark's problems."""
    if record.kind != "scores":
        yield record.metrics, {"model": tags_of(record.as_input())} if record.kind in MODEL_KINDS else {}
        return
    model = models.get("checkpoint")
    benchmarks = record.config.get("benchmarks")
    for name, value in record.metrics.items():
        asked = benchmarks.get(name.split("/")[0]) if isinstance(benchmarks, Mapping) else None
        stage = asked.get("stage") if isinstance(asked, Mapping) else None
        yield {name: value}, {"model": model, "dataset": datasets.get(f"problems/{stage}")}
