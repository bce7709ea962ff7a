"""The configuration: its groups and keys, with defaults that need no file at all.

One YAML file and ``PACELINE_*`` variables, read by `tuner.settings_loader`. A key is written ``group.key`` in messages
and ``PACELINE_GROUP__KEY`` in the environment. The docstring of a field is its help, in docs/reference.md too.
"""

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from policies.quoting import listed
from policies.types import PLAIN, Mode
from tuner.fleet.settings import AliasSettings, FleetSettings, UpstreamSettings
from tuner.setting_types import BlockLength, DrafterName, Drafters, Group, Key, Port, RouteMode, RouteName, Text, parted

ENV_PREFIX = "PACELINE_"
AUTO = "auto"
"""In place of the drafters' names: every one that fits the model."""
DEFAULT_ROUTES = ("code-edit", "extract", "chat", "story")


class SettingsError(Exception):
    """The configuration cannot be used; each line of the message is one sentence with a key, its value and a remedy."""


def drafter_name(given: str) -> str:
    """The name under which a drafter serves: of a folder its last part, else what was given, without its device."""
    source, separator, _ = given.rpartition("@")
    return Path(source if separator else given).name


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address; a name that is no address counts only as `localhost`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


LEAST_CONTEXT = 64
"""Tokens that a context may at least have."""
LEAST_KV_BLOCKS = LEAST_CONTEXT // 16
"""Blocks that hold as many."""


class ModelSettings(Group):
    """The target."""

    path: Text | None = None
    """Folder or Hugging Face id of a Llama, Mistral, Qwen2 or Qwen3 model; without it the default model is fetched."""
    name: Text | None = None
    """The name that clients give; without it the last part of the path."""
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """auto takes bfloat16 for weights stored in 16 bits and where the processor computes in it."""
    threads: Annotated[int, Field(ge=0, le=1024)] = 0
    """Threads of the engine process; 0 measures which number is best at start."""


