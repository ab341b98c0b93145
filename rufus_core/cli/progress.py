"""What a run shows while it goes on: a bar for each running step, and one line for each that ended."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from rufus_core.ports.orchestration import StepOutcome
from rufus_core.ports.progress import StepProgress
from rufus_core.recipe.step import Step

# Of a step's metrics: what one line shows, in this order, and its label.
SHOWN = {
    "reward": "reward",
    "loss": "loss",
    "response_tokens": "length",
    "validation_pass_at_1": "validation",
    "accuracy": "accuracy",
}
MAX_SHOWN = 3


class RunDisplay:
    """A RunObserver. On a terminal, bars; elsewhere a plain line for each start, wait and end, and nothing between."""

    def __init__(self, graph: Sequence[Step], console: Console) -> None:
        self._titles = {step.name: step.title for step in graph}
        self._width = max(map(len, self._titles.values()), default=0)
        self._console = console
        self._started: dict[str, float] = {}
        self._last: dict[str, StepProgress] = {}
        self._bars: dict[str, TaskID] = {}
        self._num_ended = 0
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[metrics]}"),
            TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._progress.stop()

    def step_started(self, step: str) -> None:
        self._started[step] = time.monotonic()
        title = self._titles[step].ljust(self._width)
        if not self._console.is_terminal:
            self._line(step, "started", "")
        self._bars[step] = self._progress.add_task(escape(title), total=None, metrics="")

    def step_progressed(self, step: str, progress: StepProgress) -> None:
        self._last[step] = progress
        if progress.message and not self._console.is_terminal:
            self._line(step, "waiting", progress.message)
        self._progress.update(
            self._bars[step],
            completed=progress.step,
            total=progress.total,
            metrics=escape(_metrics(progress.metrics) or progress.message),
        )

    def step_finished(self, step: str, outcome: StepOutcome) -> None:
        self._num_ended += 1
        if step in self._bars:
            self._progress.remove_task(self._bars.pop(step))
        if outcome.status == "completed":
            seconds = time.monotonic() - self._started[step]
            last = self._last.get(step)
            told = outcome.note or (_metrics(last.metrics) if last else "")
            self._line(step, "done", f"{duration(seconds):>7}  {told}".rstrip())
        else:
            self._line(step, outcome.status, outcome.note)

    def warned(self, message: str) -> None:
        self._progress.console.print(f"warning: {escape(message)}")

    def _line(self, step: str, word: str, rest: str) -> None:
        count = f"{self._num_ended:>{len(str(len(self._titles)))}}/{len(self._titles)}"
        text = f"{count}  {self._titles[step].ljust(self._width)}  {word:<9}  {rest}".rstrip()
        self._progress.console.print(escape(text), soft_wrap=True)


def duration(seconds: float) -> str:
    """For example 8.1s, 2m05s, 1h02m."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"


def _metrics(metrics: Mapping[str, float]) -> str:
    """The best known metrics; where none is known (scores are named by benchmark), the first ones."""
    names = [name for name in SHOWN if name in metrics] or list(metrics)
    return "  ".join(f"{SHOWN.get(name, name)} {metrics[name]:.3g}" for name in names[:MAX_SHOWN])
