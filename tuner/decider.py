"""Decisions from a snapshot: no lock, no I/O, never an exception."""

import itertools
import logging
import random
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from policies.decision_id import DecisionFields, encode
from policies.ladder import Resolution, Situation, kill_for, pin_for, resolve
from policies.types import PLAIN, Arm, Context, Decision, Mode, Reason, RequestFeatures
from tuner.snapshot import PolicySnapshot

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RouteModes:
    """What the configuration says of the routes."""

    modes: Mapping[str, Mode]
    default_mode: Mode
    route_defaults: Mapping[str, Arm]
    engine_default: Arm
    canary_share: float
    """Share of the requests of a route in mode ``canary`` that get the learned policy."""

    def mode(self, route: str) -> Mode:
        return self.modes.get(route, self.default_mode)

    def default(self, route: str) -> Arm:
        """What serves on `route` where nothing is learned, or may be."""
        return self.route_defaults.get(route, self.engine_default)


class Decider:
    """Resolves requests. Any number of threads may call it."""

    def __init__(self, routes: RouteModes, drafter: str, cap: int, seed: int) -> None:
        """`drafter` and `cap` are the drafter that is learned, and its largest block length."""
        self._routes = routes
        self._drafter = drafter
        self._cap = cap
        self._random = random.Random(seed)
        self._run = secrets.token_hex(4)
        self._serial = itertools.count(1)
        self.faults = 0
        """Decisions that failed inside and were answered with the plain arm."""

    def decide(self, snapshot: PolicySnapshot, context: Context, features: RequestFeatures, now: float) -> Decision:
        """The decision for one request at `now` (Unix seconds)."""
        try:
            resolution = resolve(self._situation(snapshot, context, features, now))
        except Exception:  # noqa: BLE001  a fault of the tuner must not fail a request; it is counted and logged
            self.faults += 1
            _log.exception("a decision failed, plain serves; route %s, language %s", context.route, context.language)
            resolution = Resolution(PLAIN, 0, False, Reason.ERROR, 0)
        fields = DecisionFields(
            policy_version=resolution.policy_version,
            drafter=resolution.drafter,
            cap=resolution.cap,
            reason=resolution.reason,
            route=context.route,
            language=context.language,
            serial=f"{self._run}-{next(self._serial):x}",
        )
        return Decision(
            decision_id=encode(fields),
            context=context,
            drafter=resolution.drafter,
            cap=resolution.cap,
            forced=resolution.forced,
            reason=resolution.reason,
            policy_version=resolution.policy_version,
        )

    def _situation(
        self, snapshot: PolicySnapshot, context: Context, features: RequestFeatures, now: float
    ) -> Situation:
        mode = self._routes.mode(context.route)
        return Situation(
            killed=kill_for(snapshot.kill_switches, context.route, now) is not None,
            pin=pin_for(snapshot.pins, context.route, context.language, now),
            opt_out=features.opt_out,
            mode=mode,
            canary=mode is Mode.CANARY and self._random.random() < self._routes.canary_share,
            learned=snapshot.policies.get((context.route, context.language)),
            learned_cap=self._cap,
            explored_drafter=self._drafter if self._drafter != PLAIN else None,
            route_default=self._routes.route_defaults.get(context.route),
            engine_default=self._routes.engine_default,
        )
