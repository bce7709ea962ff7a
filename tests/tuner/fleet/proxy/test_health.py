"""tuner.fleet.proxy.health: when an upstream gets no requests, and how it gets them back."""

from tuner.fleet.proxy.health import Health
from tuner.fleet.proxy.options import ProxyOptions

OPTIONS = ProxyOptions(failures_to_unhealthy=3, retry_seconds=1.0, max_retry_seconds=4.0)


def down(at: float = 0.0) -> Health:
    health = Health(OPTIONS)
    health.failed("It is gone.", at, at_once=True)
    return health


def test_three_failures_in_a_row_make_it_unhealthy() -> None:
    health = Health(OPTIONS)
    for _ in range(2):
        health.failed("No.", 0.0)
    health.succeeded()
    for _ in range(2):
        health.failed("No.", 0.0)
        assert health.healthy
    health.said_nothing()
    health.failed("No, again.", 0.0)
    assert (health.healthy, health.takes) == (False, False)
    assert (health.failures, health.sentence) == (3, "No, again.")


def test_it_is_asked_for_its_health_after_a_pause_that_doubles_up_to_a_bound() -> None:
    health, now = down(), 0.0
    for pause in (1.0, 2.0, 4.0, 4.0):
        assert not health.asks(now + pause - 0.01)
        now += pause
        assert health.asks(now)
        assert not health.asks(now)  # it is being asked
        health.asked(False, "Still gone.", now)
        assert health.sentence == "Still gone."


def test_when_it_says_that_it_is_well_one_request_tries() -> None:
    health = down()
    assert health.asks(1.0)
    health.asked(True, "", 1.0)
    assert (health.healthy, health.takes) == (False, True)
    health.began()
    assert (health.healthy, health.takes) == (False, False)
    health.said_nothing()  # the client left: another one tries
    assert (health.healthy, health.takes) == (False, True)
    health.began()
    health.succeeded()
    assert (health.healthy, health.failures, health.sentence) == (True, 0, "")


def test_a_trial_that_fails_begins_a_longer_pause() -> None:
    health = down()
    assert health.asks(1.0)
    health.asked(True, "", 1.0)
    health.began()
    health.failed("No.", 1.5)
    assert not health.takes
    assert not health.asks(3.4)
    assert health.asks(3.5)


def test_a_model_that_is_loading_is_no_failure_and_is_asked_for_soon() -> None:
    health = down()
    for at in (1.0, 2.0, 3.0):
        assert health.asks(at)
        health.asked(True, "", at)
        health.began()
        health.not_ready("It is loading.", at)
        assert health.failures == 1
        assert not health.takes


def test_an_answer_about_its_health_that_comes_too_late_changes_nothing() -> None:
    health = down()
    assert health.asks(1.0)
    health.succeeded()
    health.asked(False, "Gone.", 1.1)
    assert health.healthy
