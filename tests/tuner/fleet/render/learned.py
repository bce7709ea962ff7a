"""Policies as a tuner would have learned them, for tests of what is rendered."""

from collections.abc import Sequence

from policies.types import PLAIN, Arm, Context, Evidence, Interval, LoadStep, Policy, PolicyState, Reason
from tuner.fleet.render import Known

MODEL = "smol"


def known(
    name: str,
    steps: Sequence[tuple[int, int, int]],
    *,
    requests: int = 100,
    drafter: str = "ngram",
    survival: Sequence[float] = (),
    predicted: Sequence[tuple[int, float]] = (),
    reason: Reason = Reason.LEARNED,
    speedup: Interval | None = None,
) -> Known:
    """The policy of ``route/language`` with the (load_low, load_high, block length) of each step."""
    route, language = name.split("/")
    schedule = tuple(LoadStep(low, high, length, drafter) for low, high, length in steps)
    arm = Arm(drafter if schedule else PLAIN, schedule)
    state = PolicyState.LEARNING if reason is Reason.EXPLORE else PolicyState.ON if arm.cap else PolicyState.OFF
    evidence = Evidence(400, requests, tuple(survival), speedup, tuple(predicted), "It was compared with plain.")
    return Known(Policy(Context(MODEL, route, language), 3, arm, state, reason, evidence, 100.0), requests)


def geometric(hazard: float, length: int = 8) -> tuple[float, ...]:
    """Survivals of a drafter whose every position is kept with probability `hazard`."""
    return tuple(hazard**position for position in range(1, length + 1))


def emitted(hazard: float, length: int) -> float:
    return 1.0 + sum(geometric(hazard, length))


EDIT = known(
    "edit/code",
    [(1, 3, 8), (4, 7, 4), (8, 16, 0)],
    requests=300,
    survival=geometric(0.9),
    predicted=((1, 2.9), (4, 1.6), (8, 1.0), (16, 1.0)),
    speedup=Interval(2.4, 2.2, 2.6),
)
STORY = known(
    "story/en",
    [(1, 16, 0)],
    requests=100,
    survival=geometric(0.1),
    predicted=((1, 1.0), (4, 1.0), (8, 1.0), (16, 1.0)),
)
