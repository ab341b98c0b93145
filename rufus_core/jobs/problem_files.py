"""Problems and supervised examples as JSON Lines inside a data artifact."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import get_args

from pydantic import BaseModel

from rufus_core.data.split import SupervisedExample
from rufus_core.types import Message, Problem, Split, ToolSchema


def save_problems(folder: Path, split: Split, problems: Iterable[Problem]) -> None:
    save_rows(folder / f"{split}.jsonl", problems)


def save_rows(path: Path, rows: Iterable[BaseModel]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(row.model_dump_json() + "\n")


def save_report(folder: Path, report: Mapping[str, object]) -> None:
    """What was kept and dropped of a data set, and why."""
    (folder / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def load_problems(folder: Path, split: Split) -> list[Problem]:
    assert split in get_args(Split)
    with (folder / f"{split}.jsonl").open(encoding="utf-8") as file:
        return [Problem.model_validate_json(line) for line in file]


def save_examples(path: Path, examples: Iterable[SupervisedExample]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for example in examples:
            row = {
                "messages": [m.model_dump(mode="json", exclude_defaults=True) for m in example.messages],
                "supervise": list(example.supervise),
                "tools": [t.model_dump(mode="json") for t in example.tools],
                "source": example.source,
                "category": example.category,
            }
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def load_examples(path: Path) -> list[SupervisedExample]:
    with path.open(encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return [
        SupervisedExample(
            messages=tuple(Message.model_validate(m) for m in row["messages"]),
            supervise=tuple(row["supervise"]),
            tools=tuple(ToolSchema.model_validate(t) for t in row["tools"]),
            source=row["source"],
            category=row["category"],
        )
        for row in rows
    ]
