"""What a model behind an endpoint was asked, and what that cost: counted while it's asked, read as typed totals."""

from __future__ import annotations

import os
import threading
from dataclasses import astuple, dataclass

from rufus_core.errors import ConfigError

PRICES_VARIABLE = "RUFUS_JUDGE_PRICES"
_PER_TOKENS = 1e6


@dataclass(frozen=True, slots=True)
class Prices:
    """What an endpoint takes for a million tokens, in any one currency."""

    prompt: float
    completion: float

    @classmethod
    def from_environment(cls, variable: str = PRICES_VARIABLE) -> Prices | None:
        """The variable as `PROMPT,COMPLETION`; None where it isn't set. Raises ConfigError for anything else."""
        text = os.environ.get(variable)
        if not text:
            return None
        try:
            prompt, completion = (float(part) for part in text.split(","))
        except ValueError as error:
            raise ConfigError(
                f"{text!r} isn't two prices", where=variable, hint="for example 0.2,0.6 for a million tokens"
            ) from error
        return cls(prompt, completion)


@dataclass(frozen=True, slots=True)
class JudgeUsage:
    """Counts of one span of time. `verdicts + unscored` is what was asked, `requests` what went over the wire for it.

    `seconds` sums what each question took, with its waits and retries; questions may overlap. Tokens are as the
    endpoint tells them, those of useless replies too.
    """

    verdicts: int = 0
    unscored: int = 0
    requests: int = 0
    retries: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0

    def __add__(self, other: JudgeUsage) -> JudgeUsage:
        return JudgeUsage(*(ours + theirs for ours, theirs in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: JudgeUsage) -> JudgeUsage:
        return JudgeUsage(*(ours - theirs for ours, theirs in zip(astuple(self), astuple(other), strict=True)))

    def cost(self, prices: Prices) -> float:
        return (self.prompt_tokens * prices.prompt + self.completion_tokens * prices.completion) / _PER_TOKENS

    def metrics(self, prices: Prices | None = None) -> dict[str, float]:
        """By the names they are logged under; nothing where nothing was asked.

        They are for whoever watches: retries and seconds depend on the network, and equal runs write equal artifacts.
        """
        if not self.verdicts + self.unscored:
            return {}
        counts = {
            "verdicts": self.verdicts,
            "unscored": self.unscored,
            "requests": self.requests,
            "retries": self.retries,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "seconds": self.seconds,
            **({"cost": self.cost(prices)} if prices else {}),
        }
        return {f"judge/{name}": float(value) for name, value in counts.items()}


class UsageMeter:
    """Adds up usage from several threads."""

    def __init__(self) -> None:
        self._total = self._told = JudgeUsage()
        self._lock = threading.Lock()

    @property
    def total(self) -> JudgeUsage:
        return self._total

    def add(self, usage: JudgeUsage) -> None:
        with self._lock:
            self._total += usage

    def since_last(self) -> JudgeUsage:
        """What was added since the last call."""
        with self._lock:
            spent, self._told = self._total - self._told, self._total
        return spent
