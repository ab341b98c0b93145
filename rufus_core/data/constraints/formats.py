"""Answers that are as a whole in a format that programs read."""

from __future__ import annotations

import csv
import io
import json
import random

import yaml

from rufus_core.data.constraints.kind import Args, Kind
from rufus_core.data.constraints.text import WORD, item
from rufus_core.data.constraints.vocabulary import LABELS
from rufus_core.types import Json

# What a format decides alone: the layout, and how the text begins, ends and is spelt.
WHOLE = frozenset(
    {"layout", "first", "last", "case", "punctuation", "paragraphs", "lines", "sentence count", "sentence length"}
    | {"sentence starts", "bullets", "headings", "table"}
)
_MAX_YAML = 20_000  # characters; PyYAML reads a few hundred thousand a second


def _object(text: str) -> Json:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _mapping(text: str) -> Json:
    """A mapping of strings. No merge keys, tags or numbers are made of it, so that no alias can grow."""
    if len(text) > _MAX_YAML:
        return None
    try:
        return yaml.load(text, yaml.BaseLoader)  # noqa: S506 - builds strings, lists and mappings only
    except (yaml.YAMLError, RecursionError, ValueError, TypeError, AttributeError):
        return None


def _has_keys(value: Json, args: Args) -> bool:
    return isinstance(value, dict) and set(value) == set(args["keys"])


def _plain(text: str) -> str:
    return " ".join(text.split())


def _entries(text: str, args: Args, rng: random.Random) -> dict[str, str]:
    return {key: _plain(text) if place == 0 else item(rng) for place, key in enumerate(args["keys"])}


def _as_json(text: str, args: Args, rng: random.Random) -> str:
    return json.dumps(_entries(text, args, rng), ensure_ascii=False, indent=2)


def _as_yaml(text: str, args: Args, rng: random.Random) -> str:
    entries = _entries(text, args, rng)
    return "\n".join(f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in entries.items())


def _keys(rng: random.Random) -> dict[str, Json]:
    return {"keys": [label.lower() for label in rng.sample(LABELS, rng.randint(2, 4))]}


def _one_key_less(args: Args) -> Args:
    return {**args, "keys": args["keys"][1:]}


def _rows(text: str) -> list[list[str]]:
    try:
        return [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row]
    except csv.Error:
        return []


def _is_csv(text: str, args: Args) -> bool:
    rows = _rows(text)
    return len(rows) == args["rows"] + 1 and all(len(row) == args["columns"] for row in rows)


def _as_csv(text: str, args: Args, rng: random.Random) -> str:
    rows = [[item(rng) for _ in range(args["columns"])] for _ in range(args["rows"] + 1)]
    rows[0][0] = _plain(text)
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue().strip()


def _is_wrapped(text: str, tag: str) -> bool:
    text = text.strip()
    opening, closing = f"<{tag}>", f"</{tag}>"
    return text.startswith(opening) and text.endswith(closing) and text.count(opening) == text.count(closing) == 1


def _labels_in_order(text: str, args: Args) -> bool:
    """Every line is `Label: text`, with the labels in order."""
    pairs = [line.partition(":") for line in text.strip().splitlines()]
    return [label.strip() for label, _, _ in pairs] == args["labels"] and all(WORD.search(said) for _, _, said in pairs)


def _as_form(text: str, labels: list[str], rng: random.Random) -> str:
    return "\n".join(f"{label}: {_plain(text) if place == 0 else item(rng)}" for place, label in enumerate(labels))


KINDS: dict[str, Kind] = {
    "json_object": Kind(
        phrasings=("Answer with one JSON object and nothing else. Its keys are: {keys}.",),
        check=lambda text, args: _has_keys(_object(text), args),
        mend=_as_json,
        spoil=lambda text, args, rng: rng.choice((_as_json(text, _one_key_less(args), rng), text[:-1])),
        sample=_keys,
        arguments={"keys": list},
        claims=WHOLE,
        order=9,
    ),
    "yaml_mapping": Kind(
        phrasings=("Answer with one YAML mapping and nothing else. Its keys are: {keys}.",),
        check=lambda text, args: _has_keys(_mapping(text), args),
        mend=_as_yaml,
        spoil=lambda text, args, rng: _as_yaml(text, _one_key_less(args), rng),
        sample=_keys,
        arguments={"keys": list},
        claims=WHOLE,
        order=9,
    ),
    "csv_table": Kind(
        phrasings=("Answer in CSV and nothing else: a header and {rows} rows, each of {columns} columns.",),
        check=_is_csv,
        mend=_as_csv,
        spoil=lambda text, args, rng: _as_csv(text, {**args, "rows": args["rows"] + rng.choice((1, -1))}, rng),
        sample=lambda rng: {"columns": rng.randint(2, 4), "rows": rng.randint(2, 5)},
        arguments={"columns": int, "rows": int},
        claims=WHOLE,
        order=9,
    ),
    "form": Kind(
        phrasings=("Answer in lines of the form Label: text, with just these labels in this order: {labels}.",),
        check=_labels_in_order,
        mend=lambda text, args, rng: _as_form(text, args["labels"], rng),
        spoil=lambda text, args, rng: _as_form(text, args["labels"][::-1], rng),
        sample=lambda rng: {"labels": rng.sample(LABELS, rng.randint(2, 4))},
        arguments={"labels": list},
        claims=WHOLE,
        order=9,
    ),
    "tagged": Kind(
        phrasings=("Put your whole answer between <{tag}> and </{tag}>.",),
        check=lambda text, args: _is_wrapped(text, args["tag"]),
        mend=lambda text, args, _: f"<{args['tag']}>{text}</{args['tag']}>",
        spoil=lambda text, _, rng: rng.choice((text.strip()[1:], text.strip()[:-1])),
        sample=lambda rng: {"tag": rng.choice(("answer", "result", "reply", "output"))},
        arguments={"tag": str},
        claims=frozenset({"first", "last", "case", "layout"}),
        order=9,
    ),
}
