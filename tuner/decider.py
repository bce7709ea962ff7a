"""Decisions from a snapshot: no lock, no I/O, never an exception."""

import itertools
import logging
import random
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from policies.decision_id import DecisionFields, encode
from policies.ladder import Resolution, Situation, kill_for, pin_for, resolve
from policies.types import PLAIN, Arm, Context, Decision, Mode, PolicyState, Reason, RequestFeatures
from tuner.guardrails import Guard, guard_of
from tuner.known_contexts import Key
from tuner.shadowing import drawn
from tuner.snapshot import Guide, PolicySnapshot

_log = logging.getLogger(__name__)
WATCHED = frozenset(
    (
        Reason.LEARNED,
        Reason.EXPLORE,
        Reason.CANARY,
        Reason.SHORT_OUTPUT,
        Reason.PINNED,
        Reason.ROUTE_DEFAULT,
        Reason.ENGINE_DEFAULT,
    )
)
"""Requests beside which shadows may run: not those of clients who opted out, and nothing under a kill switch."""


_DRAWN = (Reason.LEARNED, Reason.EXPLORE, Reason.CANARY)
"""Where one of these decides, the drafter may have been drawn."""
_ABOVE_CHANCE = (Reason.KILL_SWITCH, Reason.PINNED, Reason.ERROR)
"""Nothing was drawn where one of these decides."""


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

    def __init__(self, routes: RouteModes, cap: int, seed: int) -> None:
        """`cap` is the largest block length of what is learned."""
        self._routes = routes
        self._cap = cap
        self._random = random.Random(seed)
        self._run = secrets.token_hex(4)
        self._serial = itertools.count(1)
        self.faults = 0
        """Decisions that failed inside and were answered with the plain arm."""

    def decide(
        self, snapshot: PolicySnapshot, context: Context, key: Key, features: RequestFeatures, load: int, now: float
    ) -> Decision:
        """The decision for one request at `now` (Unix seconds), with `load` sequences running.

        `key` is the context whose account it is on, which is another than `context` once there are too many.
        """
        shadows: tuple[str, ...] = ()
        try:
            guide = snapshot.guides.get(key, snapshot.default_guide)
            guard = guard_of(snapshot.guards, context.route)
            tried, chance = self._draw(guide.trials)
            resolution = resolve(self._situation(snapshot, context, key, guide, guard, tried, features, load, now))
            propensity = self._propensity(context.route, resolution.reason, guard)
            if resolution.reason in _DRAWN:
                propensity *= chance
            watched = resolution.reason in WATCHED and self._routes.mode(context.route) is not Mode.OFF
            if guide.shadows and watched and not snapshot.cycle_policy.hold:
                shadows = drawn(guide.shadows, resolution.drafter, self._random.random())
                if resolution.reason is Reason.EXPLORE and resolution.drafter in guide.own_shadows:
                    # Where the plan does not ask it, since it is not expected to pay, it is looked at all the same.
                    shadows = (*shadows, resolution.drafter)
        except Exception:  # noqa: BLE001  a fault of the tuner must not fail a request; it is counted and logged
            self.faults += 1
            _log.exception("a decision failed, plain serves; route %s, language %s", context.route, context.language)
            resolution, propensity = Resolution(PLAIN, 0, False, Reason.ERROR, 0), 1.0
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
            shadows=shadows,
            propensity=propensity,
        )

    def _situation(
        self,
        snapshot: PolicySnapshot,
        context: Context,
        key: Key,
        guide: Guide,
        guard: Guard | None,
        tried: str | None,
        features: RequestFeatures,
        load: int,
        now: float,
    ) -> Situation:
        mode = self._routes.mode(context.route)
        learned = snapshot.policies.get(key)
        explored = guide.explored
        if learned is not None and learned.state is PolicyState.LEARNING:
            explored = learned.arm.drafter_at(load)
        likely = tried or (explored if learned is None else learned.arm.drafter_at(load))
        return Situation(
            killed=kill_for(snapshot.kill_switches, context.route, now) is not None,
            pin=pin_for(snapshot.pins, context.route, context.language, now),
            guardrail=guard.reason if guard is not None and self._random.random() >= guard.tried_share else None,
            opt_out=features.opt_out,
            mode=mode,
            canary=mode is Mode.CANARY and self._random.random() < self._routes.canary_share,
            learned=learned,
            learned_cap=self._cap,
            load=load,
            short_drafter=_instead(guide, likely, features),
            tried_drafter=tried,
            explored_drafter=explored if explored != PLAIN else None,
            route_default=self._routes.route_defaults.get(context.route),
            engine_default=self._routes.engine_default,
        )

    def _draw(self, trials: tuple[tuple[str, float], ...]) -> tuple[str | None, float]:
        """A drafter, and the chance that it had."""
        if not trials:
            return None, 1.0
        left = self._random.random()
        for drafter, chance in trials:
            left -= chance
            if left < 0.0:
                return drafter, chance
        return trials[-1]

    def _propensity(self, route: str, reason: Reason, guard: Guard | None) -> float:
        """The chance of what was decided, where a guardrail lets some requests try or the route is in mode canary."""
        chance = 1.0
        if reason in _ABOVE_CHANCE:
            return chance
        if guard is not None and guard.tried_share:
            if reason is guard.reason:
                return 1.0 - guard.tried_share
            chance = guard.tried_share
        if self._routes.mode(route) is Mode.CANARY and reason is not Reason.CLIENT_OPT_OUT:
            share = self._routes.canary_share
            chance *= 1.0 - share if reason in (Reason.ROUTE_DEFAULT, Reason.ENGINE_DEFAULT) else share
        return chance


def _instead(guide: Guide, drafter: str, features: RequestFeatures) -> str | None:
    """Who drafts for a request whose output is too short for `drafter` to catch up with the prompt."""
    shortcut = guide.shortcuts.get(drafter)
    if shortcut is None:
        return None
    expected: float = features.max_tokens
    if guide.output_tokens:
        expected = min(expected, guide.output_tokens)
    return shortcut.drafter if expected < shortcut.tokens_per_prompt_token * features.prompt_tokens else None
