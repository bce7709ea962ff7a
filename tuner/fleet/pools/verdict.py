"""The policy of a context in a fleet, from what its lanes were seen to take."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from policies.types import (
    PLAIN_ARM,
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
from tuner.fleet.types import Lane
from tuner.wording import counted

LEARNING_REQUESTS = 20
"""Of a context before its first verdict."""
NO_PLAIN_NOTE = "there is no plain pool, so what speculation gains is unknown: serve one upstream without a drafter"


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
    default: Arm
    pin: Pin | None
    kill: KillSwitch | None
    margin: float


def judge(context: Context, found: Findings, previous: Policy | None, learned: Arm | None) -> Policy:
    """The policy that `found` calls for; `learned` is the arm last learned here, which orders may have covered.

    The version is that of `previous`, or one more if arm, state or reason differ; `created_at` is then for the caller.
    """
    arm, state, reason, note = _verdict(found, previous, learned)
    advised = (
        arm if reason in (Reason.LEARNED, Reason.EXPLORE) else arm_of(found.menu, learned, found.load, found.margin)
    )
    basis = Evidence(
        cycles=0,
        requests=found.served,
        survival=(),
        speedup=found.gain,
        predicted_speedup=predicted(found.menu, advised) if _is_known(found) else (),
        note=note,
    )
    if previous is None:
        return Policy(context, 1, arm, state, reason, basis, 0.0)
    if (previous.arm, previous.state, previous.reason) == (arm, state, reason):
        return replace(previous, evidence=basis)
    return Policy(context, previous.version + 1, arm, state, reason, basis, 0.0)


def _verdict(found: Findings, previous: Policy | None, learned: Arm | None) -> tuple[Arm, PolicyState, Reason, str]:
    if found.kill is not None:
        return PLAIN_ARM, PolicyState.KILLED, Reason.KILL_SWITCH, f"{found.kill.actor} killed this: {found.kill.reason}"
    if found.pin is not None:
        note = f"{found.pin.actor} pinned this: {found.pin.reason}; {_measured(found)}."
        return Arm.fixed(found.pin.drafter, found.pin.block_length), PolicyState.PINNED, Reason.PINNED, note
    arm = arm_of(found.menu, learned, found.load, found.margin)
    if found.mode not in (Mode.AUTO, Mode.CANARY):
        default = PLAIN_ARM if found.mode is Mode.OFF else found.default
        advice = f"; mode auto would serve {_lanes_in_words(arm)}" if _is_known(found) else ""
        steered = "plain serves" if found.mode is Mode.OFF else "nothing is steered"
        note = f"The route's mode is {found.mode.value}, so {steered}{advice}{_others(found, arm)}; {_measured(found)}."
        return default, PolicyState.ON if default.cap else PolicyState.OFF, Reason.ROUTE_DEFAULT, note
    if len(found.menu.seconds) < 2:
        note = f"There is one kind of lane only, so there is nothing to choose; {_measured(found)}."
        return PLAIN_ARM, PolicyState.OFF, Reason.ENGINE_DEFAULT, note
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


def _is_known(found: Findings) -> bool:
    return found.requests >= LEARNING_REQUESTS and len(found.menu.seconds) > 1


def _lanes_in_words(arm: Arm) -> str:
    if not arm.cap:
        return "plain lanes at every load"
    steps = [
        f"{step.drafter} at {step.block_length} at load {step.loads}"
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
    return f"{kind.drafter} at {kind.block_length}"


def _measured(found: Findings) -> str:
    if PLAIN_KIND not in found.menu.seconds:
        return NO_PLAIN_NOTE
    resident = resident_note(found.lanes)
    return measured(found.gain) + (f"; {resident}" if resident else "")


def resident_note(lanes: Collection[Lane]) -> str:
    """What to know of a baseline that is measured on servers which keep their drafter; empty if any does not."""
    plain = [lane for lane in lanes if lane.plain]
    return RESIDENT_NOTE if plain and all(is_resident_plain(lane) for lane in plain) else ""
