import re
import threading
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families

from policies.stats import BlockEnd, FinishReason, SequenceStats
from policies.types import MAX_BLOCK_LENGTH, PLAIN_ARM, Reason
from tests.tuner.telemetry_examples import (
    GAUGES,
    INFO,
    NOW,
    ROUTES,
    cycle,
    pin,
    policy,
    request,
    sequence,
    snapshot,
)
from tuner.metric_table import FLEET_METRICS, METRICS, NEEDS_OWN_ENGINE, NEEDS_PLUGIN, Kind
from tuner.metrics import Gauges, Metrics
from tuner.snapshot import KillSwitch, PolicySnapshot

LABEL_SETS = {
    "route", "language", "drafter", "outcome", "reason", "window", "position", "length_bucket", "load",
    "state", "version", "model", "dtype", "device", "python", "check", "kind",
    "upstream", "lane", "end", "source", "engine", "block_length", "lever", "effect",
}  # fmt: skip
UNITS = {
    "seconds", "ratio", "tokens", "requests", "cycles", "blocks", "sequences", "changes", "pins", "events", "info",
    "exchanges", "steps", "boolean",
}  # fmt: skip
EVERY = {**METRICS, **FLEET_METRICS}


def make_metrics(language_limit: int = 20) -> Metrics:
    return Metrics(ROUTES, INFO, language_limit=language_limit, clock=lambda: NOW)


def page_of(metrics: Metrics, more: Iterable[Family] = ()) -> str:
    return metrics.render(snapshot(), GAUGES, more).decode()


def read(metrics: Metrics, snap: PolicySnapshot | None = None, gauges: Gauges = GAUGES) -> dict[str, float]:
    """Every sample by ``name{label="value",...}``, labels in order of the table, without the prefix."""
    text = metrics.render(snap or snapshot(), gauges).decode()
    samples: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        order = METRICS[family.name + "_total" if family.type == "counter" else family.name].labels
        for sample in family.samples:
            names = [name for name in (*order, "le") if name in sample.labels]
            labels = ",".join(f"{name}={sample.labels[name]}" for name in names)
            key = sample.name.removeprefix("paceline_") + (f"{{{labels}}}" if labels else "")
            assert key not in samples, f"{key} is exported twice"
            samples[key] = sample.value
    return samples


def test_a_cycle_counts_tokens_positions_and_seconds_by_arm() -> None:
    metrics = make_metrics()
    metrics.fold_cycle(
        cycle(sequence(accepted=2), sequence(route="chat", language="de", accepted=4), prefill_tokens=10)
    )
    samples = read(metrics)
    assert samples["cycles_total{window=served}"] == 1
    assert samples["cycles_total{window=plain}"] == 0
    assert samples["proposed_tokens_total{route=code-edit,language=en,drafter=ngram}"] == 5
    assert samples["verified_tokens_total{route=code-edit,language=en,drafter=ngram}"] == 4
    assert samples["accepted_tokens_total{route=code-edit,language=en,drafter=ngram}"] == 2
    assert samples["emitted_tokens_total{route=chat,language=de,drafter=ngram}"] == 5
    assert samples["accepted_at_position_total{drafter=ngram,position=2}"] == 2
    assert samples["accepted_at_position_total{drafter=ngram,position=3}"] == 1
    assert samples["rejected_at_position_total{drafter=ngram,position=3}"] == 1
    assert "rejected_at_position_total{drafter=ngram,position=5}" not in samples
    assert samples["draft_seconds_total{drafter=ngram}"] == pytest.approx(0.001)
    assert samples["verify_seconds_total"] == pytest.approx(0.018)
    assert samples["prefill_seconds_total"] == pytest.approx(0.005)
    assert samples["prefill_tokens_total"] == 10
    assert samples["cycle_seconds_count{window=served}"] == 1


def test_a_block_cut_by_the_end_of_its_sequence_is_no_rejection() -> None:
    metrics = make_metrics()
    metrics.fold_cycle(cycle(sequence(verified=4, accepted=1, end=BlockEnd.CENSORED)))
    assert not [key for key in read(metrics) if key.startswith("rejected_at_position_total{")]


