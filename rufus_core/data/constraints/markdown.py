"""Lists, headings, tables and marks in Markdown."""

from __future__ import annotations

import random
import re

from rufus_core.data.constraints.kind import Args, Kind, Unit, at_least, counts, exactly
from rufus_core.data.constraints.punctuation import spans
from rufus_core.data.constraints.text import insert_block, item, paragraphs_of, sentence
from rufus_core.data.constraints.vocabulary import LABELS

_BULLET = re.compile(r"[-*+] +\S")
_NESTED = re.compile(r"(?:  |\t)[ \t]*[-*+] +\S")
_NUMBERED = re.compile(r"(\d{1,6})[.)] +\S", re.ASCII)
_HEADING = re.compile(r"#{1,6} +\S")
_QUOTED = re.compile(r"> ?\S")
_TASK = re.compile(r"- \[[ xX]\] +\S")
_BOLD = re.compile(r"\*\*[^*\n]+\*\*")
_ITALIC = re.compile(r"(?<![*\w])\*[^*\n]+\*(?![*\w])")
_CODE = re.compile(r"(?<!`)`[^`\n]+`(?!`)")
_LINK = re.compile(r"\[[^\[\]\n]+\]\(https?://[^()\s]+\)")


def _lines(pattern: re.Pattern[str], marker: str) -> Unit:
    """Lines that begin in one way: added as `marker` and a few words, dropped by taking the marker away."""

    def add(text: str, _args: Args, rng: random.Random) -> str:
        lines, entry = text.splitlines(), marker + item(rng)
        last = max((place for place, line in enumerate(lines) if pattern.match(line)), default=None)
        if last is None:
            return insert_block(text, entry, rng)
        return "\n".join([*lines[: last + 1], entry, *lines[last + 1 :]])

    def drop(text: str, _args: Args, _rng: random.Random) -> str:
        lines = text.splitlines()
        last = max((place for place, line in enumerate(lines) if pattern.match(line)), default=None)
        if last is None:
            return text
        return "\n".join([*lines[:last], *lines[last + 1 :]])

    return Unit(
        count=lambda text, _: sum(pattern.match(line) is not None for line in text.splitlines()), add=add, drop=drop
    )


def _numbers(text: str) -> list[int]:
    return [int(match[1]) for line in text.splitlines() if (match := _NUMBERED.match(line))]


def _number(text: str, args: Args, rng: random.Random) -> str:
    kept = "\n".join(line for line in text.splitlines() if not _NUMBERED.match(line))
    return insert_block(kept, "\n".join(f"{place + 1}. {item(rng)}" for place in range(args["count"])), rng)


def _cells(line: str) -> int:
    return len(line.strip().strip("|").split("|")) if line.strip().startswith("|") and line.strip().endswith("|") else 0


def _is_rule(line: str) -> bool:
    return _cells(line) > 0 and all(cell.strip(" :-") == "" and "-" in cell for cell in line.strip(" |").split("|"))


def _tables(text: str) -> list[tuple[int, int]]:
    """Columns and rows below the head of each table."""
    tables, lines = [], text.splitlines()
    for place in range(1, len(lines)):
        if _is_rule(lines[place]) and 0 < _cells(lines[place - 1]) == _cells(lines[place]):
            rows = place + 1
            while rows < len(lines) and _cells(lines[rows]) == _cells(lines[place]) and not _is_rule(lines[rows]):
                rows += 1
            tables.append((_cells(lines[place]), rows - place - 1))
    return tables


def _has_table(text: str, args: Args) -> bool:
    return (args["columns"], args["rows"]) in _tables(text)


def _table(text: str, columns: int, rows: int, rng: random.Random) -> str:
    kept = "\n".join(line for line in text.splitlines() if not _cells(line))
    cells = [[item(rng) for _ in range(columns)] for _ in range(rows + 1)]
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    return insert_block(kept, "\n".join([lines[0], "|" + " --- |" * columns, *lines[1:]]), rng)


def _fences(text: str) -> list[str]:
    """The language after each opening fence of a block that closes."""
    found, opened = [], None
    for line in text.splitlines():
        if opened is None and line.startswith("```") and "`" not in line[3:]:
            opened = line[3:].strip()
        elif opened is not None and line.strip() == "```":
            found.append(opened)
            opened = None
    return found


def _fence(text: str, args: Args, rng: random.Random) -> str:
    return insert_block(text, f"```{args['language']}\n{item(rng)}\n```", rng)


def _without_fences(text: str, _args: Args, _rng: random.Random) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("```"))


def _sections(text: str) -> list[str]:
    return [line.lstrip("#").strip() for line in text.splitlines() if _HEADING.match(line)]


