"""`paceline doctor --url`: what a server is, what it lets be steered, and whether Paceline is worth it there.

It needs no configuration, ends within `DOCTOR_SECONDS` and changes nothing.
"""

import asyncio
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from tuner.fleet.engines.identity import Identity
from tuner.fleet.engines.known_faults import ENOUGH_CYCLES, ENOUGH_DRAFTED, Facts, known_faults
from tuner.fleet.engines.levers import PLUGIN_OFF, REQUEST_OFF
from tuner.fleet.engines.probe import Found, find_out
from tuner.fleet.engines.reading import EngineDelta, EngineReading, difference
from tuner.fleet.engines.trial import REPEATING, STORY, Trial, Trier
from tuner.fleet.features import Trouble, features
from tuner.fleet.render.lossy import lossy
from tuner.fleet.types import Effect, EngineKind, Lever, Upstream
from tuner.settings import ServerSettings, env_name, is_loopback

DOCTOR_SECONDS = 9.0
_TIMED_TOKENS = 24
_SLOWER = 0.97
"""Below it drafting counts as slower: two requests tell no finer."""
_OTHER_PORT = 8010
"""For a sidecar beside a server that has the sidecar's own port."""
_TOO_FEW = 0.05
"""Acceptance below which drafting brings nothing."""
_OFF: Mapping[Lever, Mapping[str, Any]] = {Lever.PLUGIN: PLUGIN_OFF, Lever.REQUEST_LENGTH: REQUEST_OFF}


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens a second of one request at a time, on one text; the better of two requests each."""

    text: str
    """``repeating`` or ``story``."""
    drafting: float
    plain: float

    @property
    def ratio(self) -> float:
        return self.drafting / self.plain


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the doctor found. None is what could not be known."""

    upstream: Upstream
    launched: bool | None
    """Whether it has a drafter."""
    drafting: bool | None
    """Whether it drafted anything for a text that repeats itself."""
    drafted: float | None
    """Tokens of it."""
    accepted: float | None
    """Of them."""
    served_drafted: float | None
    """Tokens drafted since its start, of everybody's requests."""
    served_acceptance: float | None
    """0..1, of them."""
    served_tokens_per_cycle: float | None
    served_unknown: str
    """Why what was drafted since its start is not known; empty where it is."""
    tokens_per_second: float | None
    """Of one request, as the server decodes by itself, on a text that repeats itself."""
    speeds: tuple[Speed, ...]
    """Empty where nothing that works switches drafting off."""
    warnings: tuple[str, ...]
    advisable: bool
    """False: the advice is not to."""
    sentence: str
    command: str
    """What to paste next."""
    requests: int
    """Sent to find this out."""
    seconds: float


async def examine(
    url: str,
    *,
    key: str | None = None,
    seconds: float = DOCTOR_SECONDS,
    transport: httpx.AsyncBaseTransport | None = None,
) -> Verdict:
    """Examine the server at `url`.

    Args:
        url: with or without a slash or ``/v1`` at its end.
        key: sent as a bearer token, if the server wants one.
        seconds: for all of it.
        transport: for tests, in the place of the network.

    Raises:
        FetchError: nothing answers there, or what answers still loads its model.
    """
    url = url.rstrip("/").removesuffix("/v1").rstrip("/")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    started = asyncio.get_running_loop().time()
    # The environment's proxies are for the world outside, and a fleet is inside.
    async with httpx.AsyncClient(headers=headers, trust_env=False, transport=transport) as client:
        found = await find_out(url, client=client, seconds=seconds)
        speeds = await _speeds(found)
    served = _served(found.identity)
    advisable, sentence, command = _advice(found, served, speeds, key is not None)
    return Verdict(
        found.upstream,
        found.identity.launched if found.upstream.speculates is None else found.upstream.speculates,
        found.bare.drafting,
        found.bare.drafted,
        found.bare.accepted,
        served.drafted if served is not None else None,
        served.acceptance if served is not None else None,
        served.emitted_per_cycle if served is not None else None,
        _unknown(found.identity, served),
        found.bare.tokens_per_second,
        speeds,
        tuple(_warnings(found, served)),
        advisable,
        sentence,
        command,
        found.trier.sent,
        asyncio.get_running_loop().time() - started,
    )


