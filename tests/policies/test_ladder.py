"""The ladder, rung by rung and pair by pair, and decision ids."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.decision_id import DecisionFields, describe, encode
from policies.ladder import Situation, kill_for, pin_for, resolve
from policies.types import (
    PLAIN,
    PLAIN_ARM,
    Arm,
    Context,
    Evidence,
    KillSwitch,
    Mode,
    Pin,
    Policy,
    PolicyState,
    Reason,
)

PIN = Pin("chat", "en", "ngram", 5, "test", "ann", created_at=10.0, expires_at=100.0)
NOTHING = Evidence(0, 0, (), None, (), "")
LEARNED = Policy(
    Context("m", "chat", "en"), 7, Arm.fixed("ngram", 4), PolicyState.ON, Reason.LEARNED, NOTHING, created_at=0.0
)
FROZEN = replace(LEARNED, version=3, arm=Arm.fixed("ngram", 2))

RUNGS: list[tuple[dict[str, Any], tuple[str, int, bool, Reason]]] = [
    ({"killed": True}, (PLAIN, 0, False, Reason.KILL_SWITCH)),
    ({"switchback": True}, (PLAIN, 0, False, Reason.SWITCHBACK)),
    ({"pin": PIN}, ("ngram", 5, True, Reason.PINNED)),
    ({"guardrail": Reason.GUARDRAIL_TTFT}, (PLAIN, 0, False, Reason.GUARDRAIL_TTFT)),
    ({"opt_out": True}, (PLAIN, 0, False, Reason.CLIENT_OPT_OUT)),
    ({"frozen": FROZEN}, ("ngram", 2, False, Reason.FREEZE)),
    ({"learned": LEARNED, "learned_cap": 12}, ("ngram", 12, False, Reason.LEARNED)),
    ({"route_default": Arm.fixed("ngram", 3)}, ("ngram", 3, True, Reason.ROUTE_DEFAULT)),
    ({"engine_default": Arm.fixed("ngram", 1)}, ("ngram", 1, True, Reason.ENGINE_DEFAULT)),
]


def outcome(situation: Situation) -> tuple[str, int, bool, Reason]:
    got = resolve(situation)
    return got.drafter, got.cap, got.forced, got.reason


@pytest.mark.parametrize(("given_", "expected"), RUNGS, ids=[str(rung[1][3]) for rung in RUNGS])
def test_a_rung_alone_decides(given_: dict[str, Any], expected: tuple[str, int, bool, Reason]) -> None:
    assert outcome(Situation(**given_)) == expected


@pytest.mark.parametrize(
    ("higher", "lower"),
    list(itertools.combinations(RUNGS, 2)),
    ids=[f"{a[1][3]}>{b[1][3]}" for a, b in itertools.combinations(RUNGS, 2)],
)
def test_the_higher_of_two_rungs_decides(
    higher: tuple[dict[str, Any], tuple[str, int, bool, Reason]],
    lower: tuple[dict[str, Any], tuple[str, int, bool, Reason]],
) -> None:
    assert outcome(Situation(**{**lower[0], **higher[0]})) == higher[1]


def test_nothing_at_all_is_plain_by_the_engine_default() -> None:
    assert outcome(Situation()) == (PLAIN, 0, False, Reason.ENGINE_DEFAULT)


def test_a_pin_that_is_exempt_from_switchback_outranks_it() -> None:
    exempt = replace(PIN, exempt_from_switchback=True)
    assert outcome(Situation(switchback=True, pin=exempt))[3] is Reason.PINNED
    assert outcome(Situation(killed=True, switchback=True, pin=exempt))[3] is Reason.KILL_SWITCH


@pytest.mark.parametrize(("drafter", "block_length"), [(PLAIN, 0), ("ngram", 0)])
def test_a_pin_to_nothing_is_plain_and_pinned(drafter: str, block_length: int) -> None:
    pin = replace(PIN, drafter=drafter, block_length=block_length)
    assert outcome(Situation(pin=pin, learned=LEARNED, learned_cap=12)) == (PLAIN, 0, False, Reason.PINNED)


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.ADVISE])
def test_a_route_that_is_only_watched_serves_what_is_configured(mode: Mode) -> None:
    watched = Situation(mode=mode, learned=LEARNED, learned_cap=12)
    assert outcome(watched) == (PLAIN, 0, False, Reason.ROUTE_DEFAULT)
    assert outcome(replace(watched, route_default=Arm.fixed("ngram", 3))) == ("ngram", 3, True, Reason.ROUTE_DEFAULT)
    assert outcome(replace(watched, engine_default=Arm.fixed("ngram", 2)))[:3] == ("ngram", 2, True)


def test_a_route_that_is_off_is_plain_whatever_is_configured() -> None:
    off = Situation(mode=Mode.OFF, learned=LEARNED, learned_cap=12, route_default=Arm.fixed("ngram", 3))
    assert outcome(off) == (PLAIN, 0, False, Reason.ROUTE_DEFAULT)
    assert outcome(replace(off, pin=PIN))[3] is Reason.PINNED


def test_a_canary_route_gives_the_learned_policy_only_to_the_requests_drawn() -> None:
    canary = Situation(mode=Mode.CANARY, learned=LEARNED, learned_cap=12)
    assert outcome(replace(canary, canary=True)) == ("ngram", 12, False, Reason.CANARY)
    assert outcome(canary) == (PLAIN, 0, False, Reason.ENGINE_DEFAULT)


def test_a_context_without_a_verdict_explores_and_one_that_is_off_goes_on_being_drafted_for() -> None:
    learning = replace(LEARNED, state=PolicyState.LEARNING)
    assert outcome(Situation(explored_drafter="ngram", learned_cap=12)) == ("ngram", 12, False, Reason.EXPLORE)
    assert outcome(Situation(learned=learning, explored_drafter="ngram", learned_cap=12))[3] is Reason.EXPLORE
    off = replace(LEARNED, state=PolicyState.OFF, arm=Arm("ngram", ()))
    assert outcome(Situation(learned=off, learned_cap=12)) == ("ngram", 12, False, Reason.LEARNED)


def test_the_version_is_that_of_the_policy_in_force() -> None:
    assert resolve(Situation(learned=LEARNED, learned_cap=12)).policy_version == 7
    assert resolve(Situation(learned=LEARNED, killed=True)).policy_version == 7
    assert resolve(Situation(frozen=FROZEN, learned=LEARNED)).policy_version == 3
    assert resolve(Situation()).policy_version == 0


def test_a_pin_of_the_language_goes_before_the_routes_and_ends_at_its_expiry() -> None:
    everywhere = replace(PIN, language="*", block_length=9, created_at=50.0)
    pins = [everywhere, PIN, replace(PIN, route="story")]
    assert pin_for(pins, "chat", "en", now=20.0) == PIN
    assert pin_for(pins, "chat", "da", now=20.0) == everywhere
    assert pin_for(pins, "chat", "en", now=100.0) is None
    assert pin_for(pins, "code-edit", "en", now=20.0) is None


def test_a_kill_switch_covers_its_route_or_everything_until_it_expires() -> None:
    chat = KillSwitch("chat", "test", "ann", 0.0, expires_at=50.0)
    everything = KillSwitch("*", "test", "ann", 0.0, expires_at=None)
    assert kill_for([chat], "chat", now=49.0) == chat
    assert kill_for([chat], "chat", now=50.0) is None
    assert kill_for([chat], "story", now=0.0) is None
    assert kill_for([chat, everything], "chat", now=0.0) == everything
    assert kill_for([everything, chat], "chat", now=0.0) == everything


@given(
    st.builds(
        DecisionFields,
        policy_version=st.integers(0, 10**6),
        drafter=st.sampled_from((PLAIN, "ngram", "draft-model-8", "kopf ä~")),
        cap=st.integers(0, 16),
        reason=st.sampled_from(list(Reason)),
        route=st.text(),
        language=st.sampled_from(("en", "da", "code", "und", "zh-Hant", "*")),
        serial=st.from_regex(r"[0-9a-f]{1,8}-[0-9a-f]{1,6}", fullmatch=True),
    )
)
def test_an_id_says_what_was_decided_and_fits_a_url_and_a_header(fields: DecisionFields) -> None:
    decision_id = encode(fields)
    assert describe(decision_id) == fields
    assert decision_id.isascii()
    assert set(decision_id) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~")


@pytest.mark.parametrize(
    "text", ["", "fixed.ngram-4.PINNED.0", "v1.ngram-4.BECAUSE.chat.en.1", "v1.ngram.LEARNED.chat.en.1", "v1" * 999]
)
def test_what_is_no_id_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected v<version>"):
        describe(text)


def test_a_damaged_escape_does_not_break_the_description() -> None:
    assert describe("v1.ngram-4.LEARNED.~ff.en.1").route == "�"
    assert describe("v1.ngram-4.LEARNED.a~.en.1").route == "a~"


def test_a_plain_default_stays_plain() -> None:
    assert outcome(Situation(route_default=PLAIN_ARM)) == (PLAIN, 0, False, Reason.ROUTE_DEFAULT)
