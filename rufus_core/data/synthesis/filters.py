"""The three filters of multi-turn dialogues, in order (IF-D6), as pure functions that say why each one goes.

Quality and difficulty are screens over pass counts; whoever has the teacher and the policy makes those.
"""

from __future__ import annotations

import enum
import hashlib
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from rufus_core.data.synthesis.dialogue import Dialogue

MAX_TOKENS = 16_384  # of the whole conversation: the open choice after IF-T3
MAX_DECLINE_SHARE = 0.05  # the same
MAX_PASS_RATE = 0.8  # IF-D3, IF-D6


class DropReason(enum.StrEnum):
    OVERLONG = "overlong"
    DECLINE = "decline"  # one too many of those whose right answer is to decline
    TEACHER_NEVER_PASSED = "teacher_never_passed"
    TOO_EASY = "too_easy"
    UNSCORED = "unscored"  # too few attempts have a verdict to say


@dataclass(frozen=True, slots=True)
class Dropped:
    id: str
    reason: DropReason
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Filtered:
    """`kept` in the order given, and one entry for each that went: together as many as there were."""

    kept: tuple[Dialogue, ...]
    dropped: tuple[Dropped, ...]

    @property
    def counts(self) -> dict[str, int]:
        reasons = Counter(dropped.reason.value for dropped in self.dropped)
        return {"asked": len(self.kept) + len(self.dropped), "kept": len(self.kept), **reasons}

    def then(self, filter: Callable[[Sequence[Dialogue]], Filtered]) -> Filtered:
        """The next filter's result on what this one kept, with all that went so far."""
        after = filter(self.kept)
        return Filtered(after.kept, self.dropped + after.dropped)


def sane(
    dialogues: Sequence[Dialogue],
    count_tokens: Callable[[str], int],
    seed: int,
    max_tokens: int = MAX_TOKENS,
    max_decline_share: float = MAX_DECLINE_SHARE,
) -> Filtered:
    """Drop conversations that verbose assistant turns made overlong, then declines beyond a share of what is kept.

    Which declines stay depends on the seed and their ids, not on their order.
    """
    dropped: list[Dropped] = []
    fitting: list[Dialogue] = []
    for dialogue in dialogues:
        tokens = sum(count_tokens(message.content) for message in dialogue.messages)
        if tokens > max_tokens:
            dropped.append(Dropped(dialogue.id, DropReason.OVERLONG, f"{tokens} tokens"))
        else:
            fitting.append(dialogue)
    declines = sorted((d.id for d in fitting if d.declines), key=lambda id: _rank(id, seed))
    most = _most_declines(len(fitting) - len(declines), max_decline_share)
    excess = set(declines[most:])
    dropped += [Dropped(dialogue.id, DropReason.DECLINE) for dialogue in fitting if dialogue.id in excess]
    return Filtered(tuple(dialogue for dialogue in fitting if dialogue.id not in excess), tuple(dropped))


def solvable(dialogues: Sequence[Dialogue], passes: Mapping[str, Sequence[bool | None]]) -> Filtered:
    """Drop iff none of the teacher's attempts passes (4 of them, IF-D6).

    Args:
        passes: of each attempt, by the dialogue's id; None is one without a verdict. One that has no passing attempt
            and lacks a verdict is unscored: the attempt might have passed.
    """

    def why(attempts: Sequence[bool | None]) -> DropReason | None:
        if True in attempts:
            return None
        return DropReason.UNSCORED if None in attempts or not attempts else DropReason.TEACHER_NEVER_PASSED

    return _screened(dialogues, passes, why)


def hard_enough(
    dialogues: Sequence[Dialogue],
    passes: Mapping[str, Sequence[bool | None]],
    max_pass_rate: float = MAX_PASS_RATE,
) -> Filtered:
    """Drop iff the policy passes more than `max_pass_rate` of its attempts (7 or 8 of 8, IF-D6).

    Those without a verdict leave the count; without any verdict it is unscored. `passes` is as for `solvable`.
    """

    def why(attempts: Sequence[bool | None]) -> DropReason | None:
        scored = [attempt for attempt in attempts if attempt is not None]
        if not scored:
            return DropReason.UNSCORED
        return DropReason.TOO_EASY if sum(scored) / len(scored) > max_pass_rate else None

    return _screened(dialogues, passes, why)


def _screened(
    dialogues: Sequence[Dialogue],
    passes: Mapping[str, Sequence[bool | None]],
    why: Callable[[Sequence[bool | None]], DropReason | None],
) -> Filtered:
    reasons = {dialogue.id: why(passes.get(dialogue.id, ())) for dialogue in dialogues}
    dropped = tuple(
        Dropped(id, reason, f"{sum(map(bool, passes.get(id, ())))} of {len(passes.get(id, ()))} pass")
        for id, reason in reasons.items()
        if reason is not None
    )
    return Filtered(tuple(dialogue for dialogue in dialogues if reasons[dialogue.id] is None), dropped)


def _most_declines(others: int, share: float) -> int:
    """The largest number that is at most this share of itself and the others."""
    if share >= 1:
        return sys.maxsize
    exact = Fraction(str(share))
    return int(exact * others / (1 - exact))


def _rank(id: str, seed: int) -> bytes:
    return hashlib.sha256(f"{seed} {id}".encode()).digest()
