"""What a merged schedule rests on, in sentences: they go with it as comments."""

from collections.abc import Iterator

from tuner.fleet.render.merging import Known, Merged, Share, Step
from tuner.wording import counted

_BEARABLE = 1.0 / 1.1
"""What a sidecar aims at for each route by default (`max_neighbour_slowdown`), and a table for all cannot keep."""
_MOST_LOSSES = 20


def account(merged: Merged) -> tuple[str, ...]:
    """The schedule; each route with its traffic and measured gain; who loses by it, and how much; who is left out."""
    words = ", ".join(f"{_words(length)} at {Step(low, high, length, ()).loads}" for low, high, length in merged.ranges)
    # Those with the most traffic first, since only so many are listed.
    places = sorted(
        ((share, step) for step in merged.steps for share in step.shares), key=lambda place: -place[0].weight
    )
    losses = [sentence for share, step in places for sentence in _losses(share, step)]
    more = len(losses) - _MOST_LOSSES
    return (
        f"{merged.drafter}: {words}." if merged.longest else "Plain at every load.",
        *(_route(known, merged) for known in merged.counted),
        *losses[:_MOST_LOSSES],
        *([f"So do routes of less traffic: {more} more such places."] if more > 0 else ()),
        *(f"{known.name} is not counted: {why}." for known, why in merged.left_out),
    )


def _words(length: int) -> str:
    return f"K={length}" if length else "plain"


def _route(known: Known, merged: Merged) -> str:
    evidence = known.policy.evidence
    weight = next(share.weight for share in merged.steps[0].shares if share.known is known)
    found = evidence.speedup
    measured = (
        "its gain is not measured"
        if found is None
        else f"measured {found.estimate:.2f}x plain ({found.low:.2f} to {found.high:.2f})"
    )
    seen = f"{counted(known.requests, 'request')}, {weight:.0%} of the traffic"
    return f"{known.name} ({seen}): {measured}. {evidence.note}"


def _losses(share: Share, step: Step) -> Iterator[str]:
    """What a route does worse with the table than alone, with figures where they are known."""
    name = share.known.name
    if share.other:
        yield f"{name} has {share.other} at {step.loads}, and a launch has one drafter: it counts as plain there."
    if share.own == step.block_length:
        return
    alone, here = _words(share.own), _words(step.block_length)
    own, merged = share.gain(share.own), share.gain(step.block_length)
    if own is None or merged is None:
        yield f"{name} asks for {alone} at {step.loads} and gets {here}; what it loses is not known."
    elif merged < own:
        guessed = step.block_length and not share.own and not share.known.policy.evidence.survival
        worst = " if nothing is accepted there" if guessed else ""
        slower = f", slower than plain by {1.0 / merged - 1.0:.0%}" if merged < 1.0 else ""
        remedy = ": give it a plain server of its own" if merged < _BEARABLE else ""
        yield (
            f"{name} loses at {step.loads}: {alone} alone is {own:.2f}x plain, {here} for all is "
            f"{merged:.2f}x{worst}{slower}{remedy}."
        )
