"""Generated traces: what the scenario file says is what is in them."""

import itertools
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import yaml

from policies.types import MAX_BLOCK_LENGTH
from tuner.replay.fixed_play import FixedRuns
from tuner.replay.generate import generate
from tuner.replay.reblock import Reblocked
from tuner.replay.scenarios import SCENARIO_FILE, ScenarioBook, ScenarioError, load_scenarios, shipped_scenarios
from tuner.replay.trace import Trace, TracedRequest

BOOK = shipped_scenarios()


def first_right(requests: list[TracedRequest], drafter: str) -> float:
    """The share of output positions whose token a drafter has right, of those at which it offers one."""
    offered = kept = 0
    for one in requests:
        draft = one.drafts[drafter]
        offered += sum(count > 0 for count in draft.offered)
        kept += sum(count > 0 for count in draft.kept)
    return kept / offered


def of(trace: Trace, route: str, language: str, first: int = 0, last: int | None = None) -> list[TracedRequest]:
    return [one for one in trace.requests[first:last] if (one.route, one.language) == (route, language)]


@pytest.mark.parametrize("name", BOOK.scenarios)
def test_every_scenario_makes_a_trace_that_keeps_the_rules_of_traces(name: str) -> None:
    trace = generate(BOOK, name, 3)
    assert len(trace.requests) == len(trace.loads) == BOOK.scenarios[name].requests
    assert max(trace.loads) <= trace.slots
    for one in trace.requests:
        assert BOOK.output_tokens.least <= one.output_tokens <= BOOK.output_tokens.most
        for drafter in trace.drafters:
            draft = one.drafts[drafter]
            offered, kept, confidence = (
                np.frombuffer(part, dtype=np.uint8).astype(int)
                for part in (draft.offered, draft.kept, draft.confidence)
            )
            assert len(offered) == len(kept) == len(confidence) == one.output_tokens
            assert offered.max() <= MAX_BLOCK_LENGTH
            assert (kept <= offered).all()
            assert (kept <= one.output_tokens - np.arange(one.output_tokens)).all()
            assert ((confidence == 0) == (offered == 0)).all()
            assert confidence.max() <= trace.confidence_buckets[drafter]


def test_the_largest_scenario_is_made_in_under_a_second() -> None:
    largest = max(BOOK.scenarios, key=lambda name: BOOK.scenarios[name].requests)
    started = time.process_time()
    generate(BOOK, largest, 3)
    assert time.process_time() - started < 1.0


def test_a_seed_is_a_trace_and_seeds_and_scenarios_are_independent() -> None:
    assert generate(BOOK, "mixed", 7) == generate(BOOK, "mixed", 7)
    assert generate(BOOK, "mixed", 7).requests != generate(BOOK, "mixed", 8).requests
    assert generate(BOOK, "restart-memory", 7).requests != generate(BOOK, "restart-cold", 7).requests


def test_learned_drafters_are_right_as_often_as_the_file_says() -> None:
    traces = [generate(BOOK, "mixed", seed) for seed in range(4)]
    for drafter, learned in BOOK.learned.items():
        for language in ("en", "de", "da"):
            chat = [one for trace in traces for one in of(trace, "chat", language)]
            assert first_right(chat, drafter) == pytest.approx(learned.right[language], abs=0.06)


def test_acceptance_of_one_request_is_correlated_and_so_are_its_drafters() -> None:
    trace = generate(BOOK, "mixed", 2)
    chat = of(trace, "chat", "en")
    shares = np.array([[first_right([one], drafter) for drafter in ("general", "special")] for one in chat])
    lengths = np.array([one.output_tokens for one in chat])
    mean = shares.mean(axis=0)
    independent = (mean * (1.0 - mean))[None, :] / lengths[:, None]
    assert (shares.var(axis=0) > 1.5 * independent.mean(axis=0)).all(), "requests differ by more than luck"
    assert np.corrcoef(shares.T)[0, 1] > 0.2


