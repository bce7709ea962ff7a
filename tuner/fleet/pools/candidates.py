"""The lanes that may serve a request: those that can take one, know its model, and do not refuse what it asks."""

from collections.abc import Collection, Mapping
from typing import Any

from policies.types import PLAIN
from tuner.fleet.features import Trouble, needs_plain
from tuner.fleet.pools.rows import Kind
from tuner.fleet.pools.snapshot import FleetSnapshot, LaneSpeed
from tuner.fleet.types import Asked, EngineKind


def bare_lanes(snapshot: FleetSnapshot, asked: Asked) -> list[LaneSpeed]:
    """Lanes that change nothing of the request, where its model is served; everywhere if that is nowhere.

    A name that no upstream lists is an upstream's to refuse, in its own words.
    """
    up = [one for one in snapshot.lanes if _is_bare(one) and one.lane.upstream in asked.in_flight]
    wanted = asked.body.get("model") if asked.body is not None else None
    return [one for one in up if not one.models or wanted is None or wanted in one.models] or up


def lanes_for(snapshot: FleetSnapshot, asked: Asked, bare: Collection[LaneSpeed]) -> list[LaneSpeed]:
    """`bare` and the lanes beside them on the same upstreams. What the client set itself is left as it is, so lanes
    that would set it are none."""
    body = asked.body or {}
    upstreams = {one.lane.upstream for one in bare}
    return [
        one
        for one in snapshot.lanes
        if one.lane.upstream in upstreams
        and (_is_bare(one) or not any(is_set(body, name) for name, _ in one.lane.fields))
    ]


def sets_length(snapshot: FleetSnapshot, upstream: str, body: Mapping[str, Any]) -> bool:
    """Whether the client set what lanes of `upstream` differ in: then nobody knows which of them it used."""
    return any(
        is_set(body, name) for one in snapshot.lanes if one.lane.upstream == upstream for name, _ in one.lane.fields
    )


def is_set(body: Mapping[str, Any], name: str) -> bool:
    """Whether `body` has the member ``a.b``, written so or as ``b`` of an object ``a``."""
    if name in body:
        return True
    outer, _, inner = name.partition(".")
    within = body.get(outer)
    return bool(inner) and isinstance(within, Mapping) and inner in within


def without_trouble(lanes: Collection[LaneSpeed], body: Mapping[str, Any]) -> list[LaneSpeed]:
    """The lanes that serve `body` as it would be served without speculation."""
    found: dict[tuple[EngineKind, str], Trouble | None] = {}
    left = []
    for one in lanes:
        if one.lane.plain and not one.launched_speculating:
            left.append(one)
            continue
        server = one.engine, one.version
        if server not in found:
            feature = needs_plain(*server, body)
            found[server] = None if feature is None else feature.trouble
        # A server refuses by how it was launched; what it would get wrong, it gets right with a block length of 0.
        if found[server] is None or (one.lane.plain and found[server] is not Trouble.REFUSED):
            left.append(one)
    return left


def of_arm(lanes: Collection[LaneSpeed], drafter: str, block_length: int) -> list[LaneSpeed]:
    """The lanes that do what an operator asked for: the drafter with the nearest block length that is no longer."""
    if drafter == PLAIN or block_length == 0:
        return [one for one in lanes if one.lane.plain]
    drafting = [one for one in lanes if not one.lane.plain and one.lane.drafter == drafter]
    longest = max((one.lane.block_length for one in drafting if 0 < one.lane.block_length <= block_length), default=0)
    return [one for one in drafting if one.lane.block_length == longest]


def kinds_of(lanes: Collection[LaneSpeed]) -> list[Kind]:
    """In order, each once."""
    return list(dict.fromkeys(one.kind for one in lanes))


def _is_bare(one: LaneSpeed) -> bool:
    return one.lane.model is None and not one.lane.fields
