"""What cells borrow from their relatives, how much, and how soon a new pair is known well enough."""

import math

import numpy as np
import pytest

from policies.types import Context
from tests.tuner.acceptance.text import Text, cycles_of
from tuner.acceptance import Acceptance, Curve

ROUTES = {"edit": 1.2, "chat": 0.0, "story": -1.0, "code": 0.6}
LANGUAGES = {"en": 0.4, "de": 0.0, "da": -1.2}
BLOCK_SECONDS = 0.15
"""What each draft adds to a cycle that takes 1 without any."""


def chance(route: str, language: str) -> float:
    return 1.0 / (1.0 + math.exp(-(ROUTES[route] + LANGUAGES[language])))


def serve(acceptance: Acceptance, route: str, language: str, requests: int, generator: np.random.Generator) -> None:
    """Requests of 40 tokens whose ease varies around their context's."""
    mean = ROUTES[route] + LANGUAGES[language]
    texts = []
    for _ in range(requests):
        ease = 1.0 / (1.0 + math.exp(-(mean + generator.normal(0.0, 0.3))))
        right = (generator.random(56) < ease).tolist()
        key = int(generator.integers(1 << 40))
        texts.append(Text(key, key, 40, (8,), 0.0, 0.0, right, Context("m", route, language)))
    for stats in cycles_of(texts):
        acceptance.fold(stats)
    for text in texts:
        acceptance.finish(text.key)


def regret(curve: Curve, route: str, language: str) -> float:
    """Share of throughput that the block length with the best expectation loses to the truly best one."""
    right = chance(route, language)
    truth = [sum(right**j for j in range(k + 1)) / (1.0 + BLOCK_SECONDS * k) for k in range(9)]
    seen = [tokens / (1.0 + BLOCK_SECONDS * k) for k, tokens in enumerate(curve.emitted[:9])]
    return 1.0 - truth[int(np.argmax(seen))] / max(truth)


def curve_of(acceptance: Acceptance, route: str, language: str) -> Curve:
    return acceptance.curves("ngram", [(route, language)])[1][route, language]


@pytest.mark.parametrize(("route", "language"), [("edit", "da"), ("story", "en"), ("chat", "da"), ("code", "de")])
def test_a_new_pair_is_within_two_percent_of_its_oracle_in_10_requests_with_relatives(
    route: str, language: str
) -> None:
    lost = []
    for seed in range(10):
        generator = np.random.default_rng(seed)
        acceptance = Acceptance()
        for other in ROUTES:
            for tongue in LANGUAGES:
                if (other, tongue) != (route, language):
                    serve(acceptance, other, tongue, 30, generator)
        serve(acceptance, route, language, 10, generator)
        lost.append(regret(curve_of(acceptance, route, language), route, language))
    assert np.mean(lost) < 0.02
    assert np.mean(np.array(lost) < 0.02) >= 0.9


@pytest.mark.parametrize(("route", "language"), [("edit", "en"), ("chat", "de"), ("story", "da")])
def test_a_new_pair_is_within_two_percent_of_its_oracle_in_100_requests_without_relatives(
    route: str, language: str
) -> None:
    lost = []
    for seed in range(10):
        acceptance = Acceptance()
        serve(acceptance, route, language, 100, np.random.default_rng(seed))
        lost.append(regret(curve_of(acceptance, route, language), route, language))
    assert max(lost) < 0.02


def test_a_pair_that_was_never_seen_starts_from_its_route_and_its_language() -> None:
    generator = np.random.default_rng(1)
    acceptance = Acceptance()
    for route in ROUTES:
        for language in LANGUAGES:
            if (route, language) != ("edit", "da"):
                serve(acceptance, route, language, 40, generator)
    curve = curve_of(acceptance, "edit", "da")
    assert curve.blocks == 0
    assert curve.unconditioned[0] == pytest.approx(chance("edit", "da"), abs=0.1)
    assert curve.low[0] < chance("edit", "da") < curve.high[0]


def blocks(acceptance: Acceptance, language: str, count: int, share: float) -> None:
    for index in range(count):
        acceptance.add_block("ngram", "chat", language, 1, 1, int((index * 0.618034) % 1.0 < share))


def pulled(shares: list[float]) -> float:
    """How far 40 blocks of a new language, all rejected, are pulled to relatives of these shares."""
    acceptance = Acceptance(half_life_blocks=1e9)
    for number, share in enumerate(shares):
        blocks(acceptance, f"l{number}", 2000, share)
    blocks(acceptance, "new", 40, 0.0)
    return curve_of(acceptance, "chat", "new").unconditioned[0]


def test_relatives_that_are_alike_say_more_than_relatives_that_differ() -> None:
    alike, unlike = pulled([0.5] * 12), pulled([0.02, 0.98] * 6)
    assert unlike < 0.06
    assert alike > 3.0 * unlike


@pytest.mark.parametrize("others", [0, 1, 2])
def test_few_relatives_leave_the_strength_near_its_prior(others: int) -> None:
    assert 0.0 < pulled([0.5] * others) < 0.25


def test_nothing_known_gives_a_wide_interval_and_much_known_a_narrow_one() -> None:
    acceptance = Acceptance()
    new = curve_of(acceptance, "chat", "en")
    assert new.high[0] - new.low[0] > 0.9
    assert new.emitted_high[4] - new.emitted_low[4] > 2.0
    blocks(acceptance, "en", 3000, 0.6)
    known = curve_of(acceptance, "chat", "en")
    assert known.low[0] < 0.6 < known.high[0]
    assert known.high[0] - known.low[0] < 0.1


def test_only_what_changed_by_enough_is_made_again() -> None:
    acceptance = Acceptance()
    keys = [("chat", f"language-{index}") for index in range(30)]
    for _, language in keys:
        blocks(acceptance, language, 1000, 0.6)
    before = acceptance.curves("ngram", keys)
    blocks(acceptance, "language-0", 50, 0.6)
    assert acceptance.curves("ngram", keys) == before, "fifty blocks of a thousand tell nothing"
    blocks(acceptance, "language-0", 360, 0.6)
    after = acceptance.curves("ngram", keys)
    assert [before[1][key] is after[1][key] for key in keys] == [False, *[True] * 29]
    for _, language in keys:
        blocks(acceptance, language, 150, 0.6)
    later = acceptance.curves("ngram", keys)
    assert not any(after[1][key] is later[1][key] for key in keys), "relatives learned enough"