def test_confidence_tells_what_will_be_kept() -> None:
    trace = generate(BOOK, "mixed", 2)
    for drafter in trace.drafters:
        right: dict[int, list[bool]] = {}
        for one in trace.requests:
            draft = one.drafts[drafter]
            for kept, confidence in zip(draft.kept, draft.confidence, strict=True):
                right.setdefault(confidence, []).append(kept > 0)
        shares = [np.mean(right[bucket]) for bucket in sorted(right) if bucket and len(right[bucket]) > 200]
        assert shares[-1] > shares[0] + 0.2


def test_copying_drafters_are_silent_in_chat_and_copy_long_in_edits() -> None:
    trace = generate(BOOK, "mixed", 2)
    for drafter in ("ngram", "suffix"):
        chat, edits = of(trace, "chat", "en"), of(trace, "code-edit", "code")
        silent = sum(one.drafts[drafter].offered.count(0) for one in chat) / sum(one.output_tokens for one in chat)
        assert silent > 0.8
        runs = [count for one in edits for count in one.drafts[drafter].kept]
        assert np.mean(np.array(runs) >= 8) > 0.3


def test_bursts_come_in_runs() -> None:
    def correlation(name: str) -> float:
        chat = [one for seed in range(3) for one in of(generate(BOOK, name, seed), "chat", "en")]
        right = [np.array([kept > 0 for kept in one.drafts["general"].kept], dtype=float) for one in chat]
        centre = np.mean(np.concatenate(right))
        pairs = [((row[:-1] - centre) * (row[1:] - centre)) for row in right]
        return float(np.mean(np.concatenate(pairs)) / (centre * (1.0 - centre)))

    assert correlation("bursty") > correlation("mixed") + 0.1


def test_changes_change_what_they_say_and_nothing_else() -> None:
    for name, better in (("drafter-upgrade", True), ("drafter-regression", False)):
        trace = generate(BOOK, name, 5)
        (change,) = trace.changes
        before = first_right(of(trace, "chat", "en", 0, change), "general")
        after = first_right(of(trace, "chat", "en", change), "general")
        assert (after > before + 0.08) if better else (after < before - 0.2)
        special = [first_right(of(trace, "chat", "en", *part), "special") for part in ((0, change), (change, None))]
        assert special[0] == pytest.approx(special[1], abs=0.08)


def test_the_adversary_makes_drafters_change_places_and_back_with_a_period_of_at_least_1000_requests() -> None:
    trace = generate(BOOK, "adversarial", 5)
    assert trace.changes[1] >= 1000
    bounds = (0, *trace.changes, len(trace.requests))
    better = [
        first_right(of(trace, "chat", "en", first, last), "general")
        > first_right(of(trace, "chat", "en", first, last), "special")
        for first, last in itertools.pairwise(bounds)
    ]
    assert better == [True, False, True, False]


def test_mixes_shift_and_new_contexts_come_when_they_are_said_to() -> None:
    shift = generate(BOOK, "language-shift", 5)
    english = [
        sum(one.language == "en" for one in part) / len(part) for part in (shift.requests[:600], shift.requests[600:])
    ]
    assert english[0] > 2 * english[1]
    for name in ("new-language", "new-alone"):
        scenario, trace = BOOK.scenarios[name], generate(BOOK, name, 5)
        assert scenario.arrival is not None
        assert trace.arrival == (scenario.arrival.route, scenario.arrival.language)
        assert not of(trace, *trace.arrival, 0, scenario.arrival.request)
        assert len(of(trace, *trace.arrival)) >= 150
        earlier = Counter((one.route, one.language) for one in trace.requests[: scenario.arrival.request])
        routes, languages = {route for route, _ in earlier}, {language for _, language in earlier}
        relatives = trace.arrival[0] in routes and trace.arrival[1] in languages
        assert relatives == scenario.arrival.relatives


