"""Recordings of a real engine on a tiny model: a replay of them does, cycle by cycle, what the engine does."""

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest

from engine.drafter_files import DrafterKind
from engine.messages import EngineOptions, Sampling, Submit
from engine.tracing import RefusedError, TracingEngine
from policies import PLAIN, Context, DraftCost, PassCost
from policies.stats import CycleStats, DraftTiming, SequenceStats
from policies.types import MAX_BLOCK_LENGTH
from tests.engine.decoder_runs import random_tokens
from tests.engine.scripted import decision, submit
from tests.engine.tiny_drafter import make_tiny_drafter
from tests.engine.tiny_model import make_tiny_model
from tests.tuner.simulated_engine import cycle, sequence
from tuner.replay import recording
from tuner.replay.recording import RecordingError, loads_of, make_trace, noise_of
from tuner.replay.session_costs import session_costs
from tuner.replay.simulate import play
from tuner.replay.start_up import READ_TOKENS, StartingArm
from tuner.replay.trace import Costs, DraftTrace, Trace, TracedRequest
from tuner.replay.trace_file import load, save
from tuner.replay.verify import BAR_PERCENT, Cell, Checked, check, interval_of, predict, rate_of, rows
from tuner.workload import load_workload

CONTEXT = 512
SAMPLINGS = (
    Sampling(temperature=0.0),
    Sampling(temperature=0.8, top_p=0.9, seed=11),
    Sampling(temperature=1.0, seed=12, repetition_penalty=1.2),
)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> TracingEngine:
    folder = tmp_path_factory.mktemp("traced")
    model = make_tiny_model(folder / "model")
    head = make_tiny_drafter(folder / "head", model, DrafterKind.FEATURE_HEAD)
    twin = make_tiny_model(folder / "twin")
    options = EngineOptions(
        model_path=str(model),
        model_name="tiny",
        dtype="float32",
        threads=1,
        slots=4,
        context_limit=CONTEXT,
        drafters=("ngram", "suffix", str(head), str(twin)),
        draft_stop=0.0,
    )
    return TracingEngine(options, lambda text: None)


KEYS = itertools.count(1)


def requests() -> list[Submit]:
    """Long ones that a learned drafter reads over several cycles, short ones, and ends by a stop token and a limit."""
    repeated = random_tokens(384, 20, seed=3)
    lengths = (1, 30, 290, 60, 300, 16, 7, 120)
    return [
        submit(
            next(KEYS),
            (repeated * 20)[:length] if index % 2 else random_tokens(384, length, seed=index),
            max_tokens=50 if index != 5 else 2,
            sampling=SAMPLINGS[index % len(SAMPLINGS)],
            stop_token_ids=(7, 8, 9) if index == 3 else (),
        )
        for index, length in enumerate(lengths)
    ]


FREE = DraftCost(0.0, 0.0, 0.0, 0.0)


def of_request(cycles: Sequence[CycleStats], request_key: int) -> list[SequenceStats]:
    return [one for stats in cycles for one in stats.sequences if one.request_key == request_key]


@pytest.fixture(scope="module")
def recorded(engine: TracingEngine) -> list[TracedRequest]:
    return [
        TracedRequest(
            "chat",
            "en",
            one.prompt_tokens,
            one.output_tokens,
            {name: DraftTrace(each.offered, each.kept, each.confidence) for name, each in one.drafts.items()},
        )
        for one in engine.record(requests())
    ]


def test_a_recording_has_every_position_and_only_what_may_be(recorded: Sequence[TracedRequest]) -> None:
    assert len(recorded) == 8
    for one in recorded:
        assert set(one.drafts) == {"ngram", "suffix", "head", "twin"}
        for draft in one.drafts.values():
            assert len(draft.offered) == len(draft.kept) == len(draft.confidence) == one.output_tokens
            for position in range(one.output_tokens):
                assert draft.kept[position] <= draft.offered[position] <= MAX_BLOCK_LENGTH
                assert draft.kept[position] <= one.output_tokens - position
                assert (draft.confidence[position] == 0) == (draft.offered[position] == 0)
    twin = [one.drafts["twin"] for one in recorded[::3]]
    assert any(max(draft.kept, default=0) == MAX_BLOCK_LENGTH for draft in twin), "it is the target"


