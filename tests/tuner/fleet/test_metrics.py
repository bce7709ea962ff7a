import threading
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from policies.stats import FinishReason
from tests.tuner.fleet.fleet_examples import DECISION, LANES, PLAIN_POOL, SPECULATES, STATE, exchange, plugin_state
from tests.tuner.telemetry_examples import GAUGES, INFO, NOW, ROUTES, policy, request, snapshot
from tuner.fleet.metrics import LANE_LIMIT, START_LIMIT, FleetMetrics
from tuner.fleet.proxy.routing import OVERHEAD_BOUNDS
from tuner.fleet.types import End, Exchange, Lane, Upstream
from tuner.metric_table import FLEET_METRICS, METRICS, NEEDS_OWN_ENGINE, NEEDS_PLUGIN
from tuner.metrics import Metrics
from tuner.tally import page


def make_metrics() -> FleetMetrics:
    metrics = FleetMetrics(("a", "b"))
    metrics.set_lanes(LANES)
    return metrics


def samples_of(text: str) -> dict[str, float]:
    """Every sample by ``name{label=value,...}``, labels in order of the table, without the prefix."""
    samples: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        order = {**METRICS, **FLEET_METRICS}[family.name + "_total" if family.type == "counter" else family.name].labels
        for sample in family.samples:
            names = [name for name in (*order, "le") if name in sample.labels]
            labels = ",".join(f"{name}={sample.labels[name]}" for name in names)
            key = sample.name.removeprefix("paceline_") + (f"{{{labels}}}" if labels else "")
            assert key not in samples, f"{key} is exported twice"
            samples[key] = sample.value
    return samples


def read(metrics: FleetMetrics) -> dict[str, float]:
    return samples_of(page(metrics.families()).decode())


def begins(samples: dict[str, float], name: str) -> list[str]:
    return [key for key in samples if key.startswith(name)]


def test_exchanges_are_counted_by_the_way_they_went_and_how_they_ended() -> None:
    metrics = make_metrics()
    metrics.fold(exchange())
    metrics.fold(exchange())
    metrics.fold(exchange("b", "b", end=End.BROKEN, status=0))
    samples = read(metrics)
    assert samples["exchanges_total{upstream=a,lane=a,end=done}"] == 2
    assert samples["exchanges_total{upstream=b,lane=b,end=broken}"] == 1
    assert len(begins(samples, "exchanges_total")) == 2


def test_what_has_no_lane_is_unchosen_and_what_nobody_configured_is_other() -> None:
    metrics = make_metrics()
    for one in (exchange(lane=""), exchange("x-1", "x-1"), exchange("x-2", "x-2")):
        metrics.fold(one)
    samples = read(metrics)
    assert samples["exchanges_total{upstream=a,lane=unchosen,end=done}"] == 1
    assert samples["exchanges_total{upstream=other,lane=other,end=done}"] == 2


def test_a_lane_that_is_no_more_keeps_its_label_and_has_no_info() -> None:
    metrics = make_metrics()
    metrics.set_lanes(LANES[1:])
    metrics.fold(exchange())
    samples = read(metrics)
    assert samples["exchanges_total{upstream=a,lane=a,end=done}"] == 1
    assert begins(samples, "lane_info") == ["lane_info{lane=b,upstream=b,drafter=none,block_length=0}"]


def test_lanes_beyond_the_limit_share_one_label() -> None:
    metrics = FleetMetrics(("a",))
    for start in range(0, 2 * LANE_LIMIT, 8):
        metrics.set_lanes(tuple(Lane(f"a/{start + place}", "a", "ngram", 4) for place in range(8)))
    for number in (0, LANE_LIMIT, LANE_LIMIT + 1):
        metrics.fold(exchange(lane=f"a/{number}"))
    samples = read(metrics)
    assert samples["exchanges_total{upstream=a,lane=a/0,end=done}"] == 1
    assert samples["exchanges_total{upstream=a,lane=other,end=done}"] == 2
    assert begins(samples, "lane_info") == []


