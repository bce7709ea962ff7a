"""What the engine, its server and the tuner are told of the settings."""

from pathlib import Path

from engine.messages import EngineOptions, Verifier, Watermark
from engine.model_config import ModelError, read_config
from engine.model_fetch import DEFAULT_MODEL, resolve_model
from engine.server.app import ServerOptions
from policies import Arm, EngineInfo
from tuner.controller import ControllerOptions
from tuner.guardrails import GuardrailOptions, Objective
from tuner.settings import LEAST_CONTEXT, Settings, SettingsError
from tuner.switchback import SwitchbackOptions
from tuner.tune.knobs import production_point


def engine_options(settings: Settings) -> EngineOptions:
    """What the engine process is told.

    Raises:
        SettingsError: model.path names nothing that can be served, or engine.context_limit is more than it reads.
        ModelError: the model could not be had from elsewhere.
    """
    try:
        path = resolve_model(settings.model.path or DEFAULT_MODEL)
        longest = read_config(path).max_position
    except ModelError as error:
        if error.__cause__ is None and settings.model.path is not None:
            raise SettingsError(f"{error}.") from error  # nothing failed on the way: the setting itself is wrong
        raise
    if settings.engine.context_limit > longest:
        raise SettingsError(
            f"engine.context_limit is {settings.engine.context_limit}: give {LEAST_CONTEXT} to {longest}, the most "
            "that the model reads."
        )
    return EngineOptions(
        model_path=str(path),
        model_name=settings.model.name or _model_name(settings.model.path, path),
        dtype=settings.model.dtype,
        threads=settings.model.threads,
        slots=settings.engine.slots,
        context_limit=settings.engine.context_limit,
        prefill_chunk=settings.engine.prefill_chunk,
        ngram_min_match=settings.engine.ngram_min_match,
        ngram_max_match=settings.engine.ngram_max_match,
        drafters=settings.engine.drafters,
        draft_stop=settings.engine.draft_stop,
        suffix_shared_routes=settings.engine.suffix_shared_routes,
        kv_blocks=settings.engine.kv_blocks,
        prefix_reuse=settings.engine.prefix_reuse,
        verifier=settings.engine.verifier,
    )


def server_options(settings: Settings, info: EngineInfo, admin_url: str) -> ServerOptions:
    engine = settings.engine
    watermark = None
    if engine.watermark_key is not None:
        watermark = Watermark(engine.watermark_gamma, engine.watermark_delta, engine.watermark_key)
    return ServerOptions(
        model=info.model,
        routes=frozenset(settings.routes),
        context_limit=info.context_limit,
        verifier=Verifier(engine.verifier),
        watermark=watermark,
        admin_url=admin_url,
    )


def controller_options(settings: Settings, switchback: bool) -> ControllerOptions:
    tuner = settings.tuner
    slos = {name: route.slo for name, route in settings.routes.items()}
    guardrails = settings.guardrails
    return ControllerOptions(
        modes={name: route.mode for name, route in settings.routes.items()},
        route_defaults={
            name: Arm.fixed(route.default_arm.drafter, route.default_arm.block_length)
            for name, route in settings.routes.items()
            if route.default_arm is not None
        },
        drafter=settings.engine.learned_drafter,
        max_block_length=settings.engine.max_block_length,
        margin=tuner.margin,
        knobs=production_point(settings).knobs,
        max_neighbour_slowdown=tuner.max_neighbour_slowdown,
        tpot_limits={name: slo.tpot_p95_seconds for name, slo in slos.items() if slo.tpot_p95_seconds is not None},
        guardrails=GuardrailOptions(
            enabled=guardrails.enabled,
            objectives={name: Objective(slo.ttft_p95_seconds, slo.tpot_p95_seconds) for name, slo in slos.items()},
            max_error_share=guardrails.max_error_share,
            max_invalid_share=guardrails.max_invalid_share,
            least_free_memory=guardrails.least_free_memory,
            cooldown_seconds=guardrails.cooldown_seconds,
        ),
        switchback=SwitchbackOptions(
            window_seconds=tuner.switchback_window_seconds,
            share_start=tuner.switchback_share_start if switchback else 0.0,
            share_floor=tuner.switchback_share_floor if switchback else 0.0,
        ),
        seed=tuner.seed,
    )


def _model_name(given: str | None, path: Path) -> str:
    """The last part of what was given; of a Hugging Face id that is not the folder, whose name is a revision's hash."""
    if given is None:
        return DEFAULT_MODEL
    return path.name if Path(given).expanduser().is_dir() else Path(given).name
