"""Rollouts on disk: one Parquet file for each training step, a row for each rollout that was issued.

Equal rollouts give equal bytes: no time, no host, one thread, one codec. A file is written whole and never again.

Token ids and experts are dictionary-encoded, for there are few different ones; the mask is a bit for each token;
log-probs are split into their bytes, of which the upper ones compress. Routing is stored flat with its two inner sizes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rufus_core.errors import LineageError
from rufus_core.types import Fate, Message, Termination, VerdictKind

# pyarrow is imported where it is used: it starts a thread, and a process that forks jobs may have none.
if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from numpy.typing import NDArray

FOLDER = "rollouts"  # in a training's artifact
_FILE = re.compile(r"step-(\d+)\.parquet")
_ROWS_READ_AT_ONCE = 64  # a row group: what is decoded to show a single rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFacts:
    """What became of one rollout, without its tokens.

    `group` counts the step's groups in sampling order, from 0, `round` the rounds of refilling, from 1. `fate` is
    trained, filtered or aborted, and `why` says what kept it from being trained on. `reward` is the score after
    shaping; of what isn't trained on it is the score. Only what is trained on has an advantage.
    """

    step: int
    group: int
    round: int
    sample_index: int
    problem_id: str
    family: str
    source: str
    fate: Fate
    why: str
    score: float
    reward: float
    advantage: float | None
    verdict: VerdictKind
    reason: str
    extracted: str | None
    reward_parts: dict[str, float]
    termination: Termination
    num_calls: int
    num_successful_calls: int
    num_malformed_calls: int
    num_response_tokens: int
    num_final_tokens: int
    weight_version: str

    @property
    def id(self) -> str:
        """Names the rollout within its training: step, group and sample."""
        return f"{self.step}/{self.group}/{self.sample_index}"

    @property
    def passed(self) -> bool:
        return self.verdict is VerdictKind.PASS


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredRollout(RolloutFacts):
    """One rollout. The lists have one entry per token, as those of `Trajectory`.

    `logprobs` have the precision of float32. `routed_experts` is [tokens - 1, layers, experts per token] or None.
    """

    messages: tuple[Message, ...]
    token_ids: list[int]
    loss_mask: list[int]
    logprobs: list[float]
    routed_experts: NDArray[np.int32] | None = field(default=None)


_FACTS = [each.name for each in fields(RolloutFacts)]


@cache
def _schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [
            *(pa.field(name, pa.int32(), nullable=False) for name in ("step", "group", "round", "sample_index")),
            *(
                pa.field(name, pa.string(), nullable=False)
                for name in ("problem_id", "family", "source", "fate", "why")
            ),
            *(pa.field(name, pa.float64(), nullable=False) for name in ("score", "reward")),
            pa.field("advantage", pa.float64()),
            *(pa.field(name, pa.string(), nullable=False) for name in ("verdict", "reason")),
            pa.field("extracted", pa.string()),
            pa.field("reward_parts", pa.map_(pa.string(), pa.float64()), nullable=False),
            pa.field("termination", pa.string(), nullable=False),
            *(
                pa.field(f"num_{name}", pa.int32(), nullable=False)
                for name in ("calls", "successful_calls", "malformed_calls", "response_tokens", "final_tokens")
            ),
            pa.field("weight_version", pa.string(), nullable=False),
            pa.field("messages", pa.string(), nullable=False),  # JSON
            pa.field("token_ids", pa.list_(pa.int32()), nullable=False),
            pa.field("loss_mask", pa.list_(pa.bool_()), nullable=False),
            pa.field("logprobs", pa.list_(pa.float32()), nullable=False),
            pa.field("routed_experts", pa.list_(pa.int32())),
            pa.field("routed_layers", pa.int32()),
            pa.field("routed_top_k", pa.int32()),
        ]
    )


_LOGPROBS = "logprobs.list.element"
_DICTIONARY = [
    *("problem_id", "family", "source", "fate", "why", "verdict", "reason", "extracted", "termination"),
    *("reward_parts.key_value.key", "weight_version", "token_ids.list.element", "routed_experts.list.element"),
]


def step_file(folder: Path, step: int) -> Path:
    """The file of a step's rollouts in a training's folder."""
    return folder / FOLDER / f"step-{step:05d}.parquet"


def steps_in(folder: Path) -> list[int]:
    """The steps whose rollouts a training's folder holds."""
    names = (_FILE.fullmatch(path.name) for path in (folder / FOLDER).glob("*"))
    return sorted(int(name[1]) for name in names if name)


