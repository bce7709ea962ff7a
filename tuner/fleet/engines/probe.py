"""What an upstream is and lets be steered, found out on connect.

A handful of tiny requests, each marked with ``paceline-probe``, in bounded time; nothing that lasts is changed.
"""

import asyncio
from dataclasses import dataclass

import httpx

from policies.types import PLAIN
from tuner.fleet.engines import levers
from tuner.fleet.engines.identity import Identity, drafter_of_slots, identify
from tuner.fleet.engines.trial import LONG, Trial, Trier
from tuner.fleet.types import UNKNOWN_DRAFTER, EngineKind, Upstream

PROBE_SECONDS = 8.0
"""For all of it; what there was no time for is unknown, and says so."""


@dataclass(frozen=True, slots=True)
class Found:
    """An upstream, and what it was seen to do."""

    upstream: Upstream
    identity: Identity
    bare: Trial
    """Of a text that repeats itself, with nothing switched."""
    trier: Trier
    """For who wants to try more in the time that is left."""


async def probe(url: str, *, client: httpx.AsyncClient, name: str = "", seconds: float = PROBE_SECONDS) -> Upstream:
    """The upstream at `url`, which has no slash at its end.

    Args:
        client: its headers go with every request, a key among them.
        name: of the upstream.
        seconds: for all of it.

    Raises:
        FetchError: nothing answers there, or what answers still loads its model.
    """
    return (await find_out(url, client=client, name=name, seconds=seconds)).upstream


async def find_out(url: str, *, client: httpx.AsyncClient, name: str = "", seconds: float = PROBE_SECONDS) -> Found:
    """`probe`, with what was seen on the way. Raises as it does."""
    deadline = asyncio.get_running_loop().time() + seconds
    identity = await identify(url, client, seconds=min(seconds / 2, 3.0))
    model = next((one for one in identity.models if one not in identity.adapters), "")
    trier = Trier(url, client, identity.engine, model, deadline)
    bare = await _bare(trier, identity)
    capabilities = (
        await levers.plugin(trier, identity, bare),
        await levers.request_length(trier, identity, bare),
        await levers.aliases(trier, identity),
        levers.corpora(identity),
    )
    speculates = _speculates(identity, bare)
    drafter = identity.drafter or await _drafter_of_slots(trier, identity, bare) or UNKNOWN_DRAFTER
    upstream = Upstream(
        name,
        url,
        identity.engine,
        identity.version,
        identity.models,
        speculates,
        PLAIN if speculates is False else drafter,
        0 if speculates is False else identity.block_length,
        capabilities,
    )
    return Found(upstream, identity, bare, trier)


async def _bare(trier: Trier, identity: Identity) -> Trial:
    """A text that repeats itself; longer where nothing was drafted of the short one, and that can be had in time."""
    short = await trier.run()
    rate = short.tokens_per_second
    if short.drafting is False and identity.launched is not False and rate and LONG / rate < trier.left() / 3:
        return await trier.run(tokens=LONG)
    return short


async def _drafter_of_slots(trier: Trier, identity: Identity, bare: Trial) -> str:
    """llama.cpp tells it only once it has served a request."""
    if identity.engine is not EngineKind.LLAMA_CPP or not bare.drafting or identity.answer("/slots") is None:
        return ""
    return drafter_of_slots((await trier.look("/slots")).listing)


def _speculates(identity: Identity, bare: Trial) -> bool | None:
    """Seen to draft; or known to have no drafter; else nobody knows."""
    if bare.drafting:
        return True
    return False if identity.launched is False else None
