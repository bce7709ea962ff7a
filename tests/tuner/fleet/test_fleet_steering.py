"""tuner.fleet.steering: one door for orders, whoever learns behind it."""

import time

import pytest

from policies.cycle_policy import CyclePolicy
from policies.types import KillSwitch, Mode, Pin
from tests.tuner.fleet.fleet_examples import SPECULATES, exchange
from tests.tuner.telemetry_examples import INFO
from tuner.fleet.control import for_sidecar
from tuner.fleet.pools.snapshot import FleetSnapshot
from tuner.fleet.steering import FleetSteering
from tuner.fleet.vllm.chooser import PluginSnapshot
from tuner.settings import RouteSettings, Settings


def steering_of(mode: Mode = Mode.AUTO) -> FleetSteering:
    settings = Settings(routes={"chat": RouteSettings(mode=mode)})
    return FleetSteering(for_sidecar(settings), "tiny", [SPECULATES])


def test_orders_go_on_when_a_plug_in_reports_and_its_drafters_are_those_that_a_pin_may_name() -> None:
    steering = steering_of()
    pin = Pin("chat", "*", "ngram", 4, "trial", "me", time.time(), time.time() + 60.0)
    kill = KillSwitch("chat", "incident", "me", time.time(), None)
    steering.set_pin(pin)
    steering.set_kill(kill)
    assert isinstance(steering.chosen_by(), FleetSnapshot)
    published: list[CyclePolicy] = []
    steering.set_plugin(INFO, 4, published.append)
    assert steering.drafters == INFO.drafters
    assert steering.snapshot.pins == (pin,)
    assert steering.snapshot.kill_switches == (kill,)
    assert published[-1].killed_routes == {"chat"}
    assert isinstance(steering.chosen_by(), PluginSnapshot)
    assert steering.clear_kill("chat") == kill
    assert published[-1].killed_routes == set()


def test_a_pin_is_refused_by_whoever_learns() -> None:
    steering = steering_of()
    unknown = Pin("chat", "*", "eagle", 4, "trial", "me", time.time(), time.time() + 60.0)
    with pytest.raises(ValueError, match="eagle"):
        steering.set_pin(unknown)
    steering.set_plugin(INFO, 4, lambda policy: None)
    with pytest.raises(ValueError, match="eagle"):
        steering.set_pin(unknown)


def test_exchanges_are_counted_by_the_pools_until_cycles_are_reported() -> None:
    steering = steering_of()
    kill = KillSwitch("story", "publishes what is known", "me", time.time(), None)
    steering.fold(exchange())
    steering.set_kill(kill)
    assert sum(steering.snapshot.requests.values()) == 1
    steering.set_plugin(INFO, 4, lambda policy: None)
    steering.fold(exchange())
    steering.set_kill(kill)
    assert sum(steering.snapshot.requests.values()) == 0, "its requests are the plug-in's to report"