def test_costs_change_with_the_bucket_and_the_machine() -> None:
    trace = generate(BOOK, "cost-change", 5)
    (first, dear), (second, slow) = trace.later_costs
    assert (first, second) == trace.changes
    assert dear.target.seconds(20, 4, 0) == pytest.approx(1.35 * trace.costs.target.seconds(20, 4, 0), rel=0.01)
    assert dear.target.seconds(40, 4, 0) == trace.costs.target.seconds(40, 4, 0)
    assert slow.target.seconds(40, 4, 900) == pytest.approx(1.4 * dear.target.seconds(40, 4, 900))


def test_a_calibration_errs_by_as_much_as_the_file_says() -> None:
    errors = []
    for seed in range(15):
        trace = generate(BOOK, "cost-change", seed)
        assert trace.calibrated is not None
        pairs = zip(trace.calibrated.target.knot_seconds, trace.costs.target.knot_seconds, strict=True)
        errors += [found / true - 1.0 for found, true in pairs]
    assert np.std(errors) == pytest.approx(BOOK.noise.calibration_sd, rel=0.15)


def test_the_gpu_has_a_bucket_that_is_cheaper_than_a_smaller_one() -> None:
    target = generate(BOOK, "stationary-gpu", 1).costs.target
    assert target.seconds(17, 1, 0) < target.seconds(16, 1, 0)


def test_drafters_gain_about_what_was_measured_of_them() -> None:
    trace = generate(BOOK, "mixed", 1)
    played = FixedRuns(Reblocked(trace)).play("suffix", 6)
    ends = np.cumsum(played.cycle_count)
    edits = [index for index, one in enumerate(trace.requests) if one.route == "code-edit"]
    cycles = sum(int(played.cycle_count[index]) for index in edits)
    assert ends[-1] == len(played.emitted)
    emitted = sum(trace.requests[index].output_tokens for index in edits) / cycles
    assert 2.5 < emitted < 5.0, "docs/results/drafters.json: 3.7 times plain at load 1"


def test_held_out_seeds_are_none_of_those_for_tuning() -> None:
    assert BOOK.tuning(20) == tuple(range(20))
    assert BOOK.held_out(20) == tuple(range(1000, 1020))
    with pytest.raises(ScenarioError, match=r"^21 held-out seeds were asked for, and there are 20: give 1 to 20\.$"):
        BOOK.held_out(21)


def spoilt(tmp_path: Path, change: str, by: str) -> Path:
    text = SCENARIO_FILE.read_text()
    assert change in text
    path = tmp_path / "scenarios.yaml"
    path.write_text(text.replace(change, by, 1))
    return path


@pytest.mark.parametrize(
    ("change", "by", "sentence"),
    [
        ("mix: usual", "mix: unusual", "scenarios.stationary-cpu.mix names 'unusual', which is none of usual, "),
        (
            "    stationary: true\n",
            "    stationery: true\n",
            "scenarios.stationary-cpu.stationery is True: Extra inputs",
        ),
        ("start: 0.004", "start: 1.5", "routes.chat.copies.start is 1.5: Input should be less than or equal to 1."),
        ("restarts: [600]", "restarts: [6000]", "request 6000 is not one of 1 to 1199: move it inside."),
        ("held_out: [1000, 1019]", "held_out: [10, 29]", "give held-out seeds above those for tuning"),
        ("hold: 40}", "hold: 40, period: 3}", "give hold, levels and nothing else to the kind levels"),
        ("token_knots: [1, 4,", "token_knots: [4, 1,", "give rising token_knots and as many knot_seconds."),
        ("seeds:", "seeds: [", "scenarios.yaml is no YAML ("),
    ],
)
def test_a_file_that_says_anything_else_is_one_sentence(tmp_path: Path, change: str, by: str, sentence: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        load_scenarios(spoilt(tmp_path, change, by))
    message = str(caught.value)
    assert sentence in message
    assert "\n" not in message
    assert message.endswith(".")


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"^none\.yaml cannot be read \(.*\): give a file that can\.$"):
        load_scenarios(tmp_path / "none.yaml")


def test_every_number_of_the_file_is_used() -> None:
    written = yaml.safe_load(SCENARIO_FILE.read_text())
    assert set(written) == set(ScenarioBook.model_fields)
