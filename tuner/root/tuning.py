"""The live study of a service: the search space, the guard and the storage that it has there."""

import time
from collections.abc import Callable

from policies import EngineInfo
from policies.ladder import ANY
from policies.records import AuditEntry
from policies.types import Mode
from tuner.controller import Controller
from tuner.guardrails import Standing
from tuner.safety import Gate
from tuner.settings import Settings, SettingsError
from tuner.snapshot import PolicySnapshot
from tuner.tune.knobs import EVERYWHERE, NOTHING_TO_TRY, PER_ROUTE, Ground, Knob, Point, searched
from tuner.tune.live import Hold, LiveOptions, LiveStudy, LiveTuning

_STEERED = (Mode.AUTO, Mode.CANARY)


def live_tuning(
    settings: Settings,
    info: Callable[[], EngineInfo],
    controller: Controller,
    audit: Callable[[AuditEntry], None],
) -> LiveTuning:
    """The study that `paceline tune --live` starts; it opens nothing before. `info` is the engine's as it is now."""
    tune = settings.tune

    def open_study(point: Point) -> LiveStudy:
        from tuner.tune.storage import default_storage, open_storage  # optuna, which a server may do without
        from tuner.tune.study import Study, named

        model, drafters = info().model, info().drafters
        space = _space(settings, drafters)
        if not space:
            raise SettingsError(NOTHING_TO_TRY)
        production = point.values(EVERYWHERE, [knob.name for knob in space])
        identity = {"model": model, "drafters": list(drafters)}
        storage = open_storage(tune.storage or default_storage(settings.database.url))
        name = named("live", EVERYWHERE, space, production, identity)
        return Study(storage, name, space, production, identity, sampler=tune.sampler, seed=settings.tuner.seed)

    return LiveTuning(
        controller,
        open_study,
        lambda: controller.snapshot.cycle_policy.cost,
        lambda: guard_of(controller.snapshot),
        audit,
        LiveOptions(tune.window_seconds, tune.share, tune.windows, tune.trials, tune.margin, settings.tuner.seed),
        clock=time.time,
        monotonic=time.monotonic,
        kept_apart=tuple(name for name, route in settings.routes.items() if route.mode not in _STEERED),
    )


def _space(settings: Settings, drafters: tuple[str, ...]) -> tuple[Knob, ...]:
    """What may be tried: where a route is not Paceline's to steer, only what a route may have of its own."""
    space = searched(settings, EVERYWHERE, drafters, Ground.ENGINE)
    if all(route.mode in _STEERED for route in settings.routes.values()):
        return space
    return tuple(knob for knob in space if knob.name in PER_ROUTE)


def guard_of(snapshot: PolicySnapshot) -> Hold | None:
    """What keeps candidates from serving; the one that serves may be the cause of all but an operator's order."""
    if any(kill.route == ANY for kill in snapshot.kill_switches):
        return Hold("speculation is switched off everywhere", ends_candidate=False)
    for guardrail in snapshot.guardrails:
        if guardrail.standing is Standing.TRIPPED:
            where = "everywhere" if guardrail.route == ANY else f"on the route {guardrail.route}"
            return Hold(f"the guardrail of {guardrail.check.value} has tripped {where}", ends_candidate=True)
    if snapshot.safety.gate is Gate.HELD:
        return Hold("the safety budget is spent", ends_candidate=True)
    return None