class EngineSettings(Group):
    """The engine process."""

    slots: Annotated[int, Field(ge=1, le=256)] = 16
    """Sequences that may run together."""
    context_limit: Annotated[int, Field(ge=LEAST_CONTEXT)] = 2048
    """Tokens of prompt and output together."""
    prefill_chunk: Annotated[int, Field(ge=1, le=1 << 16)] = 128
    """Prompt tokens processed in one cycle."""
    drafters: Drafters = (AUTO,)
    """Drafters to load: auto for all that fit, or some of ngram, suffix, those of `paceline draft list`, folders."""
    default_drafter: DrafterName | None = None
    """The drafter that is learned; without it the first that is loaded, ngram under auto."""
    draft_stop: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.07
    """A learned drafter ends a draft before the product of its confidences falls under this; 0 never does."""
    draft_temperature: Annotated[float, Field(gt=0.0, le=10.0)] = 1.0
    """What a request's temperature is multiplied by while a learned drafter drafts; greedy requests do not read it."""
    suffix_min_score: Annotated[float, Field(gt=0.0, le=1.0)] = 0.3
    """The suffix drafter ends a draft before the product of its probabilities falls under this."""
    suffix_shared_routes: Annotated[tuple[RouteName, ...], BeforeValidator(parted)] = ()
    """Routes on which the suffix drafter reads earlier requests' outputs too; timing then tells of them."""
    verifier: Literal["coupled", "rejection", "block"] = "coupled"
    """How drafts are verified; only coupled gives the same text for a seed whatever drafts."""
    watermark_key: Annotated[int, Field(ge=0, lt=1 << 64)] | None = None
    """Key of the watermark on every output; without it there is one only where a request asks for it."""
    watermark_gamma: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.25
    """Share of the vocabulary that is green after any token, under watermark_key."""
    watermark_delta: Annotated[float, Field(ge=0.0, le=100.0)] = 2.0
    """Added to the logits of green tokens, under watermark_key."""
    kv_blocks: Annotated[int, Field(ge=0)] = 0
    """Blocks of 16 tokens in the KV cache, at least 4, which bound a context too; 0: what every slot needs."""
    prefix_reuse: bool = True
    """Whether a prompt takes over what an earlier one with the same beginning has computed; timing then tells of it."""
    price_per_hour: Annotated[float, Field(gt=0.0)] | None = None
    """What the machine costs an hour, in any currency; gives the cost of a million tokens."""
    ngram_min_match: Annotated[int, Field(ge=1)] = 2
    """Shortest match for which the n-gram drafter proposes."""
    ngram_max_match: Annotated[int, Field(ge=1)] = 16
    """Longest match that the n-gram drafter looks for."""
    max_block_length: BlockLength = 12
    """Largest block length that is learned; a pin may go to 16."""

    @property
    def drafter_names(self) -> tuple[str, ...]:
        """What a decision may name, plain first."""
        return (PLAIN, *(drafter_name(given) for given in self.drafters))

    @property
    def learned_drafter(self) -> str:
        """The drafter that is learned."""
        return self.default_drafter or self.drafter_names[1]

    def loads(self, name: str) -> bool:
        """Whether a decision may name it, as far as the configuration alone can tell."""
        return AUTO in self.drafters or name in self.drafter_names

    @field_validator("kv_blocks")
    @classmethod
    def _blocks_of_a_context(cls, value: int) -> int:
        if 0 < value < LEAST_KV_BLOCKS:
            raise ValueError(
                f"give at least {LEAST_KV_BLOCKS}, which hold a context of {LEAST_CONTEXT} tokens, or 0 for what every "
                "slot needs"
            )
        return value

    @model_validator(mode="after")
    def _match_lengths(self) -> Self:
        if self.ngram_min_match > self.ngram_max_match:
            raise ValueError(
                f"ngram_min_match is {self.ngram_min_match}, above ngram_max_match, which is {self.ngram_max_match}: "
                "lower the first or raise the second"
            )
        return self

    @model_validator(mode="after")
    def _drafters_by_name(self) -> Self:
        names = self.drafter_names
        if len(set(names)) < len(names) or "" in names:
            raise ValueError(
                f"drafters is {', '.join(self.drafters)!r}: give each a name of its own, and not {PLAIN!r}, which is "
                "always there"
            )
        if AUTO in names and len(self.drafters) > 1:
            raise ValueError(f"drafters is {', '.join(self.drafters)!r}: auto stands alone, since it takes every one")
        if not self.loads(self.learned_drafter):
            raise ValueError(f"default_drafter is {self.default_drafter!r}: use one of {', '.join(names)}")
        return self


class ServerSettings(Group):
    """The data path."""

    host: Text = "127.0.0.1"
    """Address of the OpenAI-compatible server."""
    port: Port = 8000
    """Its port; 0 takes a free one."""


class AdminSettings(Group):
    """The admin port."""

    host: Text = "127.0.0.1"
    """Address of the admin API; any but a loopback address needs a token."""
    port: Port = 8001
    """Its port; 0 takes a free one."""
    token: Key | None = None
    """Bearer token that /api/v1 asks for."""

    @model_validator(mode="after")
    def _token_unless_loopback(self) -> Self:
        if self.token is None and not is_loopback(self.host):
            raise ValueError(
                f"host is {self.host!r}, which others can reach, and there is no token: set admin.token, or set "
                "admin.host to 127.0.0.1"
            )
        return self


class DatabaseSettings(Group):
    """The SQL store."""

    url: Text = "sqlite:///paceline.db"
    """SQLAlchemy URL of the store."""


class DefaultArm(Group):
    """What serves on a route as long as nothing is learned."""

    drafter: DrafterName = PLAIN
    """The drafter, one of engine.drafters or none."""
    block_length: BlockLength = 0
    """Tokens that it proposes in a cycle; 0 is plain."""

    @model_validator(mode="after")
    def _drafter_with_length(self) -> Self:
        if (self.drafter == PLAIN) != (self.block_length == 0):
            raise ValueError(
                f"drafter is {self.drafter!r} and block_length is {self.block_length}: drafter {PLAIN!r} goes with 0 "
                "and every other drafter with 1 or more"
            )
        return self


