"""What plain lanes take at each load, from plain requests alone.

Gains are priced by it within a load's power of two, where plain and what is served may stand at different ends. There
`speeds` would not do: where little is plain it borrows the slope of lanes that draft, whose passes fill sooner.
"""

import numpy as np

from tuner.fleet.pools.counts import BINS
from tuner.fleet.pools.mixed_model import Term, fit
from tuner.fleet.pools.rows import Floats, Ints, Rows
from tuner.fleet.pools.speeds import completed

_SPREADS = (1.0, 0.1, 0.1)
"""Guesses of how much loads, contexts, and contexts at a load vary."""
_ROUNDS = 3


def plain_curves(rows: Rows, at: Ints, noise: float) -> Floats:
    """(contexts, BINS): ln(seconds per token), from the rows `at`; `noise` is the variance between requests."""
    contexts = len(rows.contexts)
    requests, tokens = rows.of("requests")[at], np.maximum(rows.of("tokens")[at], 1e-9)
    raw = np.log(np.maximum(rows.of("micros")[at], 1e-9) / 1e6 / tokens)
    loads = np.log2(np.maximum(rows.of("loads")[at] / tokens / 1000.0, 1.0))
    bins, context = rows.bin[at], rows.context[at]
    groups = bins, context, context * BINS + bins
    sizes = BINS, contexts, contexts * BINS
    terms = [Term(group, size, spread) for group, size, spread in zip(groups, sizes, _SPREADS, strict=True)]
    known = np.bincount(bins, requests, BINS)
    middle = float((raw * requests).sum() / max(float(requests.sum()), 1e-9))
    curve: Floats = np.zeros(BINS)
    found = np.zeros((contexts, BINS))
    for _ in range(_ROUNDS):
        # Each row is read at the middle of its bin, along the curve found so far.
        away = np.interp(loads, np.arange(BINS), curve) - curve[bins]
        effects = fit(raw - away - middle, requests, terms, noise).effects
        curve = completed(effects[0] + middle, np.asarray(known))
        found = curve[None, :] + effects[1][:, None] + effects[2].reshape(contexts, BINS)
    return found
