"""The one ladder that says which arm a request gets, and why.

    kill switch > switchback > pin > guardrail > client opt-out > freeze > learned > route default > engine default

The first rung that applies decides. Learned policies apply on routes in mode ``auto``, and in mode ``canary`` to the
share of requests that were drawn for it; on the other routes nothing of Paceline's own is used, and what serves is
what the configuration says (in mode ``off``: plain).

A kill switch and a switchback window are also in force in every cycle, through `CyclePolicy`, whatever the decision
says. A request outlives a window: if it were decided as plain because it came within one, it would stay plain long
after. So a `DecisionSource` passes ``switchback=False`` and leaves windows to the cycles; `explain` passes the truth.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from policies.types import PLAIN, PLAIN_ARM, Arm, KillSwitch, Mode, Pin, Policy, PolicyState, Reason

ANY = "*"
"""Every route in a kill switch, every language in a pin."""


@dataclass(frozen=True, slots=True)
class Situation:
    """All that a resolution depends on."""

    killed: bool = False
    switchback: bool = False
    pin: Pin | None = None
    """The pin in force for the context, from `pin_for`."""
    guardrail: Reason | None = None
    """The guardrail that tripped on this route."""
    opt_out: bool = False
    frozen: Policy | None = None
    """The policy in force when an operator froze the context."""
    mode: Mode = Mode.AUTO
    canary: bool = False
    """This request was drawn for the canary share of its route."""
    learned: Policy | None = None
    learned_cap: int = 0
    """Largest block length that a cycle may use for a learned policy. It is not the schedule's K: each cycle's
    allocation weighs the proposals that it sees, and what it leaves unverified is still scored as a shadow. So a
    context that is off goes on learning, and is on again when its acceptance comes back."""
    load: int = 1
    """Sequences that run together now: a learned arm may name another drafter at other loads."""
    short_drafter: str | None = None
    """The drafter instead of the learned one, because the output is too short for that one to catch up with the prompt;
    `PLAIN` for none."""
    tried_drafter: str | None = None
    """The drafter that was drawn for this request among those that may be the best here; None where none was."""
    explored_drafter: str | None = None
    """The drafter to try where nothing is learned yet."""
    route_default: Arm | None = None
    engine_default: Arm = PLAIN_ARM


@dataclass(frozen=True, slots=True)
class Resolution:
    """What was decided; a `Decision` adds the request's id and context."""

    drafter: str
    cap: int
    forced: bool
    reason: Reason
    policy_version: int


def resolve(situation: Situation) -> Resolution:
    """The arm, by the first rung of the ladder that applies."""
    s = situation
    version = s.learned.version if s.learned is not None else 0
    if s.killed:
        return _plain(Reason.KILL_SWITCH, version)
    if s.switchback and not (s.pin is not None and s.pin.exempt_from_switchback):
        return _plain(Reason.SWITCHBACK, version)
    if s.pin is not None:
        return _fixed(Arm.fixed(s.pin.drafter, s.pin.block_length), Reason.PINNED, version)
    if s.guardrail is not None:
        return _plain(s.guardrail, version)
    if s.opt_out:
        return _plain(Reason.CLIENT_OPT_OUT, version)
    if s.frozen is not None:
        return Resolution(s.frozen.arm.drafter_at(s.load), s.frozen.arm.cap, False, Reason.FREEZE, s.frozen.version)
    if s.mode is Mode.OFF:
        return _plain(Reason.ROUTE_DEFAULT, version)
    if s.mode is Mode.AUTO or (s.mode is Mode.CANARY and s.canary):
        if s.short_drafter is not None:
            return _weighed(s.short_drafter, s.learned_cap, Reason.SHORT_OUTPUT, version)
        if s.learned is not None and s.learned.state in (PolicyState.ON, PolicyState.OFF):
            drafter = s.learned.arm.drafter_at(s.load)
            if s.tried_drafter is None or s.tried_drafter == drafter:
                reason = Reason.CANARY if s.mode is Mode.CANARY else Reason.LEARNED
                return _weighed(drafter, s.learned_cap, reason, version)
        tried = s.tried_drafter or s.explored_drafter
        if tried is not None:
            return _weighed(tried, s.learned_cap, Reason.EXPLORE, version)
    if s.route_default is not None:
        return _fixed(s.route_default, Reason.ROUTE_DEFAULT, version)
    # A mode that keeps learned policies out is the route's own setting, so it is the reason given.
    reason = Reason.ENGINE_DEFAULT if s.mode in (Mode.AUTO, Mode.CANARY) else Reason.ROUTE_DEFAULT
    return _fixed(s.engine_default, reason, version)


def pin_for(pins: Iterable[Pin], route: str, language: str, now: float) -> Pin | None:
    """The pin in force at `now` (Unix seconds): the language's own before the route's, the newest before older ones."""
    found: Pin | None = None
    for pin in pins:
        if pin.route != route or pin.language not in (language, ANY) or pin.expires_at <= now:
            continue
        if found is None or _rank(pin) > _rank(found):
            found = pin
    return found


def kill_for(kill_switches: Iterable[KillSwitch], route: str, now: float) -> KillSwitch | None:
    """The kill switch in force at `now` for `route`; the one for everything before the route's own."""
    found: KillSwitch | None = None
    for kill in kill_switches:
        in_force = kill.expires_at is None or kill.expires_at > now
        if in_force and kill.route in (route, ANY) and (found is None or kill.route == ANY):
            found = kill
    return found


def _rank(pin: Pin) -> tuple[bool, float]:
    return pin.language != ANY, pin.created_at


def _plain(reason: Reason, version: int) -> Resolution:
    return Resolution(PLAIN, 0, False, reason, version)


def _fixed(arm: Arm, reason: Reason, version: int) -> Resolution:
    """An arm that somebody chose: used as it stands."""
    if arm.cap == 0 or arm.drafter == PLAIN:
        return _plain(reason, version)
    return Resolution(arm.drafter, arm.cap, True, reason, version)


def _weighed(drafter: str, cap: int, reason: Reason, version: int) -> Resolution:
    """An arm that each cycle's allocation weighs."""
    if drafter == PLAIN or cap == 0:
        return _plain(reason, version)
    return Resolution(drafter, cap, False, reason, version)
