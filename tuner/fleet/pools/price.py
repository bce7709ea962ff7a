"""What a request costs on a lane, in seconds of everybody who is served there. Plain arithmetic, for the data path.

    cost = tokens * t(n + 1) * (1 + n * (1 - c(n) / c(n + 1)))  +  prefix * prefill_seconds, away from its session

with n requests in progress, t the seconds per token of this context and c those of the upstream over all that it
serves. While
the request runs, for tokens * t(n + 1) seconds, each of the n others does work that would have taken c(n) / c(n + 1) of
that time without it: the rest is what they lose. The second part is the prefix of the session, which an upstream that
did not serve it has to compute again. Not priced are prefill that holds up the n others, and that a lane which drafts
slows the requests of other lanes on its upstream by more than a plain one does.
"""

from tuner.fleet.pools.snapshot import Curve, LaneSpeed


def seconds_at(curve: Curve, load: int) -> float:
    """`curve` with `load` requests in progress, at least one; between two powers of two linear in the load, and beyond
    the last in proportion to the load."""
    place = load.bit_length() - 1
    if place >= len(curve) - 1:
        last = len(curve) - 1
        return curve[last] * load / (1 << last)
    below = curve[place]
    low = 1 << place
    return below + (curve[place + 1] - below) * (load - low) / low


def cost(lane: LaneSpeed, curve: Curve, load: int, tokens: float, prefix: float) -> float:
    """Seconds for a request of `tokens` output where `load` others are in progress.

    `curve` is its context's on this lane; `prefix` counts prompt tokens that another upstream may still have, 0 here.
    """
    seconds = tokens * seconds_at(curve, load + 1)
    if load:
        seconds *= 1.0 + load * (1.0 - seconds_at(lane.crowd, load) / seconds_at(lane.crowd, load + 1))
    return seconds + prefix * lane.prefill_seconds