def _served(identity: Identity) -> EngineDelta | None:
    """All that the engine counted since it started, before anything was asked of it here."""
    reading = identity.reading
    if reading is None:
        return None
    return difference(EngineReading(reading.engine, reading.taken_at), reading)


def _unknown(identity: Identity, served: EngineDelta | None) -> str:
    """Why `served` does not tell what was drafted; None of it is zero."""
    if identity.reading is None or served is None:
        return identity.sentence or "Its metrics could not be read."
    if identity.reading.drafted and served.drafted is None:
        return "Its counters contradict each other: more tokens were accepted than drafted."
    if served.cycles is None:
        return "" if identity.launched is False else "Its metrics do not count drafts."
    if served.cycles and served.accepted is None:
        return "Its metrics count drafts, and do not tell what was accepted of them."
    return ""


async def _speeds(found: Found) -> tuple[Speed, ...]:
    """Drafting and plain in turn, if something that works switches it off and there is time."""
    off = next((_OFF[lever] for lever in _OFF if found.upstream.effect(lever) is Effect.WORKS), None)
    if off is None:
        return ()
    speeds = []
    for text, prompt in (("repeating", REPEATING), ("story", STORY)):
        plain, drafting = [], []
        for _ in range(2):
            plain.append(await _timed(found.trier, off, prompt))
            drafting.append(await _timed(found.trier, {}, prompt))
        if best := _both(plain, drafting):
            speeds.append(Speed(text, best[1], best[0]))
    return tuple(speeds)


async def _timed(trier: Trier, fields: Mapping[str, Any], prompt: str) -> Trial:
    return await trier.run(fields, prompt=prompt, tokens=_TIMED_TOKENS)


def _both(plain: list[Trial], drafting: list[Trial]) -> tuple[float, float] | None:
    """(plain, drafting), or None unless every request came back."""
    rates = [[trial.tokens_per_second for trial in trials] for trials in (plain, drafting)]
    found = [[rate for rate in each if rate is not None] for each in rates]
    return None if any(len(each) < 2 for each in found) else (max(found[0]), max(found[1]))


def _warnings(found: Found, served: EngineDelta | None) -> Iterator[str]:
    identity = found.identity
    yield from lossy(identity.settings)
    yield from known_faults(Facts(identity, served))
    if found.upstream.speculates:
        rows = features(identity.engine, identity.version)
        for trouble, said in ((Trouble.REFUSED, "refuses"), (Trouble.WRONG, "gets wrong")):
            fields = ", ".join(dict.fromkeys(row.field for row in rows if row.trouble is trouble))
            if fields:
                yield f"While it drafts it {said} requests with {fields}: the sidecar sends those to a plain pool."


def _advice(found: Found, served: EngineDelta | None, speeds: tuple[Speed, ...], keyed: bool) -> tuple[bool, str, str]:
    """(whether to go on, the verdict in words, what to paste next); `keyed`: a key was given."""
    identity, bare, upstream = found.identity, found.bare, found.upstream
    if identity.asks_for_a_key:
        wants = "another key than the one that was given" if keyed else "a key"
        return (
            False,
            f"Don't yet: it wants {wants}, and without it nothing can be seen of it.",
            f"paceline doctor --url {upstream.url} --key KEY",
        )
    if identity.engine is EngineKind.UNKNOWN:
        return (
            False,
            "Don't: what answers here is no vLLM, llama.cpp or SGLang that tells so.",
            "paceline doctor --url http://HOST:PORT",
        )
    if identity.launched is False and not bare.drafting:
        return (
            False,
            "Don't, with this server alone: it decodes plain, so there is nothing to steer. Launch a second one that "
            "drafts, and this one is the baseline beside it.",
            _launch(identity),
        )
    if bare.drafting is None:
        return False, f"Don't yet: whether it drafts cannot be seen. {bare.sentence}", _see(bare, upstream.url)
    if not bare.drafting:
        return (
            False,
            "Don't: it has a drafter, and drafted nothing of a text that repeats itself.",
            f"curl -s {upstream.url}/metrics | grep spec",
        )
    if nothing := _brings_nothing(served):
        return (
            False,
            f"Don't: since its start {nothing}, so that drafting costs and brings nothing. Launch it without the "
            "drafter.",
            _sidecar(upstream, "this", keyed, " --mode observe"),
        )
    if speeds and all(one.ratio < _SLOWER for one in speeds):
        worst = min(speeds, key=lambda one: one.ratio)
        return (
            False,
            f"Don't: drafting is slower than plain even here, {worst.drafting:.0f} tokens a second against "
            f"{worst.plain:.0f}. Launch it without the drafter, or with a shorter block.",
            _launch(identity),
        )
    return _way(upstream, keyed)


