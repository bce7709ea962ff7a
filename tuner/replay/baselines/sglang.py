"""SGLang's two adaptive strategies.

`EmaTiers`: sgl-project/sglang ``python/sglang/srt/speculative/adaptive_spec_params.py`` (PR 21599, 23336) with its
default table of batch-size slots and ``adaptive_step_router.py``. Each slot keeps an exponential mean of accepted
drafts a request (0.2 of the new one); after 10 batches, every 5 batches, it moves down while the mean is at most the
next lower step less 0.5 (0.5 for step 0) plus a hysteresis, else up while it exceeds the present step less 0.5; from
step 0 it always tries the next step again.

`ThroughputAware`: ``throughput_aware_controller.py`` and ``throughput_aware_spec_params.py`` (PR 28045), with the table
of its docstring. Per position a window of the last 20 batches' share that accepted it; positions without data go on
geometrically from those before; every 10 batches, once all positions of the present step have a full window, the step
with the most expected tokens over the profiled seconds of the batch size. It has no step 0: it cannot turn off.

What the simulator forces: no captured graphs, so batch sizes are not padded; the first step is the best fixed length in
hindsight where a slot has it, which is generous; the profile is that of `profiled`, generous too (theirs takes prompts
of 2,048 tokens and one batch size in a few). They do not choose a drafter: they get the best single one in hindsight.
"""

from collections import deque

from tuner.replay.baselines.batchwise import Batchwise, profiled
from tuner.replay.hindsight import Single
from tuner.replay.player import Running, World

EMA_SLOTS: tuple[tuple[int, tuple[int, ...], float], ...] = (
    (1, (1, 3, 5, 7), -0.25),
    (8, (0, 1, 3), 0.0),
    (32, (0, 1), 0.0),
    (64, (0,), 0.0),
)
"""(least batch size, steps, hysteresis downwards)"""
EMA_WEIGHT = 0.2
EMA_INTERVAL = 5
EMA_WARM_UP = 10

THROUGHPUT_SLOTS = ((1, (1, 3, 5, 7)), (8, (1, 3, 5)), (32, (1, 3)), (128, (1,)))
THROUGHPUT_WINDOW = 20
THROUGHPUT_INTERVAL = 10


class Slot:
    """`AdaptiveStepSlot`: the step of one range of batch sizes."""

    def __init__(self, steps: tuple[int, ...], first: int, down_hysteresis: float) -> None:
        self._steps = steps
        self._down_hysteresis = down_hysteresis
        self.step = first if first in steps else steps[len(steps) // 2]
        self.mean = float(self.step - 1)
        self._batches = 0

    def update(self, accepted: float) -> None:
        """After a batch in which a request had so many drafts accepted in the mean."""
        if self.step > 0:
            self.mean = (1.0 - EMA_WEIGHT) * self.mean + EMA_WEIGHT * accepted
        self._batches += 1
        if self._batches > EMA_WARM_UP and (self._batches - EMA_WARM_UP) % EMA_INTERVAL == 0:
            self._move()

    def _move(self) -> None:
        steps, place = self._steps, self._steps.index(self.step)
        if self.step == 0:
            self.step = steps[min(place + 1, len(steps) - 1)]
            if self.step > 0 and self.mean < 0.0:
                self.mean = float(self.step - 1)
            return
        before = place
        while place > 0:
            lower = steps[place - 1]
            if self.mean > (0.5 if lower == 0 else lower - 0.5) + self._down_hysteresis:
                break
            place -= 1
        if place == before:
            while place < len(steps) - 1 and self.mean > steps[place] - 0.5:
                place += 1
        self.step = steps[place]


class EmaTiers(Batchwise):
    """``--speculative-adaptive``."""

    name = "sglang-ema"

    def begin(self, world: World) -> None:
        """All slots anew."""
        self._slots = [
            (least, Slot(steps, self.single.block_length, down_hysteresis))
            for least, steps, down_hysteresis in EMA_SLOTS
        ]
        self._slot = self._slots[0][1]

    def length(self, load: int) -> int:
        """The step of the last slot that begins at or below the batch size."""
        for least, slot in self._slots:
            if load >= least:
                self._slot = slot
        return self._slot.step

    def learn(self, running: list[Running], seconds: float) -> None:
        """Only the slot of this batch learns."""
        self._slot.update(sum([one.accepted for one in running]) / len(running))


class ThroughputAware(Batchwise):
    """``"strategy": "throughput_aware"``."""

    name = "sglang-throughput"

    def __init__(self, single: Single) -> None:
        super().__init__(single)
        steps = THROUGHPUT_SLOTS[0][1]
        self._first = single.block_length if single.block_length in steps else steps[len(steps) // 2]

    def begin(self, world: World) -> None:
        """Profile anew."""
        self._seconds = profiled(world.calibrated, self.single, world.slots)
        self._windows: list[deque[float]] = [deque(maxlen=THROUGHPUT_WINDOW) for _ in range(THROUGHPUT_SLOTS[0][1][-1])]
        self.step = self._first
        self._batches = 0

    def length(self, load: int) -> int:
        """Decided every 10 batches, for the batch size of that moment."""
        if (
            self._batches
            and self._batches % THROUGHPUT_INTERVAL == 0
            and all(len(window) == THROUGHPUT_WINDOW for window in self._windows[: self.step])
        ):
            self._decide(load)
        return self.step

    def learn(self, running: list[Running], seconds: float) -> None:
        """The share of requests that accepted each position."""
        accepted = [one.accepted for one in running]
        for position in range(self.step):
            self._windows[position].append(sum([kept > position for kept in accepted]) / len(accepted))
        self._batches += 1

    def _decide(self, load: int) -> None:
        candidates: tuple[int, ...] = THROUGHPUT_SLOTS[0][1]
        for least, steps in THROUGHPUT_SLOTS:
            if load >= least:
                candidates = steps
        rates = self.rates(candidates[-1])
        seconds = self._seconds[load - 1]
        best = max(candidates, key=lambda step: (1.0 + sum(rates[:step])) / seconds[step])
        if best < self.step:
            for window in self._windows[best:]:
                window.clear()
        self.step = best

    def rates(self, positions: int) -> list[float]:
        """The share that accepts each position; measured, or extrapolated from those before it."""
        found: list[float] = []
        for window in self._windows[:positions]:
            if window:
                found.append(sum(window) / len(window))
            elif len(found) == 1:
                found.append(found[0])
            else:
                first, last = found[0], found[-1]
                ratio = (last / first) ** (1.0 / (len(found) - 1)) if first > 0.0 else 0.0
                found.append(max(0.0, min(last, last * ratio)))
        return found