@pytest.mark.parametrize(
    "unmeasured",
    [exchange(streamed=False), exchange(status=0, end=End.BROKEN), exchange(status=503, end=End.UPSTREAM_ERROR)],
)
def test_the_first_byte_is_measured_of_streamed_answers_that_came(unmeasured: Exchange) -> None:
    metrics = make_metrics()
    metrics.fold(unmeasured)
    assert begins(read(metrics), "upstream_first_byte_seconds") == []
    metrics.fold(exchange())
    samples = read(metrics)
    assert samples["upstream_first_byte_seconds_sum{upstream=a}"] == pytest.approx(0.06)
    assert samples["upstream_first_byte_seconds_bucket{upstream=a,le=0.05}"] == 0
    assert samples["upstream_first_byte_seconds_bucket{upstream=a,le=0.1}"] == 1


def test_a_generation_that_ends_without_its_counts_is_missed_and_nothing_else_is() -> None:
    metrics = make_metrics()
    for told in (
        exchange(),
        exchange(decision=None, output_tokens=None),  # such as /v1/models
        exchange(end=End.CANCELLED, output_tokens=None),
        exchange(end=End.CLIENT_ERROR, status=400, output_tokens=None),
    ):
        metrics.fold(told)
    assert read(metrics)["telemetry_missing_total{upstream=a,source=answer}"] == 0
    metrics.fold(exchange(output_tokens=None))
    metrics.count_missing("a")
    metrics.count_missing("a")
    samples = read(metrics)
    assert samples["telemetry_missing_total{upstream=a,source=answer}"] == 1
    assert samples["telemetry_missing_total{upstream=a,source=metrics}"] == 2
    assert samples["telemetry_missing_total{upstream=b,source=metrics}"] == 0


def test_drafting_that_an_upstream_does_not_tell_of_is_absent_and_not_zero() -> None:
    metrics = make_metrics()
    assert begins(read(metrics), "upstream_") == [
        "upstream_restarts_total{upstream=a}",
        "upstream_restarts_total{upstream=b}",
    ]
    metrics.count_drafting("a", cycles=0, drafted=0, accepted=0)
    metrics.count_drafting("a", cycles=10, drafted=40, accepted=25)
    metrics.count_drafting("a", cycles=5, drafted=20, accepted=5)
    metrics.count_drafting("b", cycles=7, drafted=None, accepted=12.5)
    samples = read(metrics)
    names = ("cycles", "drafted_tokens", "accepted_tokens")
    assert [samples[f"upstream_{name}_total{{upstream=a}}"] for name in names] == [15, 60, 30]
    assert samples["upstream_cycles_total{upstream=b}"] == 7
    assert samples["upstream_accepted_tokens_total{upstream=b}"] == 12.5
    assert "upstream_drafted_tokens_total{upstream=b}" not in samples


def test_restarts_are_counted_from_zero() -> None:
    metrics = make_metrics()
    metrics.count_restart("b")
    samples = read(metrics)
    assert (samples["upstream_restarts_total{upstream=a}"], samples["upstream_restarts_total{upstream=b}"]) == (0, 1)


def test_a_reading_of_the_data_path_is_told_and_before_the_first_there_is_no_number() -> None:
    metrics = make_metrics()
    before = read(metrics)
    names = ("proxy_", "upstream_up", "upstream_in_flight", "exchanges_dropped", "chooser_faults")
    assert [key for name in names for key in begins(before, name)] == []
    assert not metrics.any_up
    metrics.set_state(STATE)
    samples = read(metrics)
    assert (samples["upstream_up{upstream=a}"], samples["upstream_up{upstream=b}"]) == (1, 0)
    assert samples["upstream_in_flight{upstream=a}"] == 2
    assert (samples["proxy_streams"], samples["exchanges_dropped_total"], samples["chooser_faults_total"]) == (2, 5, 0)
    assert metrics.any_up
    metrics.set_state(replace(STATE, upstreams=STATE.upstreams[1:]))
    assert not metrics.any_up
    assert begins(read(metrics), "upstream_up") == ["upstream_up{upstream=b}"]


