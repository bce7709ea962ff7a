"""The safety budget, told what an engine did."""

from dataclasses import replace

import pytest

from policies.types import Context
from tests.tuner.simulated_engine import MODEL, TRUE_COST, calibration, cycle, sequence
from tests.tuner.telemetry_examples import INFO
from tuner.learning import Learning
from tuner.safeguard import Safeguard

CHAT = Context(MODEL, "chat", "en")
INFORMED = replace(INFO, calibration=calibration())
LOAD = 4


def guarded() -> Safeguard:
    return Safeguard(0.02, Learning(INFORMED, 16, 1.10))


def lose(safeguard: Safeguard, cycles: int, *, forced: bool, drafting: float = 0.0) -> None:
    """Blocks of 8 of which nothing is kept."""
    for number in range(cycles):
        sequences = [replace(sequence(CHAT, key=key), forced=forced) for key in range(LOAD)]
        tokens, kv_tokens = LOAD * 9, LOAD * 300
        seconds = TRUE_COST.seconds(tokens, LOAD, kv_tokens) + drafting
        drafted = {"ngram": drafting} if drafting else {}
        safeguard.fold(
            cycle(
                load=LOAD,
                tokens=tokens,
                kv_tokens=kv_tokens,
                seconds=seconds,
                number=number,
                sequences=sequences,
                draft_seconds=drafted,
            )
        )
        safeguard.judge()


@pytest.mark.parametrize("drafting", [0.0, 0.01])
def test_what_operators_force_at_a_loss_does_not_spend_the_budget_of_what_is_learned(drafting: float) -> None:
    safeguard = guarded()
    lose(safeguard, 400, forced=True, drafting=drafting)
    assert not safeguard.state.held
    assert safeguard.state.budget_seconds == pytest.approx(safeguard.state.cap_seconds)
    lose(safeguard, 400, forced=False)
    assert safeguard.state.held


def test_beside_a_forced_sequence_the_others_answer_for_their_own_rows_alone() -> None:
    """A forced block that is kept whole does not pay for the drafts of the others, nor they for one that is lost."""
    for kept in (0, 8):
        safeguard = guarded()
        for number in range(1000):
            forced = replace(sequence(CHAT, key=0, accepted=kept), forced=True)
            others = [sequence(CHAT, key=key, verified=1, proposed=1, accepted=0) for key in range(1, LOAD)]
            safeguard.fold(
                cycle(
                    load=LOAD,
                    tokens=LOAD + 8 + 3,
                    kv_tokens=1200,
                    seconds=TRUE_COST.seconds(LOAD + 8 + 3, LOAD, 1200),
                    number=number,
                    sequences=[forced, *others],
                )
            )
            safeguard.judge()
        assert safeguard.state.held
