"""What whatever steers is told of the settings."""

from policies import Arm
from tuner.controller import ControllerOptions
from tuner.guardrails import GuardrailOptions, Objective
from tuner.settings import Settings
from tuner.switchback import SwitchbackOptions
from tuner.tune.knobs import production_point


def controller_options(settings: Settings, switchback: bool) -> ControllerOptions:
    """Without `switchback` no plain windows open."""
    tuner = settings.tuner
    slos = {name: route.slo for name, route in settings.routes.items()}
    return ControllerOptions(
        modes={name: route.mode for name, route in settings.routes.items()},
        route_defaults=route_defaults(settings),
        drafter=settings.engine.learned_drafter,
        max_block_length=settings.engine.max_block_length,
        margin=tuner.margin,
        knobs=production_point(settings).knobs,
        max_neighbour_slowdown=tuner.max_neighbour_slowdown,
        tpot_limits={name: slo.tpot_p95_seconds for name, slo in slos.items() if slo.tpot_p95_seconds is not None},
        guardrails=guardrail_options(settings),
        switchback=SwitchbackOptions(
            window_seconds=tuner.switchback_window_seconds,
            share_start=tuner.switchback_share_start if switchback else 0.0,
            share_floor=tuner.switchback_share_floor if switchback else 0.0,
        ),
        seed=tuner.seed,
    )


def route_defaults(settings: Settings) -> dict[str, Arm]:
    """What serves on routes as long as nothing is learned, by route."""
    return {
        name: Arm.fixed(route.default_arm.drafter, route.default_arm.block_length)
        for name, route in settings.routes.items()
        if route.default_arm is not None
    }


def guardrail_options(settings: Settings) -> GuardrailOptions:
    guardrails = settings.guardrails
    slos = {name: route.slo for name, route in settings.routes.items()}
    return GuardrailOptions(
        enabled=guardrails.enabled,
        objectives={name: Objective(slo.ttft_p95_seconds, slo.tpot_p95_seconds) for name, slo in slos.items()},
        max_error_share=guardrails.max_error_share,
        max_invalid_share=guardrails.max_invalid_share,
        least_free_memory=guardrails.least_free_memory,
        cooldown_seconds=guardrails.cooldown_seconds,
    )