def test_the_overhead_is_a_whole_histogram_that_is_handed_over_and_has_no_sum() -> None:
    metrics = make_metrics()
    metrics.set_state(STATE)
    told = {key: value for key, value in read(metrics).items() if key.startswith("proxy_overhead_seconds")}
    assert told == {
        "proxy_overhead_seconds_bucket{le=0.0001}": 3,
        "proxy_overhead_seconds_bucket{le=0.0002}": 3,
        "proxy_overhead_seconds_bucket{le=0.001}": 4,
        "proxy_overhead_seconds_bucket{le=+Inf}": 4,
    }


def test_the_table_has_the_bounds_that_the_data_path_counts_by() -> None:
    assert (*FLEET_METRICS["paceline_proxy_overhead_seconds"].buckets, float("inf")) == OVERHEAD_BOUNDS


@pytest.mark.parametrize("last", [float("inf"), 2.0])
def test_a_histogram_of_any_bounds_ends_at_infinity_once(last: float) -> None:
    metrics = make_metrics()
    metrics.set_state(replace(STATE, overhead_seconds={last: 2, 0.5: 1}))
    told = [value for key, value in read(metrics).items() if key.startswith("proxy_overhead_seconds")]
    assert told == ([1, 3] if last == float("inf") else [1, 3, 3])


def test_an_upstream_is_told_with_its_engine_and_its_drafter() -> None:
    metrics = make_metrics()
    metrics.set_upstreams((SPECULATES, PLAIN_POOL))
    samples = read(metrics)
    assert begins(samples, "upstream_info") == [
        "upstream_info{upstream=a,engine=vllm,version=0.32.0+cpu,model=tiny,drafter=ngram,block_length=4}",
        "upstream_info{upstream=b,engine=llama.cpp,version=b9115-68e7ea3,model=tiny,drafter=none,block_length=0}",
    ]
    assert samples["capability_info{upstream=a,lever=request_length,effect=ignored}"] == 1


def test_an_upstream_of_which_nobody_knows_whether_it_drafts_is_not_called_plain() -> None:
    metrics = make_metrics()
    metrics.set_upstreams((Upstream("a", "http://127.0.0.1:8001"),))
    (told,) = begins(read(metrics), "upstream_info")
    assert told == "upstream_info{upstream=a,engine=unknown,version=,model=,drafter=unknown,block_length=unknown}"


def test_an_upstream_has_one_series_however_many_its_models_and_whatever_its_version_says() -> None:
    metrics = make_metrics()
    models = tuple(f"model-{number}" for number in range(200))
    metrics.set_upstreams((replace(SPECULATES, version='9\n"' * 500, models=models),))
    metrics.set_upstreams((replace(SPECULATES, version="0.33.0", models=models),))
    (told,) = begins(read(metrics), "upstream_info")
    assert "version=0.33.0,model=model-0, model-1" in told
    assert len(told) < 200
    metrics.set_upstreams((replace(SPECULATES, version='9\n"' * 500),))
    (told,) = begins(read(metrics), "upstream_info")
    assert len(told) < 200


def test_a_plugin_counts_on_over_its_starts_and_over_a_lost_connection() -> None:
    metrics = make_metrics()
    metrics.fold_plugin("a", "first", plugin_state(10, faults=1, dropped=2, unread=3))
    metrics.fold_plugin("a", "first", plugin_state(30, faults=1, dropped=2, unread=4))
    metrics.forget_plugin("a", "first")
    metrics.fold_plugin("a", "first", plugin_state(40, faults=1, dropped=2, unread=4))
    metrics.fold_plugin("a", "second", plugin_state(5, dropped=1))
    samples = read(metrics)
    assert samples["plugin_steps_total{upstream=a}"] == 45
    assert samples["plugin_seconds_total{upstream=a}"] == pytest.approx(0.0045)
    assert samples["plugin_faults_total{upstream=a}"] == 1
    assert samples["plugin_reports_dropped_total{upstream=a}"] == 3
    assert samples["plugin_unread_words_total{upstream=a}"] == 4


