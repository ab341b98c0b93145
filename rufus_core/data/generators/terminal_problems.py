"""Small Coding Agent problems: one change to a few files, checked by a shell script (CA-D4)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rufus_core.data.generators.sampling import distinct, refuse_unknown
from rufus_core.data.harbor import terminal_problem
from rufus_core.data.words import NOUNS
from rufus_core.types import Json, Message, Problem, ToolCall

SOURCE = "terminal_problems"
_HEAD = "#!/bin/sh\nset -e\n"


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of change. In the texts, {a} and {b} are different nouns and {old} is what a.txt holds."""

    phrasings: tuple[str, ...]
    solution: str
    test: str
    slips: tuple[str, ...]  # plausible wrong commands that the shell accepts
    files: tuple[str, ...] = ()  # which of a.txt and b.txt exist beforehand; b.txt holds {b}


_KINDS = (
    _Kind(
        phrasings=("Create {a}.txt with the word {b}.", "Write the word {b} to {a}.txt."),
        solution="echo {b} > {a}.txt",
        test='test "$(cat {a}.txt)" = "{b}"\n',
        slips=("echo {a} > {a}.txt", "echo {b} > {b}.txt", "touch {a}.txt"),
    ),
    _Kind(
        phrasings=("Append the word {b} to {a}.txt.", "Add the word {b} after the text in {a}.txt."),
        solution="echo {b} >> {a}.txt",
        test='test "$(cat {a}.txt)" = "{old}\n{b}"\n',
        slips=("echo {b} > {a}.txt", "echo {a} >> {a}.txt", "echo {b} >> {b}.txt"),
        files=("a",),
    ),
    _Kind(
        phrasings=("Copy {a}.txt to {b}.txt.", "Make a copy of {a}.txt named {b}.txt."),
        solution="cp {a}.txt {b}.txt",
        test="grep -qx {old} {a}.txt\ngrep -qx {old} {b}.txt\n",
        slips=("mv {a}.txt {b}.txt", "touch {b}.txt", "cp {a}.txt {b}"),
        files=("a",),
    ),
    _Kind(
        phrasings=("Rename {a}.txt to {b}.txt.", "Move {a}.txt to {b}.txt."),
        solution="mv {a}.txt {b}.txt",
        test="test ! -e {a}.txt\ngrep -qx {old} {b}.txt\n",
        slips=("cp {a}.txt {b}.txt", "rm {a}.txt", "mv {a}.txt {b}"),
        files=("a",),
    ),
    _Kind(
        phrasings=("Delete {a}.txt but keep {b}.txt.", "Remove {a}.txt and keep {b}.txt."),
        solution="rm {a}.txt",
        test="test ! -e {a}.txt\ngrep -qx {b} {b}.txt\n",
        slips=("rm {b}.txt", "rm {a}.txt {b}.txt", "mv {a}.txt {b}.txt"),
        files=("a", "b"),
    ),
    _Kind(
        phrasings=("Make a folder {a} with a folder {b} inside.", "Create the folder {a} and in it {b}."),
        solution="mkdir -p {a}/{b}",
        test="test -d {a}/{b}\n",
        slips=("mkdir -p {b}/{a}", "mkdir {a} {b}", "mkdir {a}"),
    ),
)


def problems(seed: int, count: int, options: Mapping[str, Json]) -> Iterator[Problem]:
    """Distinct problems; about 6,600 in all. Raises DataError beyond that."""
    refuse_unknown(options)
    return distinct(_draw, seed, count)


def demonstrate(problem: Problem, rng: random.Random, wrong: bool) -> list[Message]:
    """One command and a closing word. Wrong: another command that the shell accepts, or none at all."""
    command = problem.ground_truth["solution"]
    done = Message(role="assistant", reasoning="", content="Done.")
    if wrong:
        command = rng.choice([*problem.ground_truth["slips"], None])
    if command is None:
        return [done]
    call = ToolCall(name="execute_command", arguments={"command": command})
    return [
        Message(role="assistant", reasoning="", tool_calls=(call,)),
        Message(role="tool", content="exit 0"),
        done,
    ]


def _draw(rng: random.Random) -> Problem:
    kind = rng.choice(_KINDS)
    a, b = rng.sample(NOUNS, 2)
    instruction = rng.choice(kind.phrasings).format(a=a, b=b)
    old = random.Random(instruction).choice([noun for noun in NOUNS if noun not in (a, b)])
    words = {"a": a, "b": b, "old": old}
    return terminal_problem(
        instruction=instruction,
        files={f"{words[name]}.txt": f"{old if name == 'a' else b}\n" for name in kind.files},
        tests={"test.sh": _HEAD + kind.test.format(**words)},
        source=SOURCE,
        solution=kind.solution.format(**words),
        slips=[slip.format(**words) for slip in kind.slips],
    )
