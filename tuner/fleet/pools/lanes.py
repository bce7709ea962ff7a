"""From upstreams to lanes: the ways in which a request may be sent to each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from policies.types import PLAIN, UNKNOWN_LENGTH
from tuner.fleet.types import UNKNOWN_DRAFTER, Effect, EngineKind, Lane, Lever, Upstream

LENGTHS = (0, 2, 4, 8, 16)
"""Block lengths that a request may ask for, beside the longest that its upstream was launched with."""
RESIDENT_NOTE = (
    "plain here is a block length of 0 on a server that keeps its drafter, which vLLM users measured as 6 to 21 % "
    "slower than a server without one: the gain over a true plain pool may be smaller"
)
"""Source: vllm#49548 and #49986, on an H100 NVL."""
_LENGTH_FIELD: Mapping[EngineKind, str] = {EngineKind.LLAMA_CPP: "speculative.n_max"}
"""The member of a body that asks for a block length, where a build honours it."""


@dataclass(frozen=True, slots=True)
class Alias:
    """A model of one server that differs from its others in drafting only, as the configuration says."""

    model: str
    drafter: str
    block_length: int


def lanes_of(upstreams: Sequence[Upstream], aliases: Mapping[str, Sequence[Alias]] | None = None) -> tuple[Lane, ...]:
    """Every lane of `upstreams`; the first of each upstream is itself, with nothing changed.

    Where a block length in the request was seen to work there is a lane for each of a few lengths, 0 among them: that
    is plain without a second server (see `RESIDENT_NOTE`); where nobody knows the longest, for 0 alone. `aliases` are
    by upstream.
    """
    found: list[Lane] = []
    for upstream in upstreams:
        drafter, longest = _drafting(upstream)
        found.append(Lane(upstream.name, upstream.name, drafter, longest))
        field = _LENGTH_FIELD.get(upstream.engine)
        if field is not None and longest and upstream.effect(Lever.REQUEST_LENGTH) is Effect.WORKS:
            for length in LENGTHS:
                if length < max(longest, 1):
                    name = f"{upstream.name}/{drafter}-{length}" if length else f"{upstream.name}/plain"
                    given = drafter if length else PLAIN
                    found.append(Lane(name, upstream.name, given, length, fields=((field, length),)))
        if upstream.effect(Lever.ALIASES) is Effect.WORKS:
            found.extend(
                Lane(f"{upstream.name}/{alias.model}", upstream.name, alias.drafter, alias.block_length, alias.model)
                for alias in (aliases or {}).get(upstream.name, ())
            )
    return tuple(found)


def is_resident_plain(lane: Lane) -> bool:
    """Whether a lane decodes plain by what the request says, on a server that keeps its drafter."""
    return lane.plain and bool(lane.fields)


def _drafting(upstream: Upstream) -> tuple[str, int]:
    """(drafter, block length); `UNKNOWN_LENGTH` where nobody knows it. What may speculate is no baseline."""
    if upstream.speculates is False:
        return PLAIN, 0
    drafter = upstream.drafter if upstream.drafter != PLAIN else UNKNOWN_DRAFTER
    return drafter, upstream.block_length or UNKNOWN_LENGTH