def test_a_plain_window_is_counted_apart() -> None:
    metrics = make_metrics()
    metrics.fold_cycle(cycle(sequence(verified=0, accepted=0), plain=True))
    samples = read(metrics)
    assert samples["cycles_total{window=plain}"] == 1
    assert samples["cycle_seconds_sum{window=plain}"] == pytest.approx(0.020)


def test_a_prefill_without_decoding_is_no_cycle() -> None:
    metrics = make_metrics()
    metrics.fold_cycle(cycle(prefill_tokens=64))
    samples = read(metrics)
    assert samples["prefill_tokens_total"] == 64
    assert (samples["reused_tokens_total"], samples["preemptions_total"]) == (0, 0)
    assert samples["cycles_total{window=served}"] == 0
    assert "cycle_seconds_count{window=served}" not in samples


def test_tokens_from_the_cache_and_preemptions_are_counted_whether_anything_decodes_or_not() -> None:
    metrics = make_metrics()
    metrics.fold_cycle(replace(cycle(prefill_tokens=64), reused_tokens=48))
    metrics.fold_cycle(replace(cycle(sequence()), reused_tokens=16, preemptions=2))
    samples = read(metrics)
    assert (samples["reused_tokens_total"], samples["preemptions_total"]) == (64, 2)


def test_a_request_is_measured_by_arm_and_length() -> None:
    metrics = make_metrics()
    metrics.fold_request(request(output_tokens=33))
    samples = read(metrics)
    arm = "route=code-edit,language=en,drafter=ngram"
    assert samples[f"requests_total{{{arm},outcome=stop}}"] == 1
    assert samples["decisions_total{route=code-edit,reason=LEARNED}"] == 1
    assert samples[f"output_tokens_total{{{arm}}}"] == 33
    assert samples[f"time_per_output_token_seconds_sum{{{arm},length_bucket=17-64}}"] == pytest.approx(0.010)
    assert samples[f"time_per_output_token_seconds_bucket{{{arm},length_bucket=17-64,le=0.008}}"] == 0
    assert samples[f"time_per_output_token_seconds_bucket{{{arm},length_bucket=17-64,le=0.012}}"] == 1
    assert samples[f"time_to_first_token_seconds_sum{{{arm}}}"] == pytest.approx(0.06)
    assert samples["queue_seconds_sum{route=code-edit}"] == pytest.approx(0.002)
    assert samples[f"decode_seconds_sum{{{arm}}}"] == pytest.approx(0.32)
    assert samples[f"request_draft_seconds_total{{{arm}}}"] == pytest.approx(0.004)
    assert samples[f"request_verify_seconds_total{{{arm}}}"] == pytest.approx(0.2)
    assert samples["decision_errors_total"] == 0
    assert samples["looped_requests_total{route=code-edit}"] == 0


@pytest.mark.parametrize(
    ("output_tokens", "bucket"), [(16, "1-16"), (17, "17-64"), (64, "17-64"), (256, "65-256"), (257, "257+")]
)
def test_output_length_buckets_have_closed_ends(output_tokens: int, bucket: str) -> None:
    metrics = make_metrics()
    metrics.fold_request(request(output_tokens=output_tokens))
    arm = "route=code-edit,language=en,drafter=ngram"
    assert read(metrics)[f"time_per_output_token_seconds_count{{{arm},length_bucket={bucket}}}"] == 1


def test_a_request_without_a_token_has_an_outcome_but_no_times() -> None:
    metrics = make_metrics()
    metrics.fold_request(request(output_tokens=0, finish=FinishReason.CANCELLED))
    samples = read(metrics)
    assert samples["requests_total{route=code-edit,language=en,drafter=ngram,outcome=cancelled}"] == 1
    assert not [key for key in samples if key.startswith(("time_to_first", "time_per", "queue_seconds", "decode_sec"))]