class KnobSettings(Group):
    """Settings of the engine that a route may have its own of; `paceline tune` finds them."""

    ngram_min_match: Annotated[int, Field(ge=1)] | None = None
    """engine.ngram_min_match on this route."""
    ngram_max_match: Annotated[int, Field(ge=1)] | None = None
    """engine.ngram_max_match on this route."""
    suffix_min_score: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """engine.suffix_min_score on this route."""
    draft_stop: Annotated[float, Field(ge=0.0, lt=1.0)] | None = None
    """engine.draft_stop on this route."""
    draft_temperature: Annotated[float, Field(gt=0.0, le=10.0)] | None = None
    """engine.draft_temperature on this route."""


class SloSettings(Group):
    """What a route's requests are to keep in 95 of 100 cases; speculation that stands in the way is stopped."""

    ttft_p95_seconds: Annotated[float, Field(gt=0.0)] | None = None
    """Seconds to the first token, from the arrival of the request; without it none is asked for."""
    tpot_p95_seconds: Annotated[float, Field(gt=0.0)] | None = None
    """Seconds per output token after the first; without it none is asked for."""


class RouteSettings(Group):
    """One route."""

    mode: RouteMode = Mode.AUTO
    """What Paceline may do there: off, observe, advise, canary or auto."""
    default_arm: DefaultArm | None = None
    """What serves there as long as nothing is learned; without it the engine's default, plain."""
    knobs: KnobSettings | None = None
    """Settings of the engine that are this route's own."""
    slo: SloSettings = SloSettings()


class GuardrailSettings(Group):
    """When a route is held plain, because what it serves while it speculates breaks a bar and chance is ruled out."""

    enabled: bool = True
    """Whether anything is watched."""
    max_error_share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.02
    """Share of a route's requests that may fail, unless as many of its plain ones do."""
    max_invalid_share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.02
    """Share of structured outputs that may not have the form that was asked of them."""
    least_free_memory: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.03
    """Share of the memory that must be left, else every route is held plain."""
    cooldown_seconds: Annotated[float, Field(gt=0.0)] = 300.0
    """How long a route is held before a tenth of its requests tries again; longer after failures in a row."""


class TunerSettings(Group):
    """How speculation is weighed and the baseline measured."""

    margin: Annotated[float, Field(ge=0.0, le=1.0)] = 0.02
    """Predicted gain over plain below which speculation stays off."""
    max_neighbour_slowdown: Annotated[float, Field(ge=1.0)] = 1.10
    """What a running sequence's seconds per token may become, in multiples of plain, when others speculate."""
    switchback_share_start: Annotated[float, Field(ge=0.0, le=0.5)] = 0.02
    """Share of time in plain windows at the start; 0 measures no baseline."""
    switchback_share_floor: Annotated[float, Field(ge=0.0, le=0.5)] = 0.01
    """Share of time in plain windows once the baseline is known well."""
    switchback_window_seconds: Annotated[float, Field(gt=0.0)] = 0.25
    """Length of a plain window."""
    tick_seconds: Annotated[float, Field(gt=0.0, le=60.0)] = 0.02
    """How often telemetry is folded and windows may switch."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seeds everything that the tuner draws."""

    @model_validator(mode="after")
    def _floor_below_start(self) -> Self:
        if self.switchback_share_floor > self.switchback_share_start > 0.0:
            raise ValueError(
                f"switchback_share_floor is {self.switchback_share_floor}, above switchback_share_start, which is "
                f"{self.switchback_share_start}: lower the first"
            )
        return self


class TuneSettings(Group):
    """`paceline tune`: the slow loop."""

    live: bool = False
    """Whether a server goes on with its study while it serves; `paceline tune --live` starts and stops it too."""
    share: Annotated[float, Field(gt=0.0, le=0.5)] = 0.1
    """Largest share of time in which a server serves with what is tried."""
    window_seconds: Annotated[float, Field(gt=0.0)] = 2.0
    """Length of a window in which one candidate serves."""
    windows: Annotated[int, Field(ge=4)] = 20
    """Windows of a candidate; to be adopted it has to win in as many again."""
    trials: Annotated[int, Field(ge=1)] = 30
    """Candidates that one live study tries at most."""
    margin: Annotated[float, Field(ge=0.0, le=1.0)] = 0.01
    """A candidate is adopted if the lower bound of its speed over production's is above 1 by this."""
    sampler: Literal["tpe", "gp"] = "tpe"
    """What proposes candidates: a tree-structured Parzen estimator, or a Gaussian process."""
    storage: Text | None = None
    """SQLAlchemy URL of the studies; without it a database of their own beside database.url."""


