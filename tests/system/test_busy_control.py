"""A busy thread in the control process must not slow the engine, which owns a process for that reason."""

import asyncio
import statistics
import threading
from pathlib import Path

import numpy as np
import pytest

from engine.messages import EngineOptions, Submit
from kernels.sampling import Sampling
from policies.stats import CycleStats, RequestStats
from tests.engine.engine_process import collect, running_engine
from tests.engine.scripted import decision

PAIRS = 16
CYCLES = 40
"""Cycles of one period; the first `SETTLING` are left out, since a cycle may have begun in the period before."""
SETTLING = 5
BOUND = 1.05
RESAMPLES = 10_000


class Alternating:
    """A `TelemetrySink` that makes periods of cycles, and keeps one Python thread busy in every other one.

    The order within a pair is reversed from pair to pair, so that a drift, such as a growing context, weighs on both.
    """

    def __init__(self) -> None:
        self.busy = threading.Event()
        self.done = threading.Event()
        self.seconds: list[list[float]] = [[]]
        self._worker = threading.Thread(target=self._work, name="busy")
        self._worker.start()
        self._enter(0)

    @staticmethod
    def is_busy(period: int) -> bool:
        pair, place = divmod(period, 2)
        return (pair + place) % 2 == 1

    def record_cycle(self, stats: CycleStats) -> None:
        if self.done.is_set() or not stats.load or stats.prefill_tokens:
            return
        self.seconds[-1].append(stats.cycle_seconds)
        if len(self.seconds[-1]) < CYCLES:
            return
        if len(self.seconds) == 2 * PAIRS:
            self.close()
        else:
            self._enter(len(self.seconds))
            self.seconds.append([])

    def record_request(self, stats: RequestStats) -> None:
        """The engine's client records none."""

    def close(self) -> None:
        self.done.set()
        self.busy.set()

    def join(self) -> None:
        self._worker.join()

    def _enter(self, period: int) -> None:
        if self.is_busy(period):
            self.busy.set()
        else:
            self.busy.clear()

    def _work(self) -> None:
        number = 0
        while not self.done.is_set():
            self.busy.wait()
            while self.busy.is_set() and not self.done.is_set():
                number = (number * 31 + 7) % 1_000_003

    @property
    def log_ratios(self) -> list[float]:
        """Of each pair, the logarithm of its busy median cycle over its quiet one."""
        medians = np.log([statistics.median(period[SETTLING:]) for period in self.seconds])
        return [
            float(medians[first + 1] - medians[first]) * (1 if self.is_busy(first + 1) else -1)
            for first in range(0, 2 * PAIRS, 2)
        ]


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_busy_control_process_moves_the_median_cycle_by_less_than_five_percent(default_model: Path) -> None:
    """With as many threads as the engine chooses. Fails only when the 95 % interval of the ratio, over pairs of
    periods, lies beyond the bound."""
    options = EngineOptions(str(default_model), "model", slots=1, context_limit=2048, calibrate=False)
    sink = Alternating()

    async def decode() -> None:
        async with running_engine(options, sink) as client:
            while not sink.done.is_set():
                key = client.next_key()
                prompt = tuple(range(1000, 1100))
                sampling = Sampling(seed=key)
                await collect(client.submit(Submit(key, prompt, sampling, 400, (), (), decision(), 0.0)))

    try:
        asyncio.run(decode())
    finally:
        sink.close()
        sink.join()
    ratio, low, high = interval(sink.log_ratios)
    assert low < BOUND, f"busy over quiet is {ratio:.3f}, 95 % interval {low:.3f} to {high:.3f}"


def interval(log_ratios: list[float]) -> tuple[float, float, float]:
    """The geometric mean of the ratios with its 95 % bootstrap interval over the pairs."""
    values = np.asarray(log_ratios)
    draws = np.random.default_rng(20251129).choice(values, (RESAMPLES, len(values))).mean(axis=1)
    low, high = np.exp(np.quantile(draws, [0.025, 0.975]))
    return float(np.exp(values.mean())), float(low), float(high)


@pytest.mark.parametrize(("slowdown", "fails"), [(1.0, False), (1.03, False), (1.3, True)])
def test_the_verdict_sees_a_slowdown_in_noisy_periods(slowdown: float, fails: bool) -> None:
    """The arithmetic above on periods of which the truth is known."""
    noise = np.random.default_rng(1)
    sink = Alternating()
    sink.close()
    sink.join()
    sink.seconds = [
        [
            0.02 * (slowdown if sink.is_busy(period) else 1.0) * (1 + 0.004 * period) * float(noise.lognormal(0, 0.1))
            for _ in range(CYCLES)
        ]
        for period in range(2 * PAIRS)
    ]
    ratio, low, high = interval(sink.log_ratios)
    assert low < ratio < high
    assert ratio == pytest.approx(slowdown, abs=0.03)
    assert (low >= BOUND) == fails
