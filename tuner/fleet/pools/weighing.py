"""Which lane a request is given where what is learned decides: the cheapest, or one that is tried.

Lanes are weighed by their cost for everybody (`price`), made dearer by what is unknown of them: a lane that nobody has
seen is not taken for as good as one that is known. What may be better for all that is known is tried by a bounded
share of the requests, and every kind of lane by a few, since what was slow may have become fast.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from tuner.fleet.pools.price import cost, seconds_at
from tuner.fleet.pools.rows import PLAIN_KIND, Kind
from tuner.fleet.pools.sessions import Home
from tuner.fleet.pools.snapshot import ContextSpeed, FleetSnapshot, LaneSpeed, Trials
from tuner.safety import Gate

TRIED_SHARE = 0.2
"""Of requests, while some kind of lane may be better than the best known."""
PROBED_SHARE = 0.005
"""Of requests, given to a kind that is known to be worse."""
_CAUTION = 1.0
"""Standard errors by which a lane is made dearer."""
_HOPE = 1.645
"""Standard errors by which a kind that is tried may be better than it looks."""
_SURE = 1.645
"""Standard errors by which a lane must beat plain once the safety budget is low."""
_CAUTIOUS = attrgetter("cautious")


class Offer(NamedTuple):
    """One lane for one request."""

    lane: LaneSpeed
    seconds: float
    """Its cost."""
    error: float
    """Standard error of its logarithm."""
    cautious: float
    """Its cost, dearer by what is unknown of it."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """What was found."""

    best: Offer
    tried: tuple[Offer, ...]
    """The cheapest of each other kind that may be tried."""
    tried_share: float
    """The chance that one of them is given, each as likely."""


def offers_of(
    lanes: Collection[LaneSpeed],
    context: ContextSpeed | None,
    in_flight: Mapping[str, int],
    tokens: float,
    home: Home | None,
) -> list[Offer]:
    """The cost of each lane for a request with `tokens` of expected output."""
    offers = []
    for one in lanes:
        load = in_flight[one.lane.upstream]
        away = home.tokens if home is not None and home.upstream != one.lane.upstream else 0.0
        curve, error = one.curve, one.error
        if context is not None and one.lane.name in context.curves:
            curve = context.curves[one.lane.name]
            error = seconds_at(context.errors[one.kind], load + 1)
        seconds = cost(one, curve, load, tokens, away)
        offers.append(Offer(one, seconds, error, seconds * math.exp(_CAUTION * error)))
    return offers


def weigh(offers: Collection[Offer], before: Kind | None, snapshot: FleetSnapshot, trials: Trials) -> Weighed:
    """The best of `offers`, of which there is one at least; `before` is the kind that its context was given last."""
    by_kind: dict[Kind, Offer] = {}
    for offer in offers:
        kind = offer.lane.kind
        if kind not in by_kind or offer.cautious < by_kind[kind].cautious:
            by_kind[kind] = offer
    plain = by_kind.get(PLAIN_KIND)
    allowed = by_kind
    if plain is not None and trials.gate is not Gate.OPEN:
        allowed = {
            kind: offer
            for kind, offer in by_kind.items()
            if offer is plain
            or (trials.gate is Gate.PROVEN and offer.seconds * math.exp(_SURE * offer.error) < plain.seconds)
        }
    best = min(allowed.values(), key=_CAUTIOUS)
    staying = allowed.get(before) if before is not None else None
    if staying is not None and best.cautious > (1.0 - snapshot.margin) * staying.cautious:
        best = staying
    if plain is not None and trials.gate is not Gate.OPEN:
        return Weighed(best, (), 0.0)
    others = tuple([offer for offer in by_kind.values() if offer is not best])
    hopeful = tuple([offer for offer in others if offer.seconds * math.exp(-_HOPE * offer.error) < best.seconds])
    if hopeful:
        return Weighed(best, hopeful, TRIED_SHARE)
    return Weighed(best, others, PROBED_SHARE if others else 0.0)


def chance_of_plain(found: Weighed) -> float:
    """That plain is given where what is learned decides."""
    if found.best.lane.kind == PLAIN_KIND:
        return 1.0 - found.tried_share
    return found.tried_share / len(found.tried) if PLAIN_KIND in (one.lane.kind for one in found.tried) else 0.0
