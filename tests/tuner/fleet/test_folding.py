"""What the data path measured, folded: one exchange that cannot be read takes nothing from its neighbours."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from policies.store import Store
from tests.tuner.fleet.fleet_examples import PLAIN_POOL, SPECULATES, exchange
from tuner.fleet.control import for_sidecar
from tuner.fleet.folding import Folding
from tuner.fleet.metrics import FleetMetrics
from tuner.fleet.steering import FleetSteering, pools_info
from tuner.metrics import Metrics
from tuner.recorder import Recorder, RecorderOptions
from tuner.settings import Settings
from tuner.telemetry import TelemetryQueue


def test_one_exchange_that_cannot_be_read_takes_nothing_from_its_neighbours(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = for_sidecar(Settings())
    steering = FleetSteering(settings, "tiny", (SPECULATES, PLAIN_POOL))
    recorder = Recorder(Store(f"sqlite:///{tmp_path / 'p.db'}"), RecorderOptions("tiny"))
    arrived = [[exchange(), replace(exchange(), decode_seconds=math.inf), exchange("b", "b")]]
    folding = Folding(
        steering,
        Metrics(settings.routes, pools_info("tiny", steering.drafters)),
        FleetMetrics(("a", "b")),
        recorder,
        lambda: arrived.pop() if arrived else [],
        TelemetryQueue(),
        lambda _: True,
    )
    folding.start()
    folding.stop(10.0)
    [record] = steering.state()["counts"]["records"]
    assert sorted(row[0].partition("@")[0] for row in record[-1]) == ["a", "b"]
    assert "an exchange with a cannot be learned from" in caplog.text
