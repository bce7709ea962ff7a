"""The fleet's tuner: learns from exchanges, and publishes what requests, people and metrics read.

It is the twin of `tuner.controller.Controller`: it satisfies `tuner.steering.Steering`, publishes the same
`PolicySnapshot`, and beside it a `FleetSnapshot` for the chooser in the data path. Any thread may call any method;
writers share a lock, and readers read one attribute that is replaced and never edited.
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from policies.cycle_policy import INITIAL_CYCLE_POLICY
from policies.ladder import ANY, kill_for, pin_for
from policies.quoting import clipped
from policies.types import MAX_BLOCK_LENGTH, PLAIN, UNKNOWN_LENGTH, Interval, KillSwitch, Mode, Pin, Policy, Reason
from tuner.fleet.pools.book import Book
from tuner.fleet.pools.budgets import Budgets
from tuner.fleet.pools.counts import TICK_SECONDS, Part
from tuner.fleet.pools.learner import Learner
from tuner.fleet.pools.movements import Movements
from tuner.fleet.pools.options import FleetOptions
from tuner.fleet.pools.plain_shares import plain_shares
from tuner.fleet.pools.publishing import context_speeds, lane_speeds
from tuner.fleet.pools.rows import kind_of
from tuner.fleet.pools.schedule import highest_load, menu_of, most_served_load
from tuner.fleet.pools.snapshot import FleetSnapshot
from tuner.fleet.pools.telemetry import features_of, request_stats, sample_of
from tuner.fleet.pools.verdict import Findings, unmet
from tuner.fleet.types import Exchange, Upstream
from tuner.guardrails import Guardrails, GuardrailState
from tuner.known_contexts import Key, KnownContexts
from tuner.learning import ChangeKind, FoundChange
from tuner.orders import Orders
from tuner.snapshot import PolicySnapshot, Throughput

_log = logging.getLogger(__name__)
_STATE_FORMAT = 1
_READING_SHARE = 0.05
"""Of the time, that making estimates may take."""
_STEERED = (Mode.AUTO, Mode.CANARY)


class FleetController:
    """See the module."""

    def __init__(
        self,
        upstreams: Sequence[Upstream],
        options: FleetOptions,
        publish: Callable[[FleetSnapshot], None],
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`publish` takes each new `FleetSnapshot`; must not block. Called once here. `clock` gives Unix seconds."""
        self._options = options
        self._publish = publish
        self._clock, self._monotonic = clock, monotonic
        self._lock = threading.Lock()
        self._learner = Learner(upstreams, options.aliases, secrets.token_hex(4))
        self._contexts = KnownContexts()
        self._requests: dict[Key, int] = {}
        self._orders = Orders(self._drafters())
        self._book = Book(options.model, options.min_change_seconds)
        bar = 1.0 - options.max_slowdown
        self._guardrails = Guardrails(replace(options.guardrails, least_gain=bar, least_route_gain=bar))
        self._tripped: list[GuardrailState] = []
        self._budgets = Budgets(options.max_slowdown)
        self._gains: dict[tuple[str, float], Interval | None] = {}
        self._changes: list[FoundChange] = []
        self._changes_found: dict[str, int] = {}
        self._movements = Movements(clock())
        self._read_at = monotonic()
        self._reading_seconds = 0.0
        self._version = 0
        self.fleet, self.snapshot = self._snapshots()
        publish(self.fleet)

    @property
    def drafters(self) -> tuple[str, ...]:
        """What a pin may name, plain first."""
        return self._orders.drafters

    def fold(self, exchange: Exchange) -> None:
        """Learn from an exchange; what it changes shows after the next reading."""
        decision = exchange.decision
        if decision is None:
            return
        key = self._contexts.key(decision.context.route, decision.context.language)
        kept = replace(decision, context=replace(decision.context, route=key[0], language=key[1]))
        steered = self._options.modes.mode(key[0]) in _STEERED
        with self._lock:
            if decision.reason is Reason.EXPLORE:
                self._budgets.end_trial(key[0])
            self._requests[key] = self._requests.get(key, 0) + 1
            lane = self._learner.counted_as(exchange.lane)
            sample = None if lane is None else sample_of(exchange, lane, *key)
            speedup = None
            if sample is not None:
                self._learner.counts.add(sample)
                plain = self._learner.plain_of(sample)
                if plain is not None:
                    speedup = plain[0] * sample.tokens / sample.seconds
                if decision.drafter == PLAIN:
                    self._budgets.fold_plain(key[0], sample.seconds)
                elif plain is not None and sample.part is Part.LEARNED:
                    expected = self._learner.expected(exchange.lane, sample)
                    self._budgets.fold(key[0], sample.tokens, sample.seconds, plain, expected)
            if steered:
                stats = request_stats(replace(exchange, decision=kept), features_of(exchange))
                if stats is not None:
                    self._guardrails.fold_request(stats, speedup, self._monotonic())

    def tick(self) -> list[Policy]:
        """Drop what expired, read the counts when it is time, and publish. Call it several times a second.

        Returns the policies that became a new version since the last call, those changed by orders included.
        """
        with self._lock:
            now = self._monotonic()
            expired = self._orders.drop_expired(self._clock())
            gates = self._budgets.judge()
            pause = max(self._options.recompute_seconds, self._reading_seconds / _READING_SHARE)
            learned = now - self._read_at >= pause
            if learned:
                self._read()
                self._tripped.extend(self._guardrails.judge(self._route_gain, self._stretch(), now, self._clock()))
            if learned or expired:
                self._judge()
            if learned or expired or gates:
                self._publish_changes()
            return self._book.take_changes()

    def set_upstreams(self, upstreams: Sequence[Upstream]) -> None:
        """What is known of the fleet has changed. What ran something else before is learned from nothing."""
        with self._lock:
            for name in self._learner.set_upstreams(upstreams):
                note = f"upstream {name} runs another engine, model or drafter now: its lanes are learned from nothing"
                self._found(FoundChange(ChangeKind.VERSION, "", "", "", note))
            self._orders.drafters = self._drafters()
            self._read()
            self._judge()
            self._publish_changes()

    def set_pin(self, pin: Pin) -> None:
        """Put a pin in force, at once; it replaces the one of the same route and language.

        Raises:
            ValueError: no lane has this drafter and block length, with those that there are.
        """
        with self._lock:
            self._give_pin(pin)
            self._judge()
            self._publish_changes()

    def remove_pin(self, route: str, language: str) -> Pin | None:
        """Take back the pin of exactly (`route`, `language`); returns it, or None if there is none."""
        with self._lock:
            found = self._orders.remove_pin(route, language)
            self._judge()
            self._publish_changes()
            return found

    def set_kill(self, kill: KillSwitch) -> None:
        """Send a route's requests, or everybody's, to plain lanes from the next one on."""
        with self._lock:
            self._orders.set_kill(kill)
            self._judge()
            self._publish_changes()

    def clear_kill(self, route: str) -> KillSwitch | None:
        """Take back the kill switch of exactly `route`; returns it, or None if there is none."""
        with self._lock:
            found = self._orders.clear_kill(route)
            self._judge()
            self._publish_changes()
            return found

    def take_found_changes(self) -> list[FoundChange]:
        """What was found to have changed since the last call, for the audit."""
        with self._lock:
            found, self._changes = self._changes, []
            return found

    def take_moved_guardrails(self) -> list[GuardrailState]:
        """The checks that tripped, tried again or came to rest since the last call, for the audit."""
        with self._lock:
            moved, self._tripped = self._tripped, []
            return moved

    def state(self) -> dict[str, Any]:
        """What a restart needs, JSON-able."""
        with self._lock:
            versions = [[*key, version] for key, version in self._book.versions.items()]
            return {"format": _STATE_FORMAT, "counts": self._learner.state(), "versions": versions}

    def restore(
        self,
        state: Mapping[str, Any],
        policies: Sequence[Policy] = (),
        pins: Sequence[Pin] = (),
        kill_switches: Sequence[KillSwitch] = (),
    ) -> bool:
        """Go on from `state()` of an earlier run, the newest stored `policies`, and its orders. Call it before serving.

        Version numbers go on in any case. Counts are kept of upstreams that run what they ran. Where `state` is of
        another format or damaged, learning starts from nothing, and the answer is False.
        """
        with self._lock:
            kept = self._resume(state)
            for policy in policies:
                self._book.raise_version((policy.context.route, policy.context.language), policy.version)
                self._contexts.key(policy.context.route, policy.context.language)
                self._book.resume(policy)
            for pin in pins:
                try:
                    self._give_pin(pin)
                except ValueError as error:
                    _log.warning("the pin of %s/%s in table pins is left out: %s", pin.route, pin.language, error)
            for kill in kill_switches:
                self._orders.set_kill(kill)
            self._orders.drop_expired(self._clock())
            self._read()
            self._judge()
            self._publish_changes()
            return kept

    def _resume(self, state: Mapping[str, Any]) -> bool:
        try:
            for route, language, version in state.get("versions", ()):
                self._book.raise_version((str(route), str(language)), int(version))
            if state.get("format") != _STATE_FORMAT:
                return False
            self._learner.restore(state["counts"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            _log.warning(
                "the state of the fleet in table posteriors is damaged, learning starts from nothing: %s",
                clipped(str(error)) or type(error).__name__,
            )
            return False
        for _, place, _ in self._learner.counts:
            self._contexts.key(place.route, place.language)
        return True

    def _give_pin(self, pin: Pin) -> None:
        drafting = [lane for lane in self._learner.lanes if not lane.plain and lane.drafter == pin.drafter]
        lengths = sorted({lane.block_length for lane in drafting} - {UNKNOWN_LENGTH})
        if drafting and not lengths:
            raise ValueError(
                f"block_length {pin.block_length} of {pin.drafter!r} cannot be pinned, since nobody knows how far it "
                f"drafts; set fleet.upstreams.{drafting[0].upstream}.block_length to what it was launched with"
            )
        if drafting and pin.block_length <= MAX_BLOCK_LENGTH and pin.block_length not in lengths:
            raise ValueError(
                f"block_length {pin.block_length} of {pin.drafter!r} is served by no lane; use one of "
                f"{', '.join(map(str, lengths))}, or drafter {PLAIN!r}"
            )
        self._orders.set_pin(pin)
        if pin.language != ANY:
            self._contexts.key(pin.route, pin.language)

    def _drafters(self) -> tuple[str, ...]:
        return (PLAIN, *sorted({lane.drafter for lane in self._learner.lanes} - {PLAIN}))

    def _read(self) -> None:
        started = time.perf_counter()
        self._learner.read(self._clock())
        self._gains = {}
        for change in self._movements.new(self._learner.moved, self._clock()):
            self._found(change)
        self._read_at = self._monotonic()
        self._reading_seconds = time.perf_counter() - started

    def _found(self, change: FoundChange) -> None:
        self._changes.append(change)
        self._changes_found[change.kind] = self._changes_found.get(change.kind, 0) + 1

    def _stretch(self) -> int:
        return int(self._clock() / TICK_SECONDS)

    def _route_gain(self, route: str, stretch: int | None) -> Interval | None:
        """As `tuner.guardrails.Gains` asks; ``*`` for all routes."""
        key = route, 0.0 if stretch is None else stretch * TICK_SECONDS
        if key not in self._gains:
            places = self._learner.places(None if route == ANY else route)
            self._gains[key] = self._learner.gains.of(places, (Part.LEARNED,), key[1])
        return self._gains[key]

    def _judge(self) -> None:
        now = self._clock()
        for key in self._contexts.keys:
            self._book.update(key, self._findings(key, now), now, self._monotonic())

    def _findings(self, key: Key, now: float) -> Findings:
        speeds, modes = self._learner.speeds, self._options.modes
        place = self._learner.main_place(*key)
        pin = pin_for(self._orders.pins, *key, now)
        kill = kill_for(self._orders.kill_switches, key[0], now)
        kinds = {kind_of(lane) for lane in self._learner.lanes}
        mode = modes.mode(key[0])
        parts = (Part.PINNED,) if pin is not None else (Part.LEARNED,) if mode in _STEERED else (Part.DEFAULT,)
        return Findings(
            menu=menu_of(speeds, place, kinds, highest_load(speeds)),
            requests=0.0 if place is None else float(speeds.requests[:, place].sum()),
            served=self._requests.get(key, 0),
            load=most_served_load(speeds),
            gain=self._learner.gains.of(self._learner.places(*key), parts),
            lanes=self._learner.lanes,
            mode=mode,
            pin=pin,
            kill=kill,
            margin=self._options.margin,
        )

    def _publish_changes(self) -> None:
        self.fleet, self.snapshot = self._snapshots()
        self._publish(self.fleet)

    def _snapshots(self) -> tuple[FleetSnapshot, PolicySnapshot]:
        self._version += 1
        options, learner = self._options, self._learner
        policies = self._book.policies
        shares: dict[Key, float] = {}
        new_share = 0.0
        if learner.gains.plain_known and options.plain_share_start > 0.0:
            shares, new_share = plain_shares(
                options.plain_share_start,
                options.plain_share_floor,
                policies,
                lambda route: self._route_gain(route, None),
            )
        fleet = FleetSnapshot(
            version=self._version,
            model=options.model,
            lanes=lane_speeds(learner.speeds, learner.upstreams),
            routes=options.routes,
            modes=options.modes,
            pins=self._orders.pins,
            kill_switches=self._orders.kill_switches,
            guards=self._guardrails.guards,
            speeds=context_speeds(learner.speeds),
            plain_shares=shares,
            plain_share=new_share,
            trials=self._budgets.trials(),
            policy_versions={key: policy.version for key, policy in policies.items()},
            learned=frozenset(key for key, policy in policies.items() if policy.reason is Reason.LEARNED),
            margin=options.margin,
            add_usage=options.add_usage,
            seed=options.seed,
        )
        told = PolicySnapshot(
            version=self._version,
            created_at=self._clock(),
            policies=policies,
            pins=self._orders.pins,
            kill_switches=self._orders.kill_switches,
            cycle_policy=replace(INITIAL_CYCLE_POLICY, kill=self._orders.killed_everywhere),
            throughput=Throughput(),
            baseline=self._learner.baseline(),
            cost_error=None,
            switchback_share=new_share,
            plain_sessions=True,
            unmet=unmet(learner.lanes),
            requests=dict(self._requests),
            safety=self._budgets.state,
            changes_found=dict(self._changes_found),
            engine_gain=self._route_gain(ANY, None),
            guards=self._guardrails.guards,
            guardrails=self._guardrails.states,
        )
        return fleet, told