class Settings(BaseSettings):
    """Everything that can be set. `Settings()` is the defaults: files and environment come from the loader."""

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
        use_attribute_docstrings=True,
    )

    model: ModelSettings = ModelSettings()
    engine: EngineSettings = EngineSettings()
    server: ServerSettings = ServerSettings()
    admin: AdminSettings = AdminSettings()
    database: DatabaseSettings = DatabaseSettings()
    routes: dict[RouteName, RouteSettings] = {name: RouteSettings() for name in DEFAULT_ROUTES}
    """The closed set of routes, by name; traffic that names none of them is `other`."""
    tuner: TunerSettings = TunerSettings()
    guardrails: GuardrailSettings = GuardrailSettings()
    tune: TuneSettings = TuneSettings()
    fleet: FleetSettings = FleetSettings()

    @model_validator(mode="after")
    def _groups_agree(self) -> Self:
        names = self.engine.drafter_names
        for name in self.engine.suffix_shared_routes:
            if name not in self.routes:
                raise ValueError(
                    f"engine.suffix_shared_routes has {name!r}: use some of {listed(self.routes)}, or add the route"
                )
        for name, route in self.routes.items():
            if route.default_arm is not None and not self.engine.loads(route.default_arm.drafter):
                raise ValueError(
                    f"routes.{name}.default_arm.drafter is {route.default_arm.drafter!r}: use one of "
                    f"{', '.join(names)}, or add it to engine.drafters"
                )
            shortest, longest = self.engine.ngram_min_match, self.engine.ngram_max_match
            if route.knobs is not None:
                shortest = route.knobs.ngram_min_match or shortest
                longest = route.knobs.ngram_max_match or longest
            if shortest > longest:
                raise ValueError(
                    f"routes.{name}.knobs gives n-gram matches of at least {shortest} and at most {longest} tokens: "
                    "lower ngram_min_match or raise ngram_max_match"
                )
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only the arguments: the loader layers the sources itself, so that it can tell where a value comes from."""
        return (init_settings,)


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One row of the table of settings."""

    name: str
    """``group.key``; `<ROUTE>`, `<NAME>` and `<MODEL>` stand for names of a route, an upstream, a model."""
    env: str
    default: str
    help: str


def setting_rows() -> tuple[SettingRow, ...]:
    """Every setting, in the order of the configuration; docs/reference.md is made from it."""
    return tuple(_rows(Settings, ()))


def _rows(group: type[BaseModel], path: tuple[str, ...]) -> Iterator[SettingRow]:
    for key, field in group.model_fields.items():
        if key == "routes":
            yield from _rows(RouteSettings, ("routes", "<ROUTE>"))
        elif key == "upstreams":
            yield from _rows(UpstreamSettings, (*path, key, "<NAME>"))
        elif key == "aliases":
            yield from _rows(AliasSettings, (*path, key, "<MODEL>"))
        elif key == "default_arm":
            yield from _rows(DefaultArm, (*path, key))
        elif key == "knobs":
            yield from _rows(KnobSettings, (*path, key))
        elif isinstance(field.annotation, type) and issubclass(field.annotation, Group):
            yield from _rows(field.annotation, (*path, key))
        else:
            name = ".".join((*path, key))
            yield SettingRow(name, env_name(name), _shown(field.default), " ".join((field.description or "").split()))


def env_name(name: str) -> str:
    """The environment variable of the setting ``group.key``."""
    return ENV_PREFIX + name.upper().replace(".", "__").replace("-", "_")


def _shown(default: Any) -> str:
    if isinstance(default, tuple):
        return ",".join(default)
    return "" if default is None or default is PydanticUndefined else str(default)