def write_rollouts(path: Path, rollouts: Iterable[StoredRollout]) -> None:
    """Write a step's file.

    Raises:
        ValueError: a rollout's mask, log-probs or routing don't fit its tokens.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist([_row(rollout) for rollout in rollouts], schema=_schema())
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        pq.write_table(
            table,
            file,
            row_group_size=_ROWS_READ_AT_ONCE,
            compression="zstd",
            use_dictionary=_DICTIONARY,
            column_encoding={_LOGPROBS: "BYTE_STREAM_SPLIT"},
        )


def read_facts(path: Path) -> list[RolloutFacts]:
    """What a step's file says of its rollouts, in sampling order; no token is read. Raises LineageError."""
    with _readable(path) as file:
        table = file.read(columns=_FACTS)
        return [RolloutFacts(**_facts(row)) for row in table.to_pylist(maps_as_pydicts="strict")]


def read_rollouts(path: Path) -> Iterator[StoredRollout]:
    """The rollouts of a step's file in sampling order, some at a time. Raises LineageError."""
    with _readable(path) as file:
        for number in range(file.num_row_groups):
            for row in file.read_row_group(number).to_pylist(maps_as_pydicts="strict"):
                yield _rollout(row)


def read_rollout(path: Path, number: int) -> StoredRollout:
    """The rollout at a place in a step's file, from 0. Raises LineageError, and IndexError where there is none."""
    group, place = divmod(number, _ROWS_READ_AT_ONCE)
    with _readable(path) as file:
        if 0 <= number < file.metadata.num_rows:
            [row] = file.read_row_group(group).slice(place, 1).to_pylist(maps_as_pydicts="strict")
            return _rollout(row)
    raise IndexError(f"there is no rollout {number} in {path.name}")


@contextmanager
def _readable(path: Path) -> Iterator[pq.ParquetFile]:
    """An open file. Damage shows when it is opened, when a page is decoded, or in what it says."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
        if file.schema_arrow.names != _schema().names:
            hint = "train anew with `rufus run --force STAGE`, or read the file with another program"
            raise LineageError("another version of Rufus-Air wrote these rollouts", where=str(path), hint=hint)
        yield file
    except (OSError, ValueError, TypeError, KeyError, pa.ArrowException) as error:
        raise LineageError("these rollouts can't be read", where=str(path), hint="rufus verify") from error


def _row(rollout: StoredRollout) -> dict[str, Any]:
    row: dict[str, Any] = {each.name: getattr(rollout, each.name) for each in fields(rollout)}
    num_tokens, routed = len(rollout.token_ids), rollout.routed_experts
    if not num_tokens == len(rollout.loss_mask) == len(rollout.logprobs):
        raise ValueError(f"rollout {rollout.id}: mask and log-probs must have an entry for each of {num_tokens} tokens")
    if routed is not None:
        if routed.ndim != 3 or len(routed) != num_tokens - 1:
            raise ValueError(f"rollout {rollout.id}: routing of shape {routed.shape} doesn't fit {num_tokens} tokens")
        row["routed_experts"] = routed.ravel()
        row["routed_layers"], row["routed_top_k"] = routed.shape[1:]
    messages = [message.model_dump(mode="json", exclude_defaults=True) for message in rollout.messages]
    row["messages"] = json.dumps(messages)
    row["loss_mask"] = [bool(sampled) for sampled in rollout.loss_mask]
    return row


def _facts(row: dict[str, Any]) -> dict[str, Any]:
    named = {"fate": Fate(row["fate"]), "verdict": VerdictKind(row["verdict"])}
    return row | named | {"termination": Termination(row["termination"])}


def _rollout(row: dict[str, Any]) -> StoredRollout:
    import numpy as np

    layers, top_k = row.pop("routed_layers"), row.pop("routed_top_k")
    if row["routed_experts"] is not None:
        shape = (len(row["token_ids"]) - 1, layers, top_k)
        row["routed_experts"] = np.array(row["routed_experts"], dtype=np.int32).reshape(shape)
    row["messages"] = tuple(Message.model_validate(message) for message in json.loads(row["messages"]))
    row["loss_mask"] = [int(sampled) for sampled in row["loss_mask"]]
    return StoredRollout(**_facts(row))
