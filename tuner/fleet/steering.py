"""What steers a sidecar: the pools' tuner from the start, and the embedded engine's once a plug-in has reported.

Both are there for the admin API through one door, so that pins and kill switches hold whoever learns.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from policies.cycle_policy import CyclePolicy
from policies.quoting import clipped
from policies.stats import CycleStats, EngineInfo, RequestStats
from policies.types import PLAIN, PLAIN_ARM, KillSwitch, Pin, Policy
from tuner.api.drafters import DrafterConflictError
from tuner.controller import Controller
from tuner.decider import RouteModes
from tuner.fleet.pools.controller import FleetController
from tuner.fleet.pools.lanes import Alias
from tuner.fleet.pools.options import FleetOptions
from tuner.fleet.pools.snapshot import FleetSnapshot
from tuner.fleet.types import Effect, Exchange, Lever, Upstream
from tuner.fleet.vllm.chooser import PluginSnapshot, for_decisions
from tuner.guardrails import GuardrailState
from tuner.learning import FoundChange
from tuner.settings import Settings
from tuner.snapshot import PolicySnapshot
from tuner.steering_options import controller_options, guardrail_options, route_defaults

_LAUNCHED = "the drafters of a fleet are those that its servers were launched with"
CANARY_SHARE = 0.1
"""Of the requests of a route in mode canary."""


class FleetSteering:
    """A `tuner.steering.Steering`, and a `tuner.api.drafters.DrafterControl`; any thread may call."""

    def __init__(self, settings: Settings, model: str, upstreams: Sequence[Upstream]) -> None:
        """`settings` are those of `for_sidecar`; `model` is that of requests whose own is not known."""
        self._settings = settings
        self._options = fleet_options(settings, model)
        self._pools = FleetController(upstreams, self._options, lambda snapshot: None)
        self._plugin: Controller | None = None
        self._plugin_drafters: tuple[str, ...] = ()
        self._longest = 0
        self._upstreams = tuple(upstreams)

    @property
    def snapshot(self) -> PolicySnapshot:
        """Of whoever learns."""
        return self._pools.snapshot if self._plugin is None else self._plugin.snapshot

    @property
    def drafters(self) -> tuple[str, ...]:
        """What a pin may name, plain first."""
        return self._pools.drafters if self._plugin is None else self._plugin_drafters

    @property
    def fleet(self) -> FleetSnapshot:
        """Lanes and what is known of them."""
        return self._pools.fleet

    async def load_drafter(self, source: str) -> None:
        """See `DrafterControl`: there is none to load."""
        raise DrafterConflictError(f"{clipped(source)!r} cannot be loaded: {_LAUNCHED}")

    async def unload_drafter(self, name: str) -> None:
        """See `DrafterControl`: there is none to let go."""
        raise DrafterConflictError(f"{clipped(name)!r} cannot be let go: {_LAUNCHED}")

    def chosen_by(self) -> FleetSnapshot | PluginSnapshot:
        """What the data path is to choose by now."""
        if self._plugin is None:
            return self._pools.fleet
        with_plugin = frozenset(one.name for one in self._upstreams if one.effect(Lever.PLUGIN) is Effect.WORKS)
        return PluginSnapshot(self._pools.fleet, for_decisions(self._plugin.snapshot), with_plugin, self._longest)

    def set_upstreams(self, upstreams: Sequence[Upstream]) -> None:
        """What is known of the fleet has changed."""
        self._upstreams = tuple(upstreams)
        self._pools.set_upstreams(upstreams)

    def set_plugin(self, info: EngineInfo, longest: int, publish: Callable[[CyclePolicy], None]) -> None:
        """From now on cycles are learned from, and steered by `publish`. `longest` is the block length at launch."""
        options = controller_options(self._settings, switchback=True)
        options = replace(
            options,
            drafter=info.drafters[-1] if len(info.drafters) > 1 else None,
            max_block_length=min(options.max_block_length, longest),
            knobs={},
            engine_default=PLAIN_ARM,
            canary_share=CANARY_SHARE,
        )
        plugin = Controller(info, options, publish, clock=time.time, monotonic=time.monotonic)
        before = self.snapshot
        # What learning took it from starts anew, in another unit; what people ordered goes on.
        plugin.restore({}, [*before.policies.values()], before.pins, before.kill_switches)
        self._longest = options.max_block_length
        self._plugin_drafters = info.drafters
        self._plugin = plugin

    @property
    def steers_cycles(self) -> bool:
        """Whether a plug-in has reported."""
        return self._plugin is not None

    def fold(self, exchange: Exchange) -> None:
        """Learn from an exchange, where nobody reports cycles."""
        if self._plugin is None:
            self._pools.fold(exchange)

    def fold_cycle(self, stats: CycleStats) -> None:
        """Learn from a cycle of a plug-in."""
        if self._plugin is not None:
            self._plugin.fold_cycle(stats)

    def fold_request(self, stats: RequestStats) -> None:
        """Count a request that a plug-in reported."""
        if self._plugin is not None:
            self._plugin.fold_request(stats)

    def tick(self) -> list[Policy]:
        """Learn, when it is time; returns the policies with a new version."""
        changed = self._pools.tick()
        return changed if self._plugin is None else self._plugin.tick()

    def take_found_changes(self) -> list[FoundChange]:
        """For the audit."""
        found = self._pools.take_found_changes()
        return found if self._plugin is None else [*found, *self._plugin.take_found_changes()]

    def take_moved_guardrails(self) -> list[GuardrailState]:
        """For the audit."""
        moved = self._pools.take_moved_guardrails()
        return moved if self._plugin is None else [*moved, *self._plugin.take_moved_guardrails()]

    def state(self) -> dict[str, Any]:
        """What a restart needs, JSON-able."""
        return self._pools.state() if self._plugin is None else self._plugin.state()

    def restore(
        self,
        state: Mapping[str, Any],
        policies: Sequence[Policy],
        pins: Sequence[Pin],
        kill_switches: Sequence[KillSwitch],
    ) -> None:
        """Go on from an earlier run. Call it before anything is served by it."""
        self._pools.restore(state, policies, pins, kill_switches)

    def resume_plugin(self, state: Mapping[str, Any]) -> None:
        """Go on from what an earlier run's plug-in had learned, after `set_plugin`."""
        if self._plugin is not None:
            self._plugin.restore(state)

    def set_pin(self, pin: Pin) -> None:
        """See `Steering`."""
        self._of_people().set_pin(pin)

    def remove_pin(self, route: str, language: str) -> Pin | None:
        """See `Steering`."""
        return self._of_people().remove_pin(route, language)

    def set_kill(self, kill: KillSwitch) -> None:
        """See `Steering`."""
        self._of_people().set_kill(kill)

    def clear_kill(self, route: str) -> KillSwitch | None:
        """See `Steering`."""
        return self._of_people().clear_kill(route)

    def _of_people(self) -> FleetController | Controller:
        return self._pools if self._plugin is None else self._plugin