def _brings_nothing(served: EngineDelta | None) -> str:
    """How little of everybody's drafts was accepted, for people; empty where it was more, or says nothing yet."""
    if served is None or (served.cycles or 0.0) < ENOUGH_CYCLES:
        return ""
    drafted, acceptance, emitted = served.drafted or 0.0, served.acceptance, served.emitted_per_cycle
    if drafted >= ENOUGH_DRAFTED and acceptance is not None and acceptance < _TOO_FEW:
        return f"{acceptance:.1%} of {drafted:,.0f} drafted tokens were accepted"
    if emitted is not None and emitted - 1.0 < _TOO_FEW:
        return f"a cycle yields {emitted:.2f} tokens, where a plain one yields 1"
    return ""


def _way(upstream: Upstream, keyed: bool) -> tuple[bool, str, str]:
    """How to steer a server that drafts."""
    steered = [lever for lever in Lever if upstream.effect(lever) is Effect.WORKS]
    if steered:
        ports = " --admin-port 8001 --plugin-port 8002" if Lever.PLUGIN in steered else ""
        return (
            True,
            "Go on: it drafts, and its block length can be steered while it serves.",
            _sidecar(upstream, "", keyed, f"{ports} --mode advise"),
        )
    if upstream.engine is EngineKind.VLLM:
        return (
            True,
            "Go on: it drafts. As it runs nothing switches that by request; with the plug-in everything can be, "
            "request by request.",
            "paceline plugin vllm --out .",
        )
    return (
        True,
        "Go on, with a second server: it drafts, and nothing switches that by request, so that what can be steered is "
        "which requests come here and which go to a server that decodes plain.",
        _sidecar(upstream, "drafting", keyed, " --upstream plain=http://HOST:PORT --mode advise"),
    )


def _sidecar(upstream: Upstream, name: str, keyed: bool, options: str) -> str:
    """The line that starts one, whose own ports are not the server's; a server without a name is called ``a``."""
    variable = env_name(f"fleet.upstreams.{name or 'a'}.api_key")
    where = urlsplit(upstream.url)
    taken = is_loopback(where.hostname or "") and where.port == ServerSettings().port
    port = f" --port {_OTHER_PORT}" if taken else ""
    named = f"{name}=" if name else ""
    return f"{f'{variable}=KEY ' * keyed}paceline sidecar --upstream {named}{upstream.url}{port}{options}"


def _launch(identity: Identity) -> str:
    model = shlex.quote(next(iter(identity.models), "MODEL"))
    if identity.engine is EngineKind.VLLM:
        config = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 4}'
        return (
            f"python -m vllm.entrypoints.openai.api_server --model {model} --port 8080 --speculative-config '{config}'"
        )
    if identity.engine is EngineKind.SGLANG:
        return (
            f"python -m sglang.launch_server --model-path {model} --port 30001 --speculative-algorithm NGRAM "
            "--speculative-num-draft-tokens 4 --enable-metrics"
        )
    return "llama-server -m MODEL.gguf --port 8081 --metrics --spec-type ngram-simple"


def _see(bare: Trial, url: str) -> str:
    if bare.status in (401, 403):
        return f"paceline doctor --url {url} --key KEY"
    return f"curl -s {url}/metrics | grep spec"