def test_an_answer_whose_times_nobody_knows_has_tokens_and_no_times() -> None:
    metrics = make_metrics()
    metrics.fold_request(replace(request(), ttft_seconds=0.0, decode_seconds=0.0))
    samples = read(metrics)
    assert samples["output_tokens_total{route=code-edit,language=en,drafter=ngram}"] == 33
    assert not [key for key in samples if key.startswith(("time_to_first", "time_per", "decode_sec"))]


def test_a_structured_output_that_nobody_judged_is_not_counted_as_good() -> None:
    metrics = make_metrics()
    metrics.fold_request(request())
    assert "invalid_outputs_total{route=code-edit}" not in read(metrics)
    metrics.fold_request(replace(request(), valid=True))
    assert read(metrics)["invalid_outputs_total{route=code-edit}"] == 0


def test_what_nobody_measures_here_is_described_and_has_no_number() -> None:
    unknown = frozenset({"paceline_prefill_seconds_total", "paceline_queue_seconds", "paceline_safety_hold"})
    metrics = Metrics(ROUTES, INFO, unknown=unknown, clock=lambda: NOW)
    metrics.fold_cycle(cycle(sequence(), prefill_tokens=8))
    metrics.fold_request(request())
    families = {family.name: family for family in text_string_to_metric_families(page_of(metrics))}
    for name in unknown:
        family = families[name.removesuffix("_total")]
        assert family.samples == []
        assert family.documentation == METRICS[name].meaning
        assert family.type == METRICS[name].kind.value
    assert families["paceline_prefill_tokens"].samples[0].value == 8


def test_families_of_others_stand_behind_the_servers_own() -> None:
    more = GaugeMetricFamily("paceline_more", "More.", value=3)
    names = [family.name for family in text_string_to_metric_families(page_of(make_metrics(), [more]))]
    assert names[-1] == "paceline_more"
    assert len(names) == len(METRICS) + 1


def test_loops_and_failed_decisions_are_counted() -> None:
    metrics = make_metrics()
    metrics.fold_request(request(looped=True, reason=Reason.ERROR))
    samples = read(metrics)
    assert samples["looped_requests_total{route=code-edit}"] == 1
    assert samples["decision_errors_total"] == 1


def test_a_policy_is_told_with_its_schedule_and_its_interval() -> None:
    samples = read(make_metrics(), snapshot(policy(), policy("chat", "de", PLAIN_ARM, speedup=None, version=5)))
    labels = "route=code-edit,language=en,drafter=ngram,state=on,reason=LEARNED,version=3"
    assert samples[f"policy_info{{{labels}}}"] == 1
    schedule = [samples[f"policy_block_length{{route=code-edit,language=en,load={load}}}"] for load in (1, 2, 4, 6)]
    assert schedule == [8, 8, 4, 0]
    context = "route=code-edit,language=en"
    interval = [samples[f"speedup_{part}{{{context}}}"] for part in ("low_ratio", "ratio", "high_ratio")]
    assert interval == [1.7, 1.9, 2.1]
    assert samples[f"predicted_speedup_ratio{{{context},load=4}}"] == 1.2
    assert "speedup_ratio{route=chat,language=de}" not in samples, "an unknown gain must not be a number"


def test_policy_changes_are_counted_by_reason() -> None:
    metrics = make_metrics()
    metrics.count_policy_changes([policy(), policy(version=4)])
    assert read(metrics)["policy_changes_total{route=code-edit,language=en,reason=LEARNED}"] == 2


def test_measurements_of_the_snapshot_are_told() -> None:
    samples = read(make_metrics())
    assert samples["window_tokens_total{window=served}"] == 900
    assert samples["window_seconds_total{window=plain}"] == 1.0
    assert samples["baseline_cycle_seconds{load=4}"] == 0.022
    assert samples["linear_floor_ratio"] == pytest.approx(0.012 / 0.016)
    assert samples["cost_model_error_ratio"] == 0.06
    assert samples["switchback_share_ratio"] == 0.2
    assert samples["snapshot_timestamp_seconds"] == NOW


