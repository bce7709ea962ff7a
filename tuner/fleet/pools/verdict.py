"""The policy of a context in a fleet, from what its lanes were seen to take."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from policies.types import (
    PLAIN,
    PLAIN_ARM,
    UNKNOWN_LENGTH,
    Arm,
    Context,
    Evidence,
    Interval,
    KillSwitch,
    Mode,
    Pin,
    Policy,
    PolicyState,
    Reason,
)
from tuner.evidence import measured
from tuner.fleet.pools.lanes import RESIDENT_NOTE, is_resident_plain
from tuner.fleet.pools.rows import PLAIN_KIND, Kind
from tuner.fleet.pools.schedule import Menu, arm_of, predicted
from tuner.fleet.types import BY_LOAD, Lane
from tuner.wording import counted

LEARNING_REQUESTS = 20
"""Of a context before its first verdict."""
NO_PLAIN_NOTE = "there is no plain pool, so what speculation gains is unknown: serve one upstream without a drafter"

_UNMET = (
    "no server here is known to decode plain, so requests are passed on and may be drafted for all the same: launch "
    "one without a drafter, say with fleet.upstreams.<NAME>.drafter none that one has none, or give vLLM the plug-in"
)


@dataclass(frozen=True, slots=True)
class Findings:
    """What is known of one context at one moment."""

    menu: Menu
    requests: float
    """Of which it is made, aged ones in part."""
    served: int
    """Requests since the start."""
    load: int
    gain: Interval | None
    """As it is served now: learned, pinned or by default."""
    lanes: tuple[Lane, ...]
    mode: Mode
    pin: Pin | None
    kill: KillSwitch | None
    margin: float


def judge(context: Context, found: Findings, previous: Policy | None, learned: Arm | None) -> Policy:
    """The policy that `found` calls for; `learned` is the arm last learned here, which orders may have covered.

    The version is that of `previous`, or one more if arm, state or reason differ; `created_at` is then for the caller.
    """
    arm, state, reason, note = _verdict(found, previous, learned)
    foretold = reason in (Reason.LEARNED, Reason.EXPLORE) or (reason is Reason.PINNED and arm.cap > 0)
    basis = Evidence(
        cycles=0,
        requests=found.served,
        survival=(),
        speedup=found.gain,
        predicted_speedup=predicted(found.menu, arm) if foretold and _is_known(found) else (),
        note=note,
    )
    if previous is None:
        return Policy(context, 1, arm, state, reason, basis, 0.0)
    if (previous.arm, previous.state, previous.reason) == (arm, state, reason):
        return replace(previous, evidence=basis)
    return Policy(context, previous.version + 1, arm, state, reason, basis, 0.0)


def _verdict(found: Findings, previous: Policy | None, learned: Arm | None) -> tuple[Arm, PolicyState, Reason, str]:
    if found.kill is not None:
        note = f"{found.kill.actor} killed this: {found.kill.reason}{_but(found)}"
        return _plain(found), PolicyState.KILLED, Reason.KILL_SWITCH, note
    if found.pin is not None:
        arm = Arm.fixed(found.pin.drafter, found.pin.block_length)
        but = _but(found) if found.pin.drafter == PLAIN else ""
        note = f"{found.pin.actor} pinned this: {found.pin.reason}{but}; {_measured(found)}."
        return arm if arm.cap else _plain(found), PolicyState.PINNED, Reason.PINNED, note
    arm = arm_of(found.menu, learned, found.load, found.margin)
    if found.mode not in (Mode.AUTO, Mode.CANARY):
        served = _plain(found) if found.mode is Mode.OFF else _as_it_comes(found)
        advice = f"; mode auto would serve {_lanes_in_words(arm)}" if _is_known(found) else ""
        steered = f"plain serves{_but(found)}" if found.mode is Mode.OFF else "nothing is steered"
        note = f"The route's mode is {found.mode.value}, so {steered}{advice}{_others(found, arm)}; {_measured(found)}."
        return served, PolicyState.ON if served.cap else PolicyState.OFF, Reason.ROUTE_DEFAULT, note
    if len(found.menu.seconds) < 2:
        note = f"There is one kind of lane only, so there is nothing to choose; {_measured(found)}."
        served = _as_it_comes(found)
        return served, PolicyState.ON if served.cap else PolicyState.OFF, Reason.ENGINE_DEFAULT, note
    judged = previous is not None and previous.reason is Reason.LEARNED
    if not judged and not _is_known(found):
        learning = previous is not None and previous.state is PolicyState.LEARNING
        arm = previous.arm if previous is not None and learning else arm
        note = (
            f"{counted(round(found.requests), 'request')} of the {LEARNING_REQUESTS} that a verdict needs; until then "
            "what similar traffic did decides, and lanes that are not known are tried by few."
        )
        return arm, PolicyState.LEARNING, Reason.EXPLORE, note
    note = f"{_lanes_in_words(arm).capitalize()}{_others(found, arm)}; {_measured(found)}."
    return arm, PolicyState.ON if arm.cap else PolicyState.OFF, Reason.LEARNED, note


def unmet(lanes: Collection[Lane]) -> str:
    """Why an order to decode plain cannot be met, with the remedy; empty where it can."""
    return "" if not lanes or any(lane.plain for lane in lanes) else _UNMET


def _but(found: Findings) -> str:
    return f"; but {why}" if (why := unmet(found.lanes)) else ""


def _plain(found: Findings) -> Arm:
    """What serves where plain is to serve: whatever there is, where no lane is plain."""
    return _as_it_comes(found) if unmet(found.lanes) else PLAIN_ARM


def _as_it_comes(found: Findings) -> Arm:
    """What serves where nobody chooses."""
    if len(found.menu.seconds) == 1:
        return Arm.fixed(*next(iter(found.menu.seconds)))
    return Arm.fixed(BY_LOAD, UNKNOWN_LENGTH)


def _is_known(found: Findings) -> bool:
    return found.requests >= LEARNING_REQUESTS and len(found.menu.seconds) > 1


def _lanes_in_words(arm: Arm) -> str:
    if not arm.cap:
        return "plain lanes at every load"
    steps = [
        f"{_kind_in_words(Kind(step.drafter, step.block_length))} at load {step.loads}"
        if step.block_length
        else f"plain at load {step.loads}"
        for step in arm.schedule
    ]
    return f"lanes of {', '.join(steps)}"


def _others(found: Findings, arm: Arm) -> str:
    """What each kind would do at the load that is served."""
    place = max((at for at, load in enumerate(found.menu.loads) if load <= found.load), default=0)
    told = []
    for kind in found.menu.seconds:
        gain = found.menu.gain(kind, place)
        if kind != PLAIN_KIND and gain is not None:
            told.append(f"{_kind_in_words(kind)} {gain:.2f}x plain")
    return f"; at load {found.menu.loads[place]} {', '.join(told)}" if told and _is_known(found) else ""


def _kind_in_words(kind: Kind) -> str:
    return kind.drafter if kind.block_length == UNKNOWN_LENGTH else f"{kind.drafter} at {kind.block_length}"


def _measured(found: Findings) -> str:
    if PLAIN_KIND not in found.menu.seconds:
        return NO_PLAIN_NOTE
    resident = resident_note(found.lanes)
    return measured(found.gain) + (f"; {resident}" if resident else "")


def resident_note(lanes: Collection[Lane]) -> str:
    """What to know of a baseline that is measured on servers which keep their drafter; empty if any does not."""
    plain = [lane for lane in lanes if lane.plain]
    return RESIDENT_NOTE if plain and all(is_resident_plain(lane) for lane in plain) else ""