def fleet_options(settings: Settings, model: str) -> FleetOptions:
    """What the pools' tuner is told of the settings."""
    fleet = settings.fleet
    return FleetOptions(
        model=model,
        routes=frozenset(settings.routes),
        modes=RouteModes(
            modes={name: route.mode for name, route in settings.routes.items()},
            default_mode=fleet.mode,
            route_defaults=route_defaults(settings),
            engine_default=PLAIN_ARM,
            canary_share=CANARY_SHARE,
        ),
        plain_share_start=fleet.plain_share_start,
        plain_share_floor=fleet.plain_share_floor,
        margin=settings.tuner.margin,
        guardrails=guardrail_options(settings),
        add_usage=fleet.add_usage,
        seed=settings.tuner.seed,
        aliases={
            name: [Alias(model, one.drafter, one.block_length) for model, one in upstream.aliases.items()]
            for name, upstream in fleet.upstreams.items()
        },
    )


def pools_info(model: str, drafters: Sequence[str]) -> EngineInfo:
    """A fleet in the words of one engine, for metrics; what only an engine of its own could tell is 0."""
    return EngineInfo(
        model=model,
        drafters=tuple(drafters) or (PLAIN,),
        dtype="",
        device="",
        threads=0,
        slots=64,
        blocks=0,
        context_limit=0,
        vocabulary=0,
        linear_seconds=0.0,
        calibration=(),
    )
