"""What `paceline draft train` shows while it runs."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from tuner.api.durations import describe_duration
from tuner.training_request import TrainingStep

LINE_SECONDS = 20.0
FIRST_ESTIMATE_SECONDS = 60.0
"""Of a phase: before, the slow first steps would make hours of minutes."""
Show = Callable[[TrainingStep], None]


@contextmanager
def training_view(console: Console) -> Iterator[Show]:
    """A bar for each phase on a terminal; elsewhere a line when one begins, and then now and then."""
    if not console.is_terminal:
        yield TrainingLines(console.log).show
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    remaining = Remaining()
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=console) as progress:

        def show(step: TrainingStep) -> None:
            total = step.total or None
            if step.phase not in tasks:
                tasks[step.phase] = progress.add_task(step.phase, total=total)
            described = f"{step.phase}{remaining.words(step)}{_figures(step)}"
            progress.update(tasks[step.phase], completed=step.done, total=total, description=described)

        yield show


class Remaining:
    """About how long a phase still takes, from its pace since this command came to it: a phase may be taken up."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._first: TrainingStep | None = None
        self._begun_at = 0.0

    def words(self, step: TrainingStep) -> str:
        """``, about 1m 20s left``; nothing as long as it cannot be known."""
        now = self._clock()
        if self._first is None or step.phase != self._first.phase:
            self._first, self._begun_at = step, now
        made, spent = step.done - self._first.done, now - self._begun_at
        if not step.total or made <= 0 or spent < FIRST_ESTIMATE_SECONDS:
            return ""
        return f", about {describe_duration((step.total - step.done) / made * spent)} left"


class TrainingLines:
    """Lines for a file or a pipe."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._clock = clock
        self._remaining = Remaining(clock)
        self._phase = ""
        self._told_at = 0.0

    def show(self, step: TrainingStep) -> None:
        """Write a line if it is time for one."""
        now = self._clock()
        about = self._remaining.words(step)
        if step.phase == self._phase and now - self._told_at < LINE_SECONDS:
            return
        self._phase, self._told_at = step.phase, now
        count = f" {step.done:,} of {step.total:,}" if step.total else ""
        self._write(f"{step.phase}{count}{about}{_figures(step)}")


def _figures(step: TrainingStep) -> str:
    rate = f", {step.tokens_per_second:.0f} tokens/s" if step.tokens_per_second else ""
    survival = "" if step.first_survival is None else f", S_1 {step.first_survival:.2f}"
    return rate + survival
