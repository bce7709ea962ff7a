"""What the engine and its server are told of the settings."""

from pathlib import Path

from engine.messages import EngineOptions, Verifier, Watermark
from engine.model_config import ModelError, read_config
from engine.model_fetch import DEFAULT_MODEL, resolve_model
from engine.server.app import ServerOptions
from policies import EngineInfo
from tuner.settings import LEAST_CONTEXT, Settings, SettingsError


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


def _model_name(given: str | None, path: Path) -> str:
    """The last part of what was given; of a Hugging Face id that is not the folder, whose name is a revision's hash."""
    if given is None:
        return DEFAULT_MODEL
    return path.name if Path(given).expanduser().is_dir() else Path(given).name
