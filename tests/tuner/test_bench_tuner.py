"""``paceline bench --scenario tuner``, made small, and its intervals."""

import asyncio
import random
from io import StringIO

import pytest
from rich.console import Console

from tuner.bench import tuner_speed
from tuner.bench.options import BenchOptions
from tuner.bench.tuner_speed import quantile, run_tuner_speed
from tuner.settings import Settings


def test_everything_is_measured_without_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner_speed, "CONTEXTS", 10)
    monkeypatch.setattr(tuner_speed, "ROUTE_NAMES", 60)
    monkeypatch.setattr(tuner_speed, "_SOME_NAMES", 20)
    monkeypatch.setattr(tuner_speed, "LOADS", (1, 4))
    options = BenchOptions(scenario="tuner", repeats=1)
    said = StringIO()
    info, report = asyncio.run(run_tuner_speed(Settings(), options, Console(file=said, width=200)))
    assert info is None
    assert report.body["contexts"] == 10
    assert [row["sequences"] for row in report.body["policies"]] == [1, 4]
    assert len(report.bars) == 6
    assert all(bar.measured is not None and bar.measured.low <= bar.measured.estimate for bar in report.bars)
    assert 0 < report.body["bytes"]["some"] < report.body["bytes"]["all"] < 64 << 20
    assert "names of routes" in said.getvalue()


def test_the_interval_of_a_quantile_covers_it() -> None:
    chance = random.Random(1)
    covered = 0
    for _ in range(400):
        found = quantile([chance.random() for _ in range(200)], 0.5)
        covered += found.low <= 0.5 <= found.high
    assert 0.92 * 400 <= covered <= 0.99 * 400
