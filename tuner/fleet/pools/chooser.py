"""Where each request goes, decided in the process of the data path: in memory, in microseconds, never an exception.

One ladder decides (`policies.ladder`), as in the embedded engine:

    kill switch > held to measure plain > pin > guardrail > client opt-out > learned > route default > engine default

Where what is learned decides, lanes are weighed (`weighing`). A request that an engine refuses or gets wrong under
speculation goes to the plain pool whatever else holds. In mode ``observe`` and ``advise`` nothing is steered but by
operators: the least loaded upstream serves, or the session's own. Everything is read from one `FleetSnapshot`.
"""

import itertools
import logging
import random
import secrets
from dataclasses import dataclass

from policies.decision_id import DecisionFields, encode
from policies.ladder import ANY, Resolution, Situation, kill_for, pin_for, resolve
from policies.language_detection import LanguageDetector
from policies.types import OTHER_ROUTE, PLAIN, Context, Decision, Mode, Reason
from tuner.fleet.pools.candidates import bare_lanes, lanes_for, of_arm, sets_length, without_trouble
from tuner.fleet.pools.courses import Courses, Exploring
from tuner.fleet.pools.passing import decision_headers, least_loaded, least_loaded_lane
from tuner.fleet.pools.reading import BYTES_A_TOKEN, language_of, model_of, most_tokens, route_of, usage_edit
from tuner.fleet.pools.sessions import Home, Sessions, fraction
from tuner.fleet.pools.snapshot import FleetSnapshot, LaneSpeed
from tuner.fleet.pools.weighing import chance_of_plain, offers_of, weigh
from tuner.fleet.types import Asked, Choice
from tuner.guardrails import guard_of

log = logging.getLogger(__name__)

_WEIGHED = "*"
"""Stands in the ladder for whatever weighing will find."""
_UNTOUCHED = (Mode.OBSERVE, Mode.ADVISE)
_LEARNS_MORE = (Mode.ADVISE, Mode.CANARY, Mode.AUTO)
_HOLD, _CANARY = 0, 1


@dataclass(frozen=True, slots=True)
class _Pick:
    lane: LaneSpeed
    reason: Reason
    forced: bool
    propensity: float


