"""What `paceline tune` is asked to search, and how its studies are named."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuner.settings import Settings
from tuner.tune.knobs import EVERYWHERE, Ground, Knob, production_values
from tuner.tune.search import SearchOptions
from tuner.tune.storage import default_storage
from tuner.tune.study import SamplerName, named


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """The options of the command."""

    ground: Ground = Ground.ENGINE
    scopes: Sequence[str] = (EVERYWHERE,)
    """Routes, each with a study of its own, or ``*`` for what serves wherever a route has no knobs of its own."""
    search: SearchOptions = field(default_factory=SearchOptions)
    sampler: SamplerName = "tpe"
    study: str | None = None
    """Without it a name that follows from all that the trials depend on: the same command goes on where it was."""
    storage: str | None = None
    out: Path | None = None
    concurrency: int = 4
    """``engine``: requests at a time."""
    prompts: int = 12
    """``engine``: of a round."""
    tokens: int = 64
    """``engine``: longest output."""
    trace: Path | None = None
    """``replay``: a file of `paceline trace record`."""

    def storage_url(self, settings: Settings) -> str:
        """Where the studies are kept. Raises StoreUrlError."""
        return self.storage or settings.tune.storage or default_storage(settings.database.url)

    def study_name(self, settings: Settings, scope: str, space: Sequence[Knob], identity: Mapping[str, Any]) -> str:
        """The name of a scope's study."""
        if self.study is not None:
            return f"{self.study}/{scope}"
        return named(self.ground.value, scope, space, production_values(settings, scope, space), identity)
