"""Where requests go, and what vLLM's plug-in is told of each, where upstreams have the plug-in.

The decision is the embedded engine's own (`tuner.decider`): drafter and cap by the ladder; the block length of each
cycle is the plug-in's to find. A request goes to the least loaded of the upstreams with the plug-in, or to its
session's own. What an engine refuses or gets wrong while it drafts goes to the plain pool, or stays and is not drafted
for.
"""

import logging
import secrets
from dataclasses import dataclass, replace

from policies.cycle_policy import INITIAL_CYCLE_POLICY
from policies.decision_id import DecisionFields, encode
from policies.features import request_features
from policies.language_detection import LanguageDetector
from policies.types import OTHER_ROUTE, PLAIN, Context, Decision, Mode, Reason, RequestFeatures
from tuner.decider import Decider
from tuner.fleet.features import needs_plain
from tuner.fleet.pools.candidates import bare_lanes
from tuner.fleet.pools.passing import decision_headers, least_loaded_lane
from tuner.fleet.pools.reading import (
    BYTES_A_TOKEN,
    language_of,
    model_of,
    most_tokens,
    route_of,
    temperature_of,
    usage_edit,
)
from tuner.fleet.pools.sessions import Home, Sessions
from tuner.fleet.pools.snapshot import FleetSnapshot, LaneSpeed
from tuner.fleet.types import Asked, Choice
from tuner.fleet.vllm.plugin.messages import WORD_ARGUMENT, word_argument
from tuner.snapshot import PolicySnapshot, Throughput

log = logging.getLogger(__name__)

ARGUMENTS = "vllm_xargs"
"""Member of a body of which vLLM hands the members on to its scheduler."""
_STEERED = (Mode.AUTO, Mode.CANARY)


@dataclass(frozen=True, slots=True)
class PluginSnapshot:
    """What `PluginChooser` reads, swapped whole."""

    fleet: FleetSnapshot
    """Lanes, routes and modes; what it knows of speeds is not read."""
    policies: PolicySnapshot
    """Of the controller, from `for_decisions`."""
    upstreams: frozenset[str]
    """Those with the plug-in."""
    cap: int
    """Largest block length of what is learned."""


def for_decisions(snapshot: PolicySnapshot) -> PolicySnapshot:
    """`snapshot` without what no decision reads, since it crosses to another process."""
    hold = replace(INITIAL_CYCLE_POLICY, hold=snapshot.cycle_policy.hold)
    return replace(snapshot, cycle_policy=hold, throughput=Throughput(), baseline=(), requests={}, curves={})


class PluginChooser:
    """A `tuner.fleet.types.Chooser`; for one thread."""

    def __init__(self, snapshot: PluginSnapshot, detector: LanguageDetector) -> None:
        self.snapshot = snapshot
        """What is read; replace it whole."""
        self.faults = 0
        """Choices that failed inside: the request was passed on as it came."""
        self._detector = detector
        self._decider = Decider(snapshot.fleet.modes, snapshot.cap, snapshot.fleet.seed)
        self._sessions = Sessions()
        self._run = secrets.token_hex(4)
        self._last_key = secrets.randbits(40) << 22

    def reads(self, path: str, route: str | None) -> bool:
        """See `Chooser.reads`."""
        fleet = self.snapshot.fleet
        return (
            fleet.modes.mode(route if route in fleet.routes and route is not None else OTHER_ROUTE) is not Mode.OBSERVE
        )

    def choose(self, asked: Asked) -> Choice:
        """See `Chooser.choose`."""
        try:
            return self._choose(self.snapshot, asked)
        except Exception:
            self.faults += 1
            log.exception("a choice failed, the request is passed on as it is; path %s", asked.path)
            return Choice(asked.sent_to or min(asked.in_flight, key=lambda name: asked.in_flight[name]))

    def _choose(self, snapshot: PluginSnapshot, asked: Asked) -> Choice:
        fleet = snapshot.fleet
        bare = bare_lanes(fleet, asked)
        if asked.body is None or not bare or asked.sent_to is not None:
            return Choice(asked.sent_to or min(asked.in_flight, key=lambda name: asked.in_flight[name]))
        context = Context(model_of(asked, fleet), route_of(asked, fleet), language_of(asked, self._detector))
        mode = fleet.modes.mode(context.route)
        steered = [one for one in bare if one.lane.upstream in snapshot.upstreams]
        home = self._sessions.home(asked.session)
        if mode not in _STEERED and mode is not Mode.OFF:
            lane = least_loaded_lane(bare, asked, home)
            return self._sent(asked, lane, None, mode)
        lane = least_loaded_lane(steered or bare, asked, home)
        features = _features(asked)
        load = asked.in_flight[lane.lane.upstream] + 1
        decision = self._decider.decide(
            snapshot.policies, context, (context.route, context.language), features, load, asked.arrived_at
        )
        trouble = needs_plain(lane.engine, lane.version, asked.body) if lane.launched_speculating else None
        if trouble is not None:
            plain = [one for one in bare if not one.launched_speculating and one.lane.plain]
            if plain:
                lane = least_loaded_lane(plain, asked, home)
            if plain or trouble.plugin:
                decision = _without_drafts(decision)
        return self._sent(asked, lane, decision, mode)

    def _sent(self, asked: Asked, lane: LaneSpeed, decision: Decision | None, mode: Mode) -> Choice:
        assert asked.body is not None
        upstream = lane.lane.upstream
        self._sessions.note(asked.session, Home(upstream, asked.body_bytes / BYTES_A_TOKEN))
        self._last_key += 1
        edits: list[tuple[str, object]] = []
        if decision is not None and upstream in self.snapshot.upstreams:
            own = asked.body.get(ARGUMENTS)
            given = own if isinstance(own, dict) else {}
            edits.append((ARGUMENTS, {**given, WORD_ARGUMENT: word_argument(self._last_key, decision)}))
        usage = usage_edit(asked.body) if self.snapshot.fleet.add_usage and mode is not Mode.OBSERVE else None
        return Choice(
            upstream=upstream,
            lane=lane.lane.name,
            decision=decision,
            edits=tuple(edits) if usage is None else (*edits, usage),
            strip_usage=usage is not None,
            answer_headers=() if decision is None else decision_headers(decision, lane.lane.name, asked.debug),
            request_key=self._last_key,
        )


def _without_drafts(decision: Decision) -> Decision:
    """The same request, served plain since its engine gets something wrong otherwise."""
    if decision.cap == 0:
        return decision
    reason = Reason.FEATURE_UNSUPPORTED
    context = decision.context
    serial = decision.decision_id.rpartition(".")[2]
    fields = DecisionFields(decision.policy_version, PLAIN, 0, reason, context.route, context.language, serial)
    return replace(decision, decision_id=encode(fields), drafter=PLAIN, cap=0, forced=False, reason=reason, shadows=())


def _features(asked: Asked) -> RequestFeatures:
    assert asked.body is not None
    body = asked.body
    opt_out = (asked.mode or "").strip().lower() == Mode.OFF
    return request_features(
        temperature=temperature_of(body),
        prompt_tokens=round(asked.body_bytes / BYTES_A_TOKEN),
        max_tokens=round(most_tokens(body) or 0),
        opt_out=opt_out,
        structured=body.get("response_format") is not None or body.get("structured_outputs") is not None,
    )