@pytest.mark.parametrize("running", [1, 3])
@pytest.mark.parametrize(
    ("drafter", "block_length"), [("ngram", 3), ("suffix", 16), ("head", 4), ("twin", 1), ("twin", 8), (PLAIN, 0)]
)
def test_a_replay_does_cycle_by_cycle_what_the_engine_does(
    drafter: str, block_length: int, running: int, engine: TracingEngine, recorded: Sequence[TracedRequest]
) -> None:
    submits = [dataclasses.replace(one, decision=decision(drafter, block_length)) for one in requests()]
    cycles = engine.serve(submits, running)
    drafters = ("ngram", "suffix", "head", "twin")
    costs = Costs(PassCost((1, 2), (1.0, 1.0), 0.0, 0.0), dict.fromkeys(drafters, FREE))
    trace = Trace(drafters, tuple(recorded), (running,) * len(recorded), costs, 4)
    played = play(trace, StartingArm(drafter, block_length, reads=drafter in ("head", "twin")), 0)
    served = [one for submit in submits for one in of_request(cycles, submit.request_key)]
    assert [one.emitted for one in served] == played.emitted.tolist()
    # Before a stop token the engine asks for more: it does not know, as the replay does, that the text ends there.
    stopped = submits[3].request_key
    assert [one.proposed for one in served if one.request_key != stopped] == [
        proposed for proposed, one in zip(played.proposed.tolist(), served, strict=True) if one.request_key != stopped
    ]
    assert len(cycles) == len(played.shadow_seconds)
    loads = [0] * len(cycles)
    for first, count in zip(played.first_cycle, played.cycle_count, strict=True):
        for number in range(first, first + count):
            loads[number] += 1
    assert [stats.load for stats in cycles] == loads


def test_a_recording_with_measured_costs_is_a_trace_that_a_file_holds(
    engine: TracingEngine, recorded: Sequence[TracedRequest], tmp_path: Path
) -> None:
    cycles = engine.serve(requests(), 1)
    trace = make_trace(recorded, engine.info, cycles, "a machine", seed=1)
    assert trace.drafters == ("ngram", "suffix", "head", "twin")
    assert trace.loads == loads_of(len(recorded), 4, seed=1)
    assert trace.costs.target.seconds(1, 1, 100) > 0.0
    assert trace.costs.drafters["twin"].seconds(1, 4, 4) > trace.costs.drafters["ngram"].seconds(1, 4, 4)
    save(trace, tmp_path / "trace.npz")
    assert load(tmp_path / "trace.npz") == trace
    assert trace.machine == "a machine"


def test_what_cannot_be_a_trace_is_one_sentence(engine: TracingEngine, recorded: Sequence[TracedRequest]) -> None:
    with pytest.raises(RecordingError, match="No request came to a second token"):
        make_trace([], engine.info, [], "", seed=1)
    with pytest.raises(RecordingError, match="without a calibration"):
        make_trace(recorded, dataclasses.replace(engine.info, calibration=()), [], "", seed=1)
    with pytest.raises(RefusedError, match="The prompt has no tokens"):
        engine.record([submit(next(KEYS), ())])


def test_loads_stay_for_a_stretch_and_within_the_slots() -> None:
    loads = loads_of(1000, 8, seed=3)
    assert set(loads) == {1, 2, 4, 8}
    runs = [len(list(group)) for _, group in itertools.groupby(loads)]
    assert all(run % 12 == 0 for run in runs[:-1])


def test_noise_and_stalls_are_told_apart() -> None:
    costs = Costs(PassCost((1, 2), (1.0, 1.0), 0.0, 0.0), {})
    cycles = [cycle(load=1, tokens=1, kv_tokens=9, seconds=1.0 + 0.01 * place) for place in range(-50, 50)]
    cycles += [cycle(load=1, tokens=1, kv_tokens=9, seconds=6.0)] * 5
    spread, share, factor = noise_of(cycles, costs)
    assert spread == pytest.approx(1.4826 * 0.25, rel=0.05)
    assert share == pytest.approx(5 / 105)
    assert factor == pytest.approx(6.0, rel=0.05)
    assert noise_of([], costs) == (0.0, 0.0, 1.0)