class PoolChooser:
    """A `tuner.fleet.types.Chooser`; for one thread."""

    def __init__(self, detector: LanguageDetector | None = None) -> None:
        """Until the first `swap` every request is passed on as it comes. The detector may be shared."""
        self.faults = 0
        """Choices that failed inside: the request was passed on as it came."""
        self._snapshot: FleetSnapshot | None = None
        self._detector = detector or LanguageDetector()
        self._sessions = Sessions()
        self._courses = Courses()
        self._exploring: dict[str, Exploring] = {}
        """By route."""
        self._random = random.Random()
        self._run = secrets.token_hex(4)
        self._serial = itertools.count(1)
        self._first_key = secrets.randbits(40) << 22

    def swap(self, snapshot: FleetSnapshot) -> None:
        """Choose by `snapshot` from now on."""
        if self._snapshot is None or self._snapshot.seed != snapshot.seed:
            self._random = random.Random(snapshot.seed)
        self._snapshot = snapshot

    def reads(self, path: str, route: str | None) -> bool:
        """See `Chooser.reads`. In ``observe`` a request waits for nothing, but where an operator's order steers it."""
        snapshot = self._snapshot
        if snapshot is None:
            return False
        name = route if route is not None and route in snapshot.routes else OTHER_ROUTE
        ordered = any(kill.route in (name, ANY) for kill in snapshot.kill_switches)
        return (
            ordered or any(pin.route == name for pin in snapshot.pins) or snapshot.modes.mode(name) is not Mode.OBSERVE
        )

    def choose(self, asked: Asked) -> Choice:
        """See `Chooser.choose`."""
        try:
            if self._snapshot is not None:
                return self._choose(self._snapshot, asked)
        except Exception:  # a fault of the tuner must not fail a request; it is counted and logged
            self.faults += 1
            log.exception("a choice failed, the request is passed on as it is; path %s", asked.path)
        return Choice(asked.sent_to or min(asked.in_flight, key=lambda name: asked.in_flight[name]))

    def _choose(self, snapshot: FleetSnapshot, asked: Asked) -> Choice:
        home = self._sessions.home(asked.session)
        bare = bare_lanes(snapshot, asked)
        if asked.sent_to is not None:
            bare = [one for one in bare if one.lane.upstream == asked.sent_to]
        if asked.body is None or not bare:
            return Choice(asked.sent_to or least_loaded([*asked.in_flight], asked, home))
        serial = next(self._serial)
        context = Context(model_of(asked, snapshot), route_of(asked, snapshot), language_of(asked, self._detector))
        mode = snapshot.modes.mode(context.route)
        if asked.sent_to is not None:
            pick = _Pick(bare[0], Reason.ROUTE_DEFAULT, False, 1.0)
        else:
            pick = self._pick(snapshot, asked, context, mode, bare, home)
        lane = pick.lane.lane
        self._sessions.note(asked.session, Home(lane.upstream, asked.body_bytes / BYTES_A_TOKEN))
        decision = self._decision(snapshot, context, pick, serial)
        edits = [*lane.fields]
        if lane.model is not None:
            edits.append(("model", lane.model))
        # In observe both directions stay byte for byte: nothing is stamped, asked for or told.
        usage = usage_edit(asked.body) if snapshot.add_usage and mode in _LEARNS_MORE else None
        return Choice(
            upstream=lane.upstream,
            lane="" if sets_length(snapshot, lane.upstream, asked.body) else lane.name,
            decision=decision,
            edits=tuple(edits) if usage is None else (*edits, usage),
            strip_usage=usage is not None,
            answer_headers=() if mode is Mode.OBSERVE else decision_headers(decision, lane.name, asked.debug),
            request_key=self._first_key + serial,
        )

    def _pick(
        self,
        snapshot: FleetSnapshot,
        asked: Asked,
        context: Context,
        mode: Mode,
        bare: list[LaneSpeed],
        home: Home | None,
    ) -> _Pick:
        lanes = bare if mode in _UNTOUCHED else lanes_for(snapshot, asked, bare)
        steered = mode in (Mode.AUTO, Mode.CANARY)
        serving = lanes
        unserved = False
        if steered and asked.body is not None:
            serving = without_trouble(lanes, asked.body)
            unserved = len(serving) < len(lanes)
        key = context.route, context.language
        share = snapshot.plain_shares.get(key, snapshot.plain_share)
        share = share if steered and _differ(snapshot) and any(one.lane.plain for one in serving) else 0.0
        held = self._draw(asked.session, snapshot.seed, _HOLD) < share
        canary = (
            mode is not Mode.CANARY or self._draw(asked.session, snapshot.seed, _CANARY) < snapshot.modes.canary_share
        )
        resolution = self._resolve(snapshot, asked, context, mode, held, canary)
        if resolution.drafter == _WEIGHED or resolution.reason is Reason.SWITCHBACK:
            return self._weighed(snapshot, asked, context, serving or lanes, home, resolution, share, unserved)
        if mode in _UNTOUCHED and resolution.reason in (Reason.ROUTE_DEFAULT, Reason.ENGINE_DEFAULT):
            return _Pick(least_loaded_lane(bare, asked, home), Reason.ROUTE_DEFAULT, False, 1.0)
        chance = 1.0
        if resolution.reason in (Reason.ROUTE_DEFAULT, Reason.ENGINE_DEFAULT) and mode is Mode.CANARY:
            chance = (1.0 - share) * (1.0 - snapshot.modes.canary_share)
        if resolution.reason in (Reason.ROUTE_DEFAULT, Reason.ENGINE_DEFAULT) and mode is not Mode.OFF:
            default = snapshot.modes.route_defaults.get(context.route)
            if default is None:  # as it would be without us
                return _Pick(least_loaded_lane(serving or lanes, asked, home), resolution.reason, False, chance)
        wanted = of_arm(serving, resolution.drafter, resolution.cap)
        reason, forced = resolution.reason, resolution.forced
        if not wanted:  # nobody who can take it does what was asked for: plain does, and else whoever there is
            wanted = of_arm(serving, PLAIN, 0) or serving or lanes
            forced = False
            if unserved and resolution.cap:
                reason = Reason.FEATURE_UNSUPPORTED
        return _Pick(self._cheapest(snapshot, asked, context, wanted, home), reason, forced, chance)

    def _resolve(
        self, snapshot: FleetSnapshot, asked: Asked, context: Context, mode: Mode, held: bool, canary: bool
    ) -> Resolution:
        guard = guard_of(snapshot.guards, context.route) if mode not in _UNTOUCHED else None
        return resolve(
            Situation(
                killed=kill_for(snapshot.kill_switches, context.route, asked.arrived_at) is not None,
                switchback=held,
                pin=pin_for(snapshot.pins, context.route, context.language, asked.arrived_at),
                guardrail=guard.reason if guard is not None and self._random.random() >= guard.tried_share else None,
                opt_out=mode not in _UNTOUCHED and (asked.mode or "").strip().lower() == Mode.OFF,
                mode=mode,
                canary=canary,
                learned_cap=1,
                explored_drafter=_WEIGHED,
                route_default=snapshot.modes.route_defaults.get(context.route),
                engine_default=snapshot.modes.engine_default,
            )
        )

    def _weighed(
        self,
        snapshot: FleetSnapshot,
        asked: Asked,
        context: Context,
        lanes: list[LaneSpeed],
        home: Home | None,
        resolution: Resolution,
        share: float,
        unserved: bool,
    ) -> _Pick:
        """By what is learned, or plain for the baseline; either way with the chance that its kind had."""
        key = context.model, context.route, context.language
        trials = snapshot.trials.get(context.route, snapshot.new_trials)
        offers = offers_of(
            lanes, snapshot.speeds.get(key), asked.in_flight, self._tokens(snapshot, asked, context), home
        )
        course = self._courses.of(key, self._random)
        found = weigh(offers, course.kind, snapshot, trials)
        if unserved and all(one.lane.plain for one in lanes):
            return _Pick(found.best.lane, Reason.FEATURE_UNSUPPORTED, False, 1.0)
        if resolution.reason is Reason.SWITCHBACK:
            plain = min((offer for offer in offers if offer.lane.lane.plain), key=lambda offer: offer.seconds)
            return _Pick(plain.lane, Reason.SWITCHBACK, False, share + (1.0 - share) * chance_of_plain(found))
        canary = snapshot.modes.mode(context.route) is Mode.CANARY
        chance = (1.0 - share) * (snapshot.modes.canary_share if canary else 1.0)
        exploring = self._exploring.setdefault(context.route, Exploring())
        exploring.end(trials.ended, asked.arrived_at)
        share_tried = found.tried_share if exploring.trying < trials.at_once else 0.0
        if course.tries(share_tried):
            exploring.begin(asked.arrived_at, trying=True)
            tried = self._random.choice(found.tried)
            return _Pick(tried.lane, Reason.EXPLORE, False, chance * share_tried / len(found.tried))
        course.kind = found.best.lane.kind
        chance = chance * (1.0 - share_tried) + share * found.best.lane.lane.plain
        reason = Reason.CANARY if canary else Reason.LEARNED
        if not _differ(snapshot):
            reason = Reason.ENGINE_DEFAULT
        elif (context.route, context.language) not in snapshot.learned:
            exploring.begin(asked.arrived_at, trying=False)
            reason = Reason.EXPLORE
        return _Pick(found.best.lane, reason, False, chance)

    def _cheapest(
        self, snapshot: FleetSnapshot, asked: Asked, context: Context, lanes: list[LaneSpeed], home: Home | None
    ) -> LaneSpeed:
        speed = snapshot.speeds.get((context.model, context.route, context.language))
        offers = offers_of(lanes, speed, asked.in_flight, self._tokens(snapshot, asked, context), home)
        return min(offers, key=lambda offer: offer.seconds).lane

    def _tokens(self, snapshot: FleetSnapshot, asked: Asked, context: Context) -> float:
        speed = snapshot.speeds.get((context.model, context.route, context.language))
        expected = speed.output_tokens if speed is not None else snapshot.output_tokens
        most = most_tokens(asked.body) if asked.body is not None else None
        return expected if most is None else min(expected, most)

    def _draw(self, session: int | None, seed: int, salt: int) -> float:
        """In [0, 1); the same for every request of a session, so that its prefix stays where it is."""
        if session is None:
            return self._random.random()
        return fraction(session ^ seed, salt)

    def _decision(self, snapshot: FleetSnapshot, context: Context, pick: _Pick, serial: int) -> Decision:
        lane = pick.lane.lane
        version = snapshot.policy_versions.get((context.route, context.language), 0)
        drafter, cap = (PLAIN, 0) if lane.plain else (lane.drafter, lane.block_length)
        fields = DecisionFields(
            version, drafter, cap, pick.reason, context.route, context.language, f"{self._run}-{serial:x}"
        )
        return Decision(
            decision_id=encode(fields),
            context=context,
            drafter=drafter,
            cap=cap,
            forced=pick.forced,
            reason=pick.reason,
            policy_version=version,
            propensity=pick.propensity,
        )


def _differ(snapshot: FleetSnapshot) -> bool:
    """Whether there are lanes of several kinds: else there is nothing to choose."""
    return any(one.kind != snapshot.lanes[0].kind for one in snapshot.lanes)
