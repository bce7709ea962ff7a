"""Estimates as the snapshot that crosses to the data path."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from tuner.fleet.pools.rows import PLAIN_KIND, Floats
from tuner.fleet.pools.snapshot import ContextSpeed, Curve, LaneSpeed
from tuner.fleet.pools.speeds import Speeds
from tuner.fleet.types import Lane, Upstream

_BEYOND = 2
"""Powers of two beyond the largest load that was served."""
_PREFILL_SHARE = 0.05
"""Seconds for a token of a prompt over those for one of the output, while nothing is known."""
_PREFILL_WORTH = 20 * 200.0**2
"""What that guess is worth: twenty prompts that are 200 tokens apart."""
_OUTPUT_TOKENS = 128.0
_OUTPUT_WORTH = 2.0


def knots(speeds: Speeds) -> int:
    """Powers of two at which seconds are published."""
    loads = speeds.rows.bin
    return int(loads.max(initial=0)) + 1 + _BEYOND


def lane_speeds(speeds: Speeds, upstreams: Mapping[str, Upstream]) -> tuple[LaneSpeed, ...]:
    """What is known of each lane over all contexts, in their order."""
    rows = speeds.rows
    curves = speeds.curves[rows.lane_kinds] + speeds.lane_effects[:, None]
    served = np.array([rows.of("requests")[rows.lane == number].sum() for number in range(len(rows.lanes))]) + 1e-3
    found = []
    for number, lane in enumerate(rows.lanes):
        beside = [place for place, other in enumerate(rows.lanes) if other.upstream == lane.upstream]
        upstream = upstreams[lane.upstream]
        curve = np.exp(curves[number])
        found.append(
            LaneSpeed(
                lane=lane,
                engine=upstream.engine,
                version=upstream.version,
                models=upstream.models,
                curve=_published(curve, speeds),
                error=speeds.new_errors[rows.lane_kinds[number]],
                crowd=_published(np.exp(np.average(curves[beside], axis=0, weights=served[beside])), speeds),
                prefill_seconds=_prefill(speeds, number, float(curve[0])),
                launched_speculating=upstream.speculates is not False,
            )
        )
    return tuple(found)


def context_speeds(speeds: Speeds) -> dict[tuple[str, str, str], ContextSpeed]:
    """By (model, route, language)."""
    rows = speeds.rows
    requests, tokens = _by_context(speeds, "requests"), _by_context(speeds, "tokens")
    every = tokens.sum() / requests.sum() + 1.0 if requests.sum() else _OUTPUT_TOKENS
    seconds = np.exp(speeds.values)
    found = {}
    for number, key in enumerate(rows.contexts):
        mean = (tokens[number] + requests[number] + _OUTPUT_WORTH * every) / (requests[number] + _OUTPUT_WORTH)
        found[key.model, key.route, key.language] = ContextSpeed(
            curves={
                lane.name: _published(
                    seconds[rows.lane_kinds[place], number] * math.exp(speeds.lane_effects[place]), speeds
                )
                for place, lane in enumerate(rows.lanes)
            },
            errors={kind: _published(speeds.errors[place, number], speeds) for place, kind in enumerate(rows.kinds)},
            output_tokens=float(mean),
        )
    return found


def plain_effect(speeds: Speeds) -> float:
    """Of ln(seconds): what plain lanes are off, by the requests that they served."""
    plain = [place for place, lane in enumerate(speeds.rows.lanes) if lane.plain]
    weights = np.array([speeds.rows.of("requests")[speeds.rows.lane == place].sum() for place in plain])
    return float((weights * speeds.lane_effects[plain]).sum() / weights.sum()) if weights.sum() else 0.0


def plain_seconds(speeds: Speeds, context: int, load: float, effect: float) -> tuple[float, float] | None:
    """Plain's seconds per token in a context at `load`, and the standard error of their logarithm; None while plain is
    not known there. `effect` is from `plain_effect`."""
    rows = speeds.rows
    if PLAIN_KIND not in rows.kinds:
        return None
    plain = rows.kinds.index(PLAIN_KIND)
    if not speeds.requests[plain, context]:
        return None
    at, bins = math.log2(max(load, 1.0)), np.arange(speeds.values.shape[2])
    value = float(np.interp(at, bins, speeds.values[plain, context]))
    return math.exp(value + effect), float(np.interp(at, bins, speeds.errors[plain, context]))


def kind_seconds(speeds: Speeds, lane: int, context: int, load: float) -> float:
    """Seconds per token of a lane in a context at `load`, both by their places."""
    values = speeds.values[speeds.rows.lane_kinds[lane], context]
    value = float(np.interp(math.log2(max(load, 1.0)), np.arange(len(values)), values))
    return math.exp(value + float(speeds.lane_effects[lane]))


def place_of(lanes: Sequence[Lane], name: str) -> int | None:
    """The number of the lane called `name`."""
    return next((place for place, lane in enumerate(lanes) if lane.name == name), None)


def _published(curve: Floats, speeds: Speeds) -> Curve:
    return tuple(float(f"{value:.4g}") for value in curve[: knots(speeds)])


def _by_context(speeds: Speeds, name: str) -> Floats:
    rows = speeds.rows
    return np.asarray(np.bincount(rows.context, rows.of(name), len(rows.contexts)), dtype=np.float64)


def _prefill(speeds: Speeds, lane: int, decode_seconds: float) -> float:
    """Seconds for one more token of prompt: the slope of the wait for the first byte, drawn to a guess."""
    rows = speeds.rows
    here = rows.lane == lane
    prompts, fresh, waits, squares, products = (
        float(rows.of(name)[here].sum()) for name in ("prompts", "fresh", "waits", "fresh_squares", "fresh_waits")
    )
    if not prompts:
        return _PREFILL_SHARE * decode_seconds
    above = (products - fresh * waits / prompts) / 1e6
    below = max(0.0, squares - fresh * fresh / prompts)
    return max(0.0, (above + _PREFILL_WORTH * _PREFILL_SHARE * decode_seconds) / (below + _PREFILL_WORTH))
