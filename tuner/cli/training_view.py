"""What `paceline draft train` shows while it runs."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from tuner.api.durations import describe_duration
from tuner.training_request import TrainingStep

LINE_SECONDS = 20.0
Show = Callable[[TrainingStep], None]


@contextmanager
def training_view(console: Console) -> Iterator[Show]:
    """A bar for each phase on a terminal; elsewhere a line when one begins, and then now and then."""
    if not console.is_terminal:
        yield TrainingLines(console.log).show
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=console) as progress:

        def show(step: TrainingStep) -> None:
            total = step.total or None
            if step.phase not in tasks:
                tasks[step.phase] = progress.add_task(step.phase, total=total)
            progress.update(
                tasks[step.phase], completed=step.done, total=total, description=f"{step.phase}{_figures(step)}"
            )

        yield show


class TrainingLines:
    """Lines for a file or a pipe."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._clock = clock
        self._first: TrainingStep | None = None
        self._begun_at = self._told_at = 0.0

    def show(self, step: TrainingStep) -> None:
        """Write a line if it is time for one."""
        now = self._clock()
        if self._first is None or step.phase != self._first.phase:
            self._first, self._begun_at = step, now
        elif now - self._told_at < LINE_SECONDS:
            return
        self._told_at = now
        self._write(f"{step.phase}{self._count(step, now)}{_figures(step)}")

    def _count(self, step: TrainingStep, now: float) -> str:
        if not step.total or self._first is None:
            return ""
        made = step.done - self._first.done
        left = (step.total - step.done) / made * (now - self._begun_at) if made > 0 else None
        about = "" if left is None else f", about {describe_duration(left)} left"
        return f" {step.done:,} of {step.total:,}{about}"


def _figures(step: TrainingStep) -> str:
    rate = f", {step.tokens_per_second:.0f} tokens/s" if step.tokens_per_second else ""
    survival = "" if step.first_survival is None else f", S_1 {step.first_survival:.2f}"
    return rate + survival