def _put_sections(text: str, names: list[str], rng: random.Random) -> str:
    kept = [line for line in text.splitlines() if not _HEADING.match(line)]
    paragraphs = paragraphs_of("\n".join(kept))
    for place, name in enumerate(names):
        body = paragraphs[place] if place < len(paragraphs) else sentence(rng)
        paragraphs[place : place + 1] = [f"## {name}\n{body}"]
    return "\n\n".join(paragraphs)


KINDS: dict[str, Kind] = {
    "num_bullets": exactly(
        _lines(_BULLET, "- "),
        counts(2, 6),
        "Include a list of exactly {count} bullet points (lines that begin with - or *).",
        "Use {count} bullet points, no more and no fewer, each on a line that starts with a hyphen.",
        claims=frozenset({"bullets"}),
        order=2,
    ),
    "nested_bullets": at_least(
        _lines(_NESTED, "  - "),
        counts(2, 3),
        "Include at least {count} indented bullet points, set in by two spaces or more.",
        order=2,
    ),
    "numbered_list": Kind(
        phrasings=("Include a list numbered from 1 to {count}, one entry a line.",),
        check=lambda text, args: _numbers(text) == list(range(1, args["count"] + 1)),
        mend=_number,
        spoil=lambda text, args, rng: _number(text, {"count": args["count"] + rng.choice((1, -1))}, rng),
        sample=counts(3, 6),
        arguments={"count": int},
        claims=frozenset({"digits"}),
        order=2,
    ),
    "checklist": exactly(
        _lines(_TASK, "- [ ] "),
        counts(2, 5),
        "Include a checklist of exactly {count} entries, each on a line that begins with - [ ] or - [x].",
        claims=frozenset({"bullets"}),
        order=2,
    ),
    "num_headings": exactly(
        _lines(_HEADING, "## "),
        counts(2, 4),
        "Use exactly {count} Markdown headings (lines that begin with #).",
        claims=frozenset({"headings"}),
        order=2,
    ),
    "sections": Kind(
        phrasings=("Divide your answer by Markdown headings named, in this order, {names}, and use no others.",),
        check=lambda text, args: _sections(text) == args["names"],
        mend=lambda text, args, rng: _put_sections(text, args["names"], rng),
        spoil=lambda text, args, rng: _put_sections(text, rng.choice((args["names"][::-1], args["names"][1:])), rng),
        sample=lambda rng: {"names": rng.sample(LABELS, rng.randint(2, 3))},
        arguments={"names": list},
        claims=frozenset({"headings", "first", "case"}),
        order=2,
    ),
    "quote_lines": at_least(
        _lines(_QUOTED, "> "),
        counts(2, 3),
        "Include at least {count} lines of block quote (lines that begin with >).",
        order=2,
    ),
    "bold": at_least(
        spans(_BOLD, "**{}**"),
        counts(2, 4),
        "Set at least {count} expressions in **bold**.",
        order=3,
    ),
    "italics": at_least(
        spans(_ITALIC, "*{}*"),
        counts(2, 4),
        "Set at least {count} expressions in *italics*.",
        order=3,
    ),
    "inline_code": at_least(
        spans(_CODE, "`{}`"),
        counts(2, 3),
        "Set at least {count} expressions in `inline code`.",
        order=3,
    ),
    "links": at_least(
        Unit(
            count=lambda text, _: len(_LINK.findall(text)),
            add=lambda text, _, rng: insert_block(
                text, f"[{item(rng)}](https://example.org/{rng.randint(1, 99)})", rng
            ),
            drop=lambda text, _, __: _LINK.sub("gone", text, count=1),
        ),
        counts(1, 2),
        "Include at least {count} of your references as a Markdown link to a web address.",
        order=2,
    ),
    "table": Kind(
        phrasings=("Include a Markdown table of {columns} columns and, below its head, {rows} rows.",),
        check=_has_table,
        mend=lambda text, args, rng: _table(text, args["columns"], args["rows"], rng),
        spoil=lambda text, args, rng: _table(text, args["columns"], args["rows"] + rng.choice((1, -1)), rng),
        sample=lambda rng: {"columns": rng.randint(2, 4), "rows": rng.randint(2, 4)},
        arguments={"columns": int, "rows": int},
        claims=frozenset({"table"}),
        order=2,
    ),
    "code_block": Kind(
        phrasings=("Include exactly one fenced code block, marked as {language}.",),
        check=lambda text, args: _fences(text) == [args["language"]],
        mend=lambda text, args, rng: _fence(_without_fences(text, args, rng), args, rng),
        spoil=_without_fences,
        sample=lambda rng: {"language": rng.choice(("python", "bash", "json", "sql", "html"))},
        arguments={"language": str},
        claims=frozenset({"case"}),
        order=2,
    ),
}