def test_an_upstream_is_steered_while_every_plugin_that_is_there_steers() -> None:
    metrics = make_metrics()
    assert begins(read(metrics), "plugin_") == []

    def steered() -> float:
        return read(metrics)["plugin_steered{upstream=a}"]

    metrics.fold_plugin("a", "first", plugin_state())
    assert steered() == 1
    metrics.fold_plugin("a", "second", plugin_state(steered=False))
    assert steered() == 0
    metrics.forget_plugin("a", "second")
    assert steered() == 1
    metrics.forget_plugin("a", "first")
    assert steered() == 0
    assert begins(read(metrics), "plugin_steered") == ["plugin_steered{upstream=a}"]


def test_starts_of_plugins_are_forgotten_in_their_order_and_only_when_they_are_gone() -> None:
    metrics = make_metrics()
    metrics.fold_plugin("a", "stays", plugin_state(1))
    for number in range(2 * START_LIMIT):
        metrics.fold_plugin("a", f"start-{number}", plugin_state(1))
        metrics.forget_plugin("a", f"start-{number}")
    metrics.fold_plugin("a", "stays", plugin_state(2))
    metrics.fold_plugin("a", f"start-{2 * START_LIMIT - 1}", plugin_state(1))
    assert read(metrics)["plugin_steps_total{upstream=a}"] == 2 * START_LIMIT + 2


def test_one_page_has_the_servers_metrics_and_the_fleets_and_no_number_that_nobody_measured() -> None:
    server = Metrics(ROUTES, INFO, unknown=NEEDS_OWN_ENGINE | NEEDS_PLUGIN, clock=lambda: NOW)
    server.fold_request(replace(request(finish=FinishReason.STOP), decision=DECISION))
    fleet = make_metrics()
    fleet.fold(exchange())
    fleet.set_state(STATE)
    gauges = replace(GAUGES, engine=None, engine_up=fleet.any_up)
    text = server.render(snapshot(policy()), gauges, fleet.families()).decode()
    samples = samples_of(text)
    assert samples["engine_up"] == 1
    assert samples["requests_total{route=chat,language=en,drafter=ngram,outcome=stop}"] == 1
    assert samples["speedup_ratio{route=code-edit,language=en}"] == 1.9
    assert samples["exchanges_total{upstream=a,lane=a,end=done}"] == 1
    described = {line.split()[2] for line in text.splitlines() if line.startswith("# HELP")}
    assert described == {*METRICS, *FLEET_METRICS}
    sampled = {line.split("{")[0].split()[0] for line in text.splitlines() if not line.startswith("#")}
    for name in NEEDS_OWN_ENGINE | NEEDS_PLUGIN:
        assert not sampled & {name, f"{name}_bucket", f"{name}_count"}, name


def test_every_metric_of_the_fleets_table_gets_a_sample_and_nothing_else_does() -> None:
    metrics = make_metrics()
    metrics.fold(exchange())
    metrics.set_state(STATE)
    metrics.set_upstreams((SPECULATES, PLAIN_POOL))
    metrics.count_drafting("a", cycles=1, drafted=4, accepted=2)
    metrics.fold_plugin("a", "first", plugin_state())
    sampled = set()
    for family in text_string_to_metric_families(page(metrics.families()).decode()):
        name = family.name + "_total" if family.type == "counter" else family.name
        if family.samples:
            sampled.add(name)
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(FLEET_METRICS[name].labels), name
        assert family.type == FLEET_METRICS[name].kind.value
    assert sampled == set(FLEET_METRICS)


def test_rendering_while_another_thread_folds_loses_nothing() -> None:
    metrics = make_metrics()

    def fold() -> None:
        for number in range(300):
            metrics.fold_plugin("b", f"{number}", plugin_state(1))
            metrics.fold(exchange())

    thread = threading.Thread(target=fold)
    thread.start()
    while thread.is_alive():
        metrics.families()
    thread.join()
    samples = read(metrics)
    assert samples["exchanges_total{upstream=a,lane=a,end=done}"] == 300
    assert samples["plugin_steps_total{upstream=b}"] == 300