def test_the_gain_of_everything_the_budget_and_what_was_found_are_told() -> None:
    samples = read(make_metrics())
    assert [samples[f"engine_speedup_{part}"] for part in ("low_ratio", "ratio", "high_ratio")] == [1.4, 1.5, 1.6]
    assert (samples["safety_budget_seconds"], samples["safety_budget_cap_seconds"]) == (2.5, 5.0)
    assert (samples["safety_hold"], samples["safety_holds_total"]) == (0, 1)
    assert samples["changes_found_total{kind=acceptance}"] == 2
    assert samples["changes_found_total{kind=cost}"] == 0
    unknown = read(make_metrics(), replace(snapshot(), engine_gain=None))
    assert "engine_speedup_ratio" not in unknown, "an unknown gain must not be a number"


def test_guardrails_are_told_by_route_and_check_and_unknown_routes_are_left_out() -> None:
    found = snapshot()
    stranger = replace(found.guardrails[0], route="x-1")
    samples = read(make_metrics(), replace(found, guardrails=(*found.guardrails, stranger)))
    assert samples["guardrail_held{route=chat,check=errors}"] == 1
    assert samples["guardrail_trips_total{route=chat,check=errors}"] == 3
    assert samples["guardrail_held{route=*,check=memory}"] == 0
    assert len([key for key in samples if key.startswith("guardrail_held")]) == 2


def test_shadows_and_outputs_without_their_form_are_counted() -> None:
    metrics = make_metrics()
    metrics.fold_cycle(replace(cycle(sequence()), shadow_seconds=0.002, copying_seconds=0.001))
    for valid in (True, False, None):
        metrics.fold_request(replace(request(), valid=valid))
    samples = read(metrics)
    assert samples["shadow_seconds_total"] == pytest.approx(0.003)
    assert samples["shadowed_requests_total{drafter=suffix}"] == 3
    assert samples["invalid_outputs_total{route=code-edit}"] == 1


def test_only_pins_and_kills_that_have_not_expired_count() -> None:
    kills = (KillSwitch("chat", "r", "a", NOW - 9, None), KillSwitch("code-edit", "r", "a", NOW - 9, NOW - 1))
    samples = read(make_metrics(), snapshot(pins=(pin(), pin("code-edit", "en", expires_at=NOW)), kills=kills))
    assert samples["pins"] == 1
    assert samples["pin_expiry_timestamp_seconds{route=chat,language=*}"] == NOW + 60
    assert samples["kill_switch_active{route=chat}"] == 1
    assert samples["kill_switch_active{route=code-edit}"] == 0
    assert samples["kill_switch_active{route=*}"] == 0


def test_a_dead_engine_is_down_and_has_no_stale_readings() -> None:
    gauges = Gauges(None, engine_up=False, store_up=False, telemetry_dropped=0, recorder_dropped=1)
    samples = read(make_metrics(), gauges=gauges)
    assert samples["engine_up"] == 0
    assert samples["store_up"] == 0
    assert samples["recorder_dropped_total"] == 1
    assert "running_sequences" not in samples
    alive = read(make_metrics())
    assert [alive[key] for key in ("engine_up", "running_sequences", "waiting_requests", "free_kv_blocks")] == [
        1, 3, 2, 40,
    ]  # fmt: skip


def test_unknown_routes_and_drafters_share_one_label() -> None:
    metrics = make_metrics()
    metrics.fold_request(request(route="x-1", drafter="eagle"))
    metrics.fold_request(request(route="x-2", drafter="medusa"))
    assert read(metrics)["requests_total{route=other,language=en,drafter=other,outcome=stop}"] == 2


def test_languages_beyond_the_limit_share_one_label_and_code_and_und_never_count() -> None:
    metrics = make_metrics(language_limit=2)
    for language in ("und", "code", "en", "de", "fr", "da", "en"):
        metrics.fold_request(request(language=language))
    samples = read(metrics, snapshot(policy(language="fr"), policy(language="da"), policy(language="en")))
    counts = {
        language: samples[f"output_tokens_total{{route=code-edit,language={language},drafter=ngram}}"] / 33
        for language in ("und", "code", "en", "de", "other")
    }
    assert counts == {"und": 1, "code": 1, "en": 2, "de": 1, "other": 2}
    told = [key for key in samples if key.startswith("speedup_ratio")]
    assert told == ["speedup_ratio{route=code-edit,language=en}"], "contexts without a label of their own are left out"


