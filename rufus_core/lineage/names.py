"""Names of artifacts, and their spelling as ids and folder names."""

from __future__ import annotations

import re

from rufus_core.errors import LineageError

_NAME = re.compile(r"[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*")
_HEX = re.compile(r"[0-9a-f]+")
MAX_NAME = 120  # a name, a digest and a short fingerprint fit one file name of 255 bytes
CHECKPOINTS = "checkpoints"  # in a training: a folder for each step whose weights it kept
_STEP = re.compile(rf"{CHECKPOINTS}/step-(\d+)(/|$)")
SHORT = 16  # hex digits of a fingerprint in a folder's name


def check_name(name: str) -> str:
    """A name is words of letters, digits, `_` and `-` joined by `/`: never a way out of the store's folder."""
    if not _NAME.fullmatch(name) or len(name) > MAX_NAME:
        raise LineageError(
            f"{name!r} is no artifact name", hint=f"words of letters, digits, _ and -, joined by /, {MAX_NAME} at most"
        )
    return name


def check_fingerprint(fingerprint: str) -> str:
    if len(fingerprint) != 64 or not is_hex(fingerprint):
        raise LineageError(f"{fingerprint!r} is no fingerprint", hint="64 hex digits, lower case")
    return fingerprint


def is_hex(text: str) -> bool:
    return bool(_HEX.fullmatch(text))


def slug(name: str) -> str:
    """The folder name of an artifact name. One to one, for no word of a name holds a dot."""
    return check_name(name).replace("/", ".")


def name_of_slug(text: str) -> str:
    return check_name(text.replace(".", "/"))


def record_id(name: str, fingerprint: str) -> str:
    """The id by which records name each other, for example `stages/coding_rl/checkpoint/0123456789abcdef`."""
    return f"{check_name(name)}/{check_fingerprint(fingerprint)[:SHORT]}"


def artifact_label(name: str, fingerprint: str) -> str:
    """A record id as one file name."""
    return f"{slug(name)}.{check_fingerprint(fingerprint)[:SHORT]}"


def split_record_id(text: str) -> tuple[str, str] | None:
    """(name, short fingerprint) of a record id; None for a text of another form."""
    name, _, short = text.rpartition("/")
    if len(short) != SHORT or not is_hex(short) or not _NAME.fullmatch(name):
        return None
    return name, short


def step_folder(step: int) -> str:
    """Where a training keeps the weights of a step: a path inside its artifact."""
    return f"{CHECKPOINTS}/step-{step}"


def step_of(path: str) -> int | None:
    """The step whose weights a path inside a training is of; None for any other path."""
    found = _STEP.match(path)
    return int(found[1]) if found else None
