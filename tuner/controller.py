"""The tuner's centre: folds telemetry, learns, and publishes what decisions and cycles read.

Who may call what: `fold_cycle`, `fold_request` and `tick` from the thread of the telemetry queue; pins, kill switches
and `state` from any thread; `decide` and `snapshot` from any thread, without waiting for anybody. Writers share a
lock. Readers read one attribute, a `PolicySnapshot` that is replaced and never edited.

The decision of a learned context names the drafter and the largest useful block length also when the context is OFF:
the allocation of each cycle is the gate. It knows the confidence of the proposal at hand, and proposals that it leaves
unverified are scored as shadows, so that an OFF context goes on learning and opens again when acceptance recovers.
The schedule of a policy says what that comes to, for people, pins and exports. Drafters that do not serve propose
beside some requests (`tuner.shadowing`), so that they go on being known.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from policies.cycle_policy import INITIAL_CYCLE_POLICY, Copier, CyclePolicy, Knobs, Outlook, Survival
from policies.ladder import ANY, kill_for, pin_for
from policies.quoting import clipped
from policies.stats import CycleStats, EngineInfo, RequestStats
from policies.types import (
    MAX_BLOCK_LENGTH,
    PLAIN,
    PLAIN_ARM,
    Arm,
    Context,
    Decision,
    Interval,
    KillSwitch,
    Mode,
    Pin,
    Policy,
    RequestFeatures,
)
from tuner.acceptance import Curve
from tuner.baseline import LEARNED, Baseline, Era
from tuner.decider import Decider, RouteModes
from tuner.guardrails import GuardrailOptions, Guardrails, GuardrailState
from tuner.guides import Guides
from tuner.known_contexts import Key, KnownContexts
from tuner.learning import ANYWHERE, ChangeKind, FoundChange, Learning
from tuner.orders import Orders
from tuner.policy_book import PolicyBook
from tuner.safeguard import Safeguard
from tuner.safety import Gate
from tuner.snapshot import PolicySnapshot
from tuner.survivals import NO_OUTLOOK, NOTHING, barred
from tuner.switchback import Switchback, SwitchbackOptions
from tuner.tune.knobs import Point
from tuner.verdict import Bounds, Findings

_log = logging.getLogger(__name__)
_STATE_FORMAT = 2
_CELLS_A_SECOND = 250.0
"""Contexts times drafters that are recomputed in a second."""
_UNREAD = NOTHING, NO_OUTLOOK
"""Of a drafter that may not be weighed."""
_SOONEST = 0.1
"""Seconds between two recomputations at least."""
_YOUNG_SHARE = 0.1
"""Of the time since the start, or since something was found to have changed: the least time between recomputations."""
_NAMED_SECONDS = 600.0
"""A drafter's curve in a context is published for so long after it was last given to a request there."""


@dataclass(frozen=True, slots=True)
class ControllerOptions:
    """How the controller behaves; the defaults are those of the configuration."""

    modes: Mapping[str, Mode] = field(default_factory=dict)
    """By route; `default_mode` for the others."""
    default_mode: Mode = Mode.AUTO
    route_defaults: Mapping[str, Arm] = field(default_factory=dict)
    engine_default: Arm = PLAIN_ARM
    canary_share: float = 0.1
    """Share of the requests of a route in mode ``canary`` that get the learned policy."""
    drafter: str | None = None
    """The drafter that serves until something is known; None takes the engine's first."""
    max_block_length: int = 12
    margin: float = 0.02
    knobs: Mapping[str, Knobs] = field(default_factory=dict)
    """By route, ``*`` for the others: what the configuration says of what may change while the engine serves."""
    max_neighbour_slowdown: float = 1.10
    learning_blocks: int = 30
    """Blocks of a context before its first verdict."""
    recompute_seconds: float = 1.0
    """Between two recomputations; windows switch at every `tick`."""
    min_change_seconds: float = 2.0
    """Between two learned versions of a context, unless it was found to have changed."""
    max_slowdown: float = 0.02
    """The share by which a window of 500 requests may be slower than plain."""
    tpot_limits: Mapping[str, float] = field(default_factory=dict)
    """Seconds per output token that the objective of a route allows."""
    guardrails: GuardrailOptions = field(default_factory=GuardrailOptions)
    switchback: SwitchbackOptions = field(default_factory=SwitchbackOptions)
    seed: int = 0


