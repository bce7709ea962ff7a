"""Who answers at a URL: the engine, its version, what it serves, and what it tells of how it was launched.

Nothing here generates a token. What an engine tells of its speculation is not taken for what it does: llama.cpp's
``/props`` say ``none`` whatever it was launched with, and its ``/slots`` whether there is a drafter (b11549).
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from tuner.fleet.engines.fetching import Fetched, FetchError, fetch
from tuner.fleet.engines.reading import EngineReading, read_page
from tuner.fleet.types import EngineKind

LOOK_SECONDS = 3.0
"""For each of these requests; they run together."""
_PATHS = (
    "/v1/models",
    "/version",  # vLLM
    "/props",  # llama.cpp
    "/slots",
    "/models",
    "/server_info?config_format=json",  # SGLang; and vLLM in its developer mode, for which the format is
    "/list_external_corpora",
)
_OWNERS = {"vllm": EngineKind.VLLM, "sglang": EngineKind.SGLANG, "llamacpp": EngineKind.LLAMA_CPP}
_SETTINGS = ("speculative", "dp_size", "tp_size", "enable_dp_attention", "device", "enable_lora")
"""What is kept of a server's own word; SGLang tells its keys there too."""
_LOADING = 503
_UNAUTHORISED = (401, 403)
_CHAINS = ("eagle", "eagle3", "nextn", "standalone")


@dataclass(frozen=True, slots=True)
class Identity:
    """What an upstream tells of itself."""

    engine: EngineKind
    version: str
    models: tuple[str, ...]
    adapters: tuple[str, ...]
    """Those of `models` that are adapters of another one."""
    launched: bool | None
    """Whether it has a drafter; None where it does not tell."""
    drafter: str
    """Its kind as the engine spells it, in lower case; empty where it does not tell, or has none."""
    block_length: int
    """0 where it does not tell, or has none."""
    reading: EngineReading | None
    """Its metrics, before anything was asked of it."""
    sentence: str
    """Why there is no reading; empty where there is."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of its launch, as far as they concern speculation."""
    answers: Mapping[str, Fetched] = field(default_factory=dict)
    """What its endpoints said, by path."""

    @property
    def full_blocks(self) -> bool:
        """Whether every cycle proposes as many tokens as the launch says, so that its drafts can be reckoned.

        SGLang's chains do, unless their steps adapt themselves; trees and n-grams propose what they find.
        """
        told = self.settings
        return (
            self.engine is EngineKind.SGLANG
            and self.drafter in _CHAINS
            and told.get("speculative_eagle_topk") == 1
            and told.get("speculative_adaptive") is False
        )

    @property
    def asks_for_a_key(self) -> bool:
        """Whether nobody can tell who answers, since it wants a key, or another one than it got."""
        refused = any(answer.status in _UNAUTHORISED for answer in self.answers.values())
        return self.engine is EngineKind.UNKNOWN and refused

    def answer(self, path: str) -> Fetched | None:
        """What `path` said, if it said 200."""
        found = self.answers.get(path)
        return found if found is not None and found.status == 200 else None


async def identify(url: str, client: httpx.AsyncClient, *, seconds: float = LOOK_SECONDS) -> Identity:
    """Ask the server at `url` who it is.

    Raises:
        FetchError: nothing answers there within `seconds`, or what answers still loads its model.
    """
    found = await asyncio.gather(
        *(fetch(client, url + path, seconds=seconds) for path in (*_PATHS, "/metrics")), return_exceptions=True
    )
    answers: dict[str, Fetched] = {}
    failed: FetchError | None = None
    for path, answer in zip((*_PATHS, "/metrics"), found, strict=True):
        if isinstance(answer, Fetched):
            answers[path.partition("?")[0]] = answer
        elif isinstance(answer, FetchError):
            failed = failed or answer
        else:
            raise answer
    if not answers:
        assert failed is not None
        raise failed
    models = answers.get("/v1/models")
    if models is not None and models.status == _LOADING:
        raise FetchError(f"{url} still loads its model: ask again when {url}/health answers 200.")
    return _identity(answers)


def _identity(answers: Mapping[str, Fetched]) -> Identity:
    reading, sentence = _reading(answers.get("/metrics"))
    listed = _data(answers.get("/v1/models"))
    engine = _engine(answers, reading, listed)
    settings = _settings(answers)
    launched, drafter, block_length = _drafting(engine, answers, reading, settings)
    return Identity(
        engine,
        _version(engine, answers),
        tuple(each["id"] for each in listed),
        tuple(each["id"] for each in listed if each.get("parent")),
        launched,
        drafter,
        block_length,
        reading,
        sentence,
        settings,
        answers,
    )