def test_a_prediction_counts_what_drafters_read_first(engine: TracingEngine, recorded: Sequence[TracedRequest]) -> None:
    session = session_costs(engine.info, ())
    cell = Cell("twin", 4, 2)
    reading, _ = predict(cell, recorded, session, 4, reads=True)
    ready, cycles = predict(cell, recorded, session, 4, reads=False)
    assert reading < ready
    assert cycles > 0
    assert max(one.prompt_tokens for one in recorded) > READ_TOKENS
    with pytest.raises(ValueError, match="without a calibration"):
        session_costs(dataclasses.replace(engine.info, calibration=()), ())


def test_what_the_pass_is_slower_for_after_drafting_is_a_cost_of_the_drafter(engine: TracingEngine) -> None:
    drafting = DraftCost(0.001, 0.0, 0.0005, 0.0)
    target = PassCost((1, 2, 64), (0.01, 0.0104, 0.03), 0.0, 1e-6)
    timed = [DraftTiming("twin", 1, steps, steps, drafting.seconds(1, steps, steps)) for steps in (1, 4, 8)]
    calibrated = [
        cycle(load=load, tokens=load * rows, kv_tokens=load * kv, seconds=target.seconds(load * rows, load, load * kv))
        for load in (1, 2, 4)
        for rows in (1, 2, 3, 5)
        for kv in (96, 480)
    ]
    info = dataclasses.replace(
        engine.info, calibration=tuple(calibrated), draft_calibration=tuple(timed), drafters=(PLAIN, "twin")
    )
    served = []
    for tokens in (1, 2, 3, 5) * 40:
        seconds = target.seconds(tokens, 1, 100)
        served.append(cycle(load=1, tokens=tokens, kv_tokens=100, seconds=seconds))
        spent = drafting.seconds(1, 4, 4)
        one = sequence(Context("m", "chat", "en"), requested=4, proposed=4, verified=0, drafter="twin")
        served.append(
            cycle(
                load=1,
                tokens=tokens,
                kv_tokens=100,
                seconds=seconds + spent + 0.0007,
                sequences=(one,),
                draft_seconds={"twin": spent},
            )
        )
    stalled = [dataclasses.replace(stats, cycle_seconds=1.0) for stats in served[:20]]
    found = session_costs(info, served + stalled).costs
    assert found.target.seconds(3, 1, 100) == pytest.approx(target.seconds(3, 1, 100), rel=0.01)
    assert found.drafters["twin"].seconds(1, 4, 4) == pytest.approx(drafting.seconds(1, 4, 4) + 0.0007, rel=0.05)


def test_a_cell_holds_within_three_percent_or_within_the_interval_of_what_was_measured() -> None:
    def checked(predicted: float, *rates: float) -> Checked:
        rounds = [[emitting(1.0 / rate)] for rate in rates]
        return check(Cell("ngram", 4, 1), (predicted, 1), rounds)

    exact = checked(103.0, 100.0, 100.0, 100.0)
    assert exact.measured.estimate == pytest.approx(100.0)
    assert exact.error_percent == pytest.approx(BAR_PERCENT)
    assert (exact.predicted_cycles, exact.measured_cycles) == (1, 1)
    assert not checked(104.0, 100.0, 100.0, 100.0).holds
    noisy = checked(110.0, 80.0, 100.0, 125.0)
    assert noisy.holds
    assert noisy.measured.low < 80.0
    assert noisy.measured.high > 125.0
    assert checked(500.0, 100.0).holds, "a single round has no interval"
    assert rows([checked(500.0, 100.0)])[0]["measured"] == {
        "estimate": pytest.approx(100.0),
        "low": 0.0,
        "high": None,
    }
    assert interval_of([100.0, 100.0]).low == pytest.approx(100.0)
    assert rate_of([emitting(0.5), emitting(1.5)]) == pytest.approx(1.0)


def emitting(seconds: float) -> CycleStats:
    one = sequence(Context("m", "chat", "en"), verified=0, proposed=0)
    return cycle(load=1, tokens=1, kv_tokens=9, seconds=seconds, sequences=(one,))


def test_the_recording_that_comes_with_the_package_has_every_route_and_language_of_the_workload() -> None:
    trace = load(Path(recording.__file__).parent / "traces" / "workload.npz")
    told = {(one.route, one.language) for one in trace.requests}
    assert told == {(prompt.route, prompt.language) for prompt in load_workload()}
    assert {"ngram", "suffix"} < set(trace.drafters)
    assert trace.machine
    target = trace.costs.target
    assert list(target.knot_seconds) == pytest.approx(sorted(target.knot_seconds), rel=0.1), "it was measured in peace"
