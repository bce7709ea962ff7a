"""What a million output tokens cost on a machine that is paid by the hour."""

from dataclasses import dataclass

TOKENS = 1_000_000
SECONDS_AN_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Of a million output tokens, in the currency of ``engine.price_per_hour``; None while the rate is unknown."""

    tuned: float | None
    plain: float | None


def cost_per_million(price_per_hour: float, tokens_per_second: float | None) -> float | None:
    """The cost of a million tokens at that rate, as if the machine were busy all the time."""
    if not tokens_per_second:
        return None
    return price_per_hour / SECONDS_AN_HOUR * TOKENS / tokens_per_second