def _reading(page: Fetched | None) -> tuple[EngineReading | None, str]:
    if page is None or page.status in _UNAUTHORISED:
        return None, "Its metrics did not answer, or not without a key: give its key if it has one."
    reading = read_page(page.text, 0.0, process=page.headers.get("process-start-time-unix", ""))
    if page.status != 200 or reading.engine is EngineKind.UNKNOWN:
        return None, "It has no metrics: launch llama-server with --metrics, SGLang with --enable-metrics."
    return reading, ""


def _engine(answers: Mapping[str, Fetched], reading: EngineReading | None, listed: list[dict[str, Any]]) -> EngineKind:
    if reading is not None:
        return reading.engine
    for each in listed:
        if (owner := str(each.get("owned_by", "")).lower()) in _OWNERS:
            return _OWNERS[owner]
    if any(answer.headers.get("server", "").startswith("llama.cpp") for answer in answers.values()):
        return EngineKind.LLAMA_CPP
    if "speculative_algorithm" in _mapping(answers, "/server_info"):
        return EngineKind.SGLANG
    return EngineKind.UNKNOWN


def _version(engine: EngineKind, answers: Mapping[str, Fetched]) -> str:
    place, name = {
        EngineKind.VLLM: ("/version", "version"),
        EngineKind.LLAMA_CPP: ("/props", "build_info"),
        EngineKind.SGLANG: ("/server_info", "version"),
        EngineKind.UNKNOWN: ("/version", "version"),
    }[engine]
    found = _mapping(answers, place).get(name)
    return found if isinstance(found, str) else ""


def _settings(answers: Mapping[str, Fetched]) -> dict[str, Any]:
    told = _mapping(answers, "/server_info")
    config = told.get("vllm_config")
    if isinstance(config, Mapping) and isinstance(config.get("speculative_config"), Mapping):
        return {"speculative_config": dict(config["speculative_config"])}
    return {key: value for key, value in told.items() if key.startswith(_SETTINGS)}


def _drafting(
    engine: EngineKind, answers: Mapping[str, Fetched], reading: EngineReading | None, settings: Mapping[str, Any]
) -> tuple[bool | None, str, int]:
    """(whether there is a drafter, its kind, the longest block)."""
    launched = reading.speculates if reading is not None else None
    length = (reading.block_length if reading is not None else None) or 0
    if engine is EngineKind.LLAMA_CPP:
        slots = [slot for slot in _listing(answers, "/slots") if isinstance(slot, Mapping)]
        told = [slot["speculative"] for slot in slots if isinstance(slot.get("speculative"), bool)]
        return (any(told) if told else launched), drafter_of_slots(slots), length
    if engine is EngineKind.SGLANG and "speculative_algorithm" in settings:
        algorithm = settings["speculative_algorithm"]
        if not isinstance(algorithm, str):
            return False, "", 0
        tokens = settings.get("speculative_num_draft_tokens")
        return True, algorithm.lower(), max(tokens - 1, 0) if isinstance(tokens, int) else length
    config = settings.get("speculative_config")
    if engine is EngineKind.VLLM and isinstance(config, Mapping):
        tokens = config.get("num_speculative_tokens")
        return True, str(config.get("method") or ""), tokens if isinstance(tokens, int) else length
    return launched, "", length


def models_of(answer: Fetched) -> tuple[str, ...]:
    """What ``/v1/models`` lists."""
    return tuple(each["id"] for each in _data(answer))


def drafter_of_slots(slots: Sequence[Any]) -> str:
    """The drafter in llama.cpp's ``/slots``, which tell it once they have served; empty where they do not."""
    params = [slot.get("params") for slot in slots if isinstance(slot, Mapping)]
    kinds = [one.get("speculative.types") for one in params if isinstance(one, Mapping)]
    return next((kind for kind in kinds if isinstance(kind, str) and kind != "none"), "")


def _mapping(answers: Mapping[str, Fetched], path: str) -> Mapping[str, Any]:
    found = answers.get(path)
    return found.mapping if found is not None and found.status == 200 else {}


def _listing(answers: Mapping[str, Fetched], path: str) -> list[Any]:
    found = answers.get(path)
    return found.listing if found is not None and found.status == 200 else []


def _data(answer: Fetched | None) -> list[dict[str, Any]]:
    found = answer.mapping.get("data") if answer is not None and answer.status == 200 else None
    listed = found if isinstance(found, list) else []
    return [each for each in listed if isinstance(each, dict) and isinstance(each.get("id"), str)]