class Controller:
    """A `DecisionSource` and a telemetry `Consumer`."""

    def __init__(
        self,
        info: EngineInfo,
        options: ControllerOptions,
        publish: Callable[[CyclePolicy], None],
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        """
        Args:
            info: the engine that is served; its calibration seeds the cost model.
            publish: takes each new `CyclePolicy`; must not block. Called once here.
            clock: Unix seconds, for expiries and dates.
            monotonic: seconds, for windows and intervals.
        """
        self._options = options
        self._publish = publish
        self._clock = clock
        self._monotonic = monotonic
        cap = min(options.max_block_length, MAX_BLOCK_LENGTH)
        self._routes = RouteModes(
            options.modes, options.default_mode, options.route_defaults, options.engine_default, options.canary_share
        )
        self._decider = Decider(self._routes, cap, options.seed)
        self._contexts = KnownContexts()
        self._named: dict[tuple[str, str, str], float] = {}
        """When (drafter, route, language) was last decided, on the monotonic clock."""
        self._lock = threading.Lock()

        self._learning = Learning(info, cap, options.max_neighbour_slowdown)
        self._safeguard = Safeguard(options.max_slowdown, self._learning)
        self._guides = Guides(options.drafter, options.learning_blocks, self._learning, options.seed)
        self._changes: list[FoundChange] = []
        self._changes_found: dict[str, int] = {}
        self._guardrails = Guardrails(_with_bounds(options))
        self._tripped: list[GuardrailState] = []
        self._baseline = Baseline()
        self._baseline_error: float | None = None
        self._engine_gain: Interval | None = None
        self._plain = self._baseline.plain_seconds()
        self._requests: dict[Key, int] = {}

        self._production = Point(options.knobs, options.margin)
        self._trial: tuple[int, Point] | None = None
        self._orders = Orders(info.drafters)
        bounds = Bounds(cap, options.margin, options.learning_blocks)
        self._book = PolicyBook(info.model, bounds, options.min_change_seconds)
        self._recomputed_at = self._young_at = monotonic()
        self._switchback = Switchback(options.switchback, options.seed, self._recomputed_at)
        self._snapshot_version = 0
        self.snapshot = self._snapshot_of(INITIAL_CYCLE_POLICY)
        self._publish_changes()

    @property
    def faults(self) -> int:
        """Decisions that failed inside and were answered with the plain arm."""
        return self._decider.faults

    def decide(self, context: Context, features: RequestFeatures) -> Decision:
        """Resolve the policy from the snapshot in force; see `DecisionSource.decide`.

        A plain window in force is not asked about: see `policies.ladder`.
        """
        key = self._contexts.key(context.route, context.language)
        decision = self._decider.decide(self.snapshot, context, key, features, self._learning.load, self._clock())
        if decision.drafter != PLAIN:
            self._named[decision.drafter, *key] = self._monotonic()
        return decision

    def fold_cycle(self, stats: CycleStats) -> None:
        """Learn from a cycle; what it changes shows after the next recomputation."""
        if stats.load == 0:
            return
        stats = self._contexts.known(stats)
        with self._lock:
            self._learning.fold(stats)
            self._safeguard.fold(stats)
            self._guides.fold(stats)
            if not stats.window.trial:  # what is tried says nothing of what serves
                self._baseline.fold_cycle(stats)
            if self._safeguard.judge():
                self._publish_changes()

    def fold_request(self, stats: RequestStats) -> None:
        """Count a finished request."""
        context = stats.decision.context
        key = self._contexts.key(context.route, context.language)
        if key != (context.route, context.language):
            kept = replace(context, route=key[0], language=key[1])
            stats = replace(stats, decision=replace(stats.decision, context=kept))
        with self._lock:
            if stats.decision.drafter != PLAIN:  # a fleet's decisions are made elsewhere
                self._named[stats.decision.drafter, *key] = self._monotonic()
            self._learning.acceptance.finish(stats.request_key)
            self._safeguard.finish()
            self._guides.finish(key, stats.output_tokens)
            speedup = self._baseline.fold_request(stats)
            self._guardrails.fold_request(stats, speedup, self._monotonic())
            self._requests[key] = self._requests.get(key, 0) + 1

    def tick(self) -> list[Policy]:
        """Move windows, drop what expired, recompute when it is time, and publish.

        Call it several times in a window. Returns the policies that became a new version since the last call, those
        changed by pins and kill switches included.
        """
        with self._lock:
            now = self._monotonic()
            expired = self._orders.drop_expired(self._clock())
            found = self._learning.changes()
            self._note(found)
            learned = bool(found) or now - self._recomputed_at >= self._recompute_seconds
            if learned:
                self._recomputed_at = now
                self._learn(now)
                gain, stretch = self._baseline.route_gain, self._baseline.stretch
                self._tripped.extend(self._guardrails.judge(gain, stretch, now, self._clock()))
            if expired or learned:
                changed = {(change.route, change.language) for change in found}
                for key in self._contexts.keys:
                    if key in changed:
                        self._book.allow(key)
                    if expired or self._book.is_due(key, self._learning.menu(key), now):
                        self._judge(key)
            if self._move_window() or expired or learned:
                self._publish_changes()
            return self._book.take_changes()

    def take_found_changes(self) -> list[FoundChange]:
        """What was found to have changed since the last call, for the audit."""
        with self._lock:
            found, self._changes = self._changes, []
            return found

    def fold_memory(self, free_share: float | None) -> None:
        """A reading of the share of the memory that the system still gives; None where it does not tell."""
        with self._lock:
            self._guardrails.fold_memory(free_share)

    def take_moved_guardrails(self) -> list[GuardrailState]:
        """The checks that tripped, tried again or came to rest since the last call, for the audit."""
        with self._lock:
            moved, self._tripped = self._tripped, []
            return moved

    def set_pin(self, pin: Pin) -> None:
        """Put a pin in force, at once; it replaces the one of the same route and language.

        New requests get it. Of requests that run already, a pin that forbids speculation stops theirs. While a pin is
        exempt from switchback no plain window opens at all, since a window is the whole engine's.

        Raises:
            ValueError: the drafter is unknown, or the block length out of range or at odds with the drafter.
        """
        with self._lock:
            self._give_pin(pin)
            self._move_window()
            self._obey()

    def remove_pin(self, route: str, language: str) -> Pin | None:
        """Take back the pin set for exactly (`route`, `language`), at once; returns it, or None if there is none."""
        with self._lock:
            found = self._orders.remove_pin(route, language)
            self._obey()
            return found

    def set_engine(self, info: EngineInfo) -> None:
        """The engine has other drafters now; pins may name them at once, and they are learned from nothing."""
        with self._lock:
            self._orders.drafters = info.drafters
            self._note(self._learning.set_engine(info))
            self._learn(self._monotonic())
            self._obey()

    @property
    def production(self) -> Point:
        """The knobs that serve, but in the windows of a trial."""
        return self._production

    def set_production(self, point: Point) -> None:
        """Serve with other knobs from the next cycle on."""
        with self._lock:
            self._production = point
            self._publish_changes()

    def set_trial(self, trial: int, point: Point | None) -> None:
        """Serve with the knobs of a trial, whose number is not 0, until it is taken back with None."""
        with self._lock:
            self._trial = None if point is None else (trial, point)
            self._publish_changes()

    def set_kill(self, kill: KillSwitch) -> None:
        """Switch speculation off for a route, or everywhere, within one cycle."""
        with self._lock:
            self._orders.set_kill(kill)
            self._obey()

    def clear_kill(self, route: str) -> KillSwitch | None:
        """Take back the kill switch of exactly `route`; returns it, or None if there is none."""
        with self._lock:
            found = self._orders.clear_kill(route)
            self._obey()
            return found

    def state(self) -> dict[str, Any]:
        """What a restart needs, JSON-able. Costs and baselines are not in it: they belong to one process."""
        with self._lock:
            return {
                "format": _STATE_FORMAT,
                "learned": self._learning.state(),
                "versions": [[*key, version] for key, version in self._book.versions.items()],
            }

    def restore(
        self,
        state: Mapping[str, Any],
        policies: Sequence[Policy] = (),
        pins: Sequence[Pin] = (),
        kill_switches: Sequence[KillSwitch] = (),
    ) -> bool:
        """Go on from `state()` of an earlier run, the newest stored `policies`, and its orders. Call it before serving.

        Version numbers go on in any case. What was learned is kept if format, model, dtype, device and the versions of
        target, tokenizer and engine are the same, of the drafters whose versions are; if nothing is, or if `state` is
        damaged, it starts from nothing and the answer is False. Orders that have expired are left out, and so are pins
        that this engine cannot serve, with a line in the log.
        """
        with self._lock:
            kept = self._resume_learned(state)
            for policy in policies:
                self._book.raise_version((policy.context.route, policy.context.language), policy.version)
                if all(drafter in kept for drafter in (policy.arm.drafter, *policy.arm.drafters) if drafter != PLAIN):
                    self._contexts.key(policy.context.route, policy.context.language)
                    self._book.resume(policy)
            for drafter in kept:
                for route, language in self._learning.acceptance.contexts(drafter):
                    self._contexts.key(route, language)
            self._resume_orders(pins, kill_switches)
            self._learn(self._monotonic())
            self._obey()
            return bool(kept)

    def _resume_learned(self, state: Mapping[str, Any]) -> tuple[str, ...]:
        """The drafters of which what was learned is kept. `state` is one thing: damage anywhere loses all of it, and
        nothing else."""
        nothing_known = self._learning.acceptance
        try:
            for route, language, version in state.get("versions", ()):
                self._book.raise_version((str(route), str(language)), int(version))
            return self._learning.restore(state["learned"]) if state.get("format") == _STATE_FORMAT else ()
        except Exception as error:  # noqa: BLE001  logged: whatever was made of a file, serving has to start
            self._learning.acceptance = nothing_known
            _log.warning(
                "the state of the tuner that table posteriors holds for this model is damaged, learning starts from "
                "nothing: %s",
                clipped(str(error)) or type(error).__name__,
            )
            return ()

    def _resume_orders(self, pins: Sequence[Pin], kill_switches: Sequence[KillSwitch]) -> None:
        """All of them before anything is judged, so that no context is judged without an order that holds for it."""
        for pin in pins:
            try:
                self._give_pin(pin)
            except ValueError as error:
                _log.warning("the pin of %s/%s in table pins is left out: %s", pin.route, pin.language, error)
        for kill in kill_switches:
            self._orders.set_kill(kill)
        self._orders.drop_expired(self._clock())

    def _give_pin(self, pin: Pin) -> None:
        self._orders.set_pin(pin)
        if pin.language != ANY:
            self._contexts.key(pin.route, pin.language)

    def _move_window(self) -> bool:
        """Whether another window is in force now."""
        before = self._switchback.window
        exempt = self._orders.exempt_from_switchback
        return self._switchback.advance(self._monotonic(), self._baseline_error, suspended=exempt) != before

    @property
    def _recompute_seconds(self) -> float:
        """Longer with many contexts and drafters, so that learning takes about a tenth of a core at most."""
        cells = len(self._contexts.keys) * len(self._learning.curves)
        return self._patience(self._options.recompute_seconds) * max(1.0, cells / _CELLS_A_SECOND)

    def _patience(self, seconds: float) -> float:
        """At most `seconds`, and less while little is known: what was learned of a young world doubles in moments."""
        return min(seconds, max(_SOONEST, _YOUNG_SHARE * (self._monotonic() - self._young_at)))

    def _note(self, found: Sequence[FoundChange]) -> None:
        """Look again where something changed."""
        for change in found:
            self._young_at = self._monotonic()
            if change.kind is not ChangeKind.COST:  # what drafters get right is as it was
                self._guides.grant()
            self._baseline.forget(change.route, change.language)
            self._changes_found[change.kind] = self._changes_found.get(change.kind, 0) + 1
        self._changes.extend(found)

    def _learn(self, now: float) -> None:
        """Recompute curves, costs, menus and the baseline from the counts."""
        self._learning.learn(self._contexts.keys)
        self._plain = self._baseline.plain_seconds()
        self._engine_gain = self._baseline.engine_gain(self._plain)
        self._baseline_error = self._baseline.relative_error(self._plain)
        for name, named_at in tuple(self._named.items()):
            if now - named_at > _NAMED_SECONDS:
                self._named.pop(name, None)

    def _judge(self, key: Key) -> None:
        now = self._clock()
        self._book.update(key, self._findings(key, now), now, self._monotonic())

    def _obey(self) -> None:
        """Put what operators changed in force."""
        for key in self._contexts.keys:
            self._judge(key)
        self._publish_changes()

    def _publish_changes(self) -> None:
        """Swap the snapshot; the engine gets a `CyclePolicy` only if it differs from the last one."""
        previous = self.snapshot.cycle_policy
        cycle_policy = self._cycle_policy(previous.version)
        if cycle_policy != previous or previous.version == 0:
            cycle_policy = replace(cycle_policy, version=previous.version + 1)
        self.snapshot = self._snapshot_of(cycle_policy)
        if cycle_policy.version != previous.version:
            self._publish(cycle_policy)

    def _findings(self, key: Key, now: float) -> Findings:
        route, language = key
        mode = self._routes.mode(route)
        default = self._routes.default(route)
        pin = pin_for(self._orders.pins, route, language, now)
        era: Era = (route, language, LEARNED, False)
        if pin is not None:
            era = (route, language, *_served_as(Arm.fixed(pin.drafter, pin.block_length)))
        elif mode not in (Mode.AUTO, Mode.CANARY):
            era = (route, language, *_served_as(PLAIN_ARM if mode is Mode.OFF else default))
        return Findings(
            curves={name: curves.get(key, curves[ANYWHERE]) for name, curves in self._learning.curves.items()},
            menu=self._learning.menu(key),
            load=self._learning.load,
            gain=self._baseline.gain(era, self._plain),
            mode=mode,
            default=default,
            pin=pin,
            kill=kill_for(self._orders.kill_switches, route, now),
        )

    def _cycle_policy(self, version: int) -> CyclePolicy:
        window, point = self._switchback.window, self._production
        if self._trial is not None and not window.plain:
            window, point = replace(window, trial=self._trial[0]), self._trial[1]
        survivals, outlooks = self._curves_of_requests()
        # A pin is stronger than a guardrail, so beside a pin only what is weighed stops, for want of its curves.
        pinned = {pin.route for pin in self._orders.pins if pin.block_length}
        held = frozenset(
            route for route in self._guardrails.shut if route not in pinned and not (route == ANY and pinned)
        )
        of_new = self._safeguard.gate is Gate.OPEN
        defaults = {
            name: self._reading(name, ANYWHERE, by[ANYWHERE]) if of_new and self._may_weigh(name) else _UNREAD
            for name, by in self._learning.curves.items()
        }
        return CyclePolicy(
            version=version,
            kill=self._orders.killed_everywhere or ANY in held,
            window=window,
            survivals=survivals,
            default_survivals={name: survival for name, (survival, _) in defaults.items()},
            cost=self._learning.cost,
            draft_costs=self._learning.draft_costs,
            margin=point.margin,
            knobs=point.knobs,
            copiers=self._copiers(survivals),
            max_neighbour_slowdown=self._options.max_neighbour_slowdown,
            killed_routes=self._orders.killed_routes | held,
            outlooks=outlooks,
            default_outlooks={name: outlook for name, (_, outlook) in defaults.items()},
            tpot_limits=self._options.tpot_limits,
            hold=self._safeguard.gate is Gate.HELD,
        )

    def _curves_of_requests(self) -> tuple[dict[tuple[str, str, str], Survival], dict[tuple[str, str, str], Outlook]]:
        """For the drafters that requests of a context were given lately; nothing where they may not be weighed."""
        survivals: dict[tuple[str, str, str], Survival] = {}
        outlooks: dict[tuple[str, str, str], Outlook] = {}
        shut = barred(self._contexts.keys, self._orders, self._clock())
        if self._guardrails.shut:
            held = self._guardrails.shut
            shut |= {key for key in self._contexts.keys if ANY in held or key[0] in held}
        for drafter, *rest in sorted((*self._named, *((name, *key) for name in self._learning.curves for key in shut))):
            key: Key = (rest[0], rest[1])
            curve = self._learning.curves.get(drafter, {}).get(key)
            if key in shut or not self._may_weigh(drafter) or not self._safeguard.allows(drafter, key):
                survivals[drafter, *key], outlooks[drafter, *key] = _UNREAD
            elif curve is not None:
                survivals[drafter, *key], outlooks[drafter, *key] = self._reading(drafter, key, curve)
        return survivals, outlooks

    def _reading(self, drafter: str, key: Key, curve: Curve) -> tuple[Survival, Outlook]:
        reading = self._learning.published.of(drafter, key, curve)
        return reading.survival, reading.outlook

    def _copiers(self, survivals: Mapping[tuple[str, str, str], Survival]) -> dict[tuple[str, str], Copier]:
        """Where the drafter that copies may be weighed, and so may the one that was given."""
        shut = {(route, language) for (_, route, language), survival in survivals.items() if survival is NOTHING}
        return {
            key: copier
            for key, copier in self._learning.copiers.items()
            if key not in shut and self._may_weigh(copier.drafter) and self._safeguard.allows(copier.drafter, key)
        }

    def _may_weigh(self, drafter: str) -> bool:
        """Whether enough is known of a drafter for its proposals to be verified: before that they are only scored,
        which takes a moment and slows nobody."""
        curves = self._learning.curves.get(drafter)
        if curves is None:
            return False
        # A drafter that is too dear to be scored beside requests becomes known by serving some.
        return curves[ANYWHERE].blocks >= self._options.learning_blocks or not self._guides.is_cheap(drafter)

    def _snapshot_of(self, cycle_policy: CyclePolicy) -> PolicySnapshot:
        self._snapshot_version += 1
        guides, default_guide = self._guides.of(self._contexts.keys, self._book.policies, self._safeguard.spare)
        return PolicySnapshot(
            version=self._snapshot_version,
            created_at=self._clock(),
            policies=self._book.policies,
            pins=self._orders.pins,
            kill_switches=self._orders.kill_switches,
            cycle_policy=cycle_policy,
            throughput=self._baseline.throughput,
            baseline=tuple(self._plain.cells.values()),
            cost_error=self._learning.cost_model.error,
            switchback_share=self._switchback.share,
            requests=dict(self._requests),
            looped_requests=self._baseline.looped,
            guides=guides,
            default_guide=default_guide,
            safety=self._safeguard.state,
            changes_found=dict(self._changes_found),
            engine_gain=self._engine_gain,
            shadow_share=self._baseline.shadow_share,
            curves=self._learning.curves,
            guards=self._guardrails.guards,
            guardrails=self._guardrails.states,
        )


def _with_bounds(options: ControllerOptions) -> GuardrailOptions:
    """The guardrails' bars of what the controller promises."""
    least = 1.0 - options.max_slowdown
    # What a sequence did not need of its bound in plain windows, it may lose to its neighbours in served ones.
    slowdown = 1.0 + (options.max_neighbour_slowdown - 1.0) / (1.0 - options.switchback.share_start)
    return replace(options.guardrails, least_gain=least, least_route_gain=least / slowdown)


def _served_as(arm: Arm) -> tuple[str, bool]:
    """(drafter, forced) of decisions for a fixed arm, as `policies.ladder` makes them."""
    return (arm.drafter, True) if arm.cap else (PLAIN, False)