ROUTE_NAMES = st.sampled_from(["chat", "code-edit", "story", 'quote"\n\\'])
LANGUAGES = st.sampled_from(["en", "de", "und", "", 'x"y'])


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.builds(
            sequence,
            route=ROUTE_NAMES,
            language=LANGUAGES,
            drafter=st.sampled_from(["ngram", "none"]),
            verified=st.just(MAX_BLOCK_LENGTH),
            accepted=st.integers(0, MAX_BLOCK_LENGTH),
        ),
        max_size=8,
    )
)
def test_positions_add_up_to_the_tokens_accepted_and_blocks_rejected(parts: list[SequenceStats]) -> None:
    metrics = make_metrics()
    for part in parts:
        metrics.fold_cycle(cycle(part))
    samples = read(metrics)

    def total(name: str) -> float:
        return sum(value for key, value in samples.items() if key.startswith(name + "{"))

    assert total("accepted_at_position_total") == total("accepted_tokens_total") == sum(p.accepted for p in parts)
    assert total("rejected_at_position_total") == sum(part.end is BlockEnd.REJECTED for part in parts)
    assert total("emitted_tokens_total") == total("accepted_tokens_total") + len(parts)


@pytest.mark.parametrize("name", sorted(EVERY))
def test_the_tables_keep_the_conventions(name: str) -> None:
    metric = EVERY[name]
    assert re.fullmatch(r"paceline_[a-z]+(_[a-z]+)*", name)
    assert name.endswith("_total") == (metric.kind is Kind.COUNTER)
    assert set(metric.labels) <= LABEL_SETS
    assert metric.unit in UNITS
    if metric.unit in ("seconds", "ratio", "info"):
        assert name.removesuffix("_total").endswith(f"_{metric.unit}")
    assert metric.buckets == tuple(sorted(set(metric.buckets)))
    assert bool(metric.buckets) == (metric.kind is Kind.HISTOGRAM)
    for sentence in (metric.meaning, metric.action):
        assert sentence.endswith("."), sentence
        assert "\n" not in sentence


def test_a_name_stands_in_one_table_and_what_a_sidecar_lacks_is_a_servers() -> None:
    assert len(EVERY) == len(METRICS) + len(FLEET_METRICS)
    assert set(METRICS) > NEEDS_OWN_ENGINE | NEEDS_PLUGIN
    assert not NEEDS_OWN_ENGINE & NEEDS_PLUGIN


def test_every_metric_of_the_table_gets_a_sample_and_nothing_else_does() -> None:
    metrics = make_metrics()
    metrics.fold_cycle(cycle(sequence(accepted=2)))
    metrics.fold_request(replace(request(), valid=True))
    metrics.count_policy_changes([policy()])
    text = metrics.render(snapshot(policy(), pins=(pin(),)), GAUGES).decode()
    sampled = set()
    for family in text_string_to_metric_families(text):
        counter = family.type == "counter"
        name = family.name + "_total" if counter else family.name
        if family.samples:
            sampled.add(name)
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        assert labels <= set(METRICS[name].labels), name
        assert family.type == METRICS[name].kind.value
    assert sampled == set(METRICS)


def test_rendering_while_another_thread_folds_loses_nothing() -> None:
    metrics = make_metrics(language_limit=500)
    languages = [f"l{number}" for number in range(300)]

    def fold() -> None:
        for language in languages:
            metrics.fold_cycle(cycle(sequence(language=language)))

    thread = threading.Thread(target=fold)
    thread.start()
    while thread.is_alive():
        metrics.render(snapshot(), GAUGES)
    thread.join()
    samples = read(metrics)
    counted = [value for key, value in samples.items() if key.startswith("accepted_tokens_total{")]
    assert counted == [4.0] * len(languages)
