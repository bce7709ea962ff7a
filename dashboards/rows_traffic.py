"""Rows of the serving dashboard that any server would have: traffic and latency."""

from dashboards.panel import INSTANCES, Form, Panel, Query, Row, over_range, quantile, rate, share

TRAFFIC = Row(
    "Traffic",
    (
        Panel(
            "Throughput",
            "Tokens that decode cycles emit per second, by route. The first token of a request comes from its prefill.",
            "suffix: tokens/s",
            (Query(rate("paceline_emitted_tokens_total", "route"), "{{route}}"),),
            Form.STACKED,
        ),
        Panel(
            "Tokens per busy second, tuned and plain",
            "Inside measured windows of the range: what is served against switchback windows, idle time left out. "
            "Loads differ between the two; the gain at equal load is the speedup below.",
            "suffix: tokens/s",
            (
                Query(
                    share(
                        over_range("paceline_window_tokens_total", "window"),
                        over_range("paceline_window_seconds_total", "window"),
                    ),
                    "{{window}}",
                ),
            ),
            Form.NUMBERS,
        ),
        Panel(
            "Requests by outcome",
            "Finished requests per second. A rising share of error or cancelled asks for a look at the log.",
            "reqps",
            (Query(rate("paceline_requests_total", "outcome"), "{{outcome}}"),),
            Form.STACKED,
        ),
        Panel(
            "Running and waiting",
            "Sequences in the engine's slots, requests without one, free KV blocks, and sequences that had "
            "to give theirs back. Waiting for minutes: add capacity.",
            "short",
            (
                Query(f"sum (paceline_running_sequences{INSTANCES})", "running"),
                Query(f"sum (paceline_waiting_requests{INSTANCES})", "waiting"),
                Query(f"sum (paceline_free_kv_blocks{INSTANCES})", "free KV blocks"),
                Query(rate("paceline_preemptions_total", where=INSTANCES), "preemptions per second"),
            ),
        ),
        Panel(
            "Decisions by reason",
            "Finished requests per second by the reason of their decision. `paceline explain` tells what it means.",
            "reqps",
            (
                Query(rate("paceline_decisions_total", "reason"), "{{reason}}"),
                Query(rate("paceline_decision_errors_total", where=INSTANCES), "failed decisions"),
            ),
        ),
        Panel(
            "Looping outputs",
            "Share of requests whose output repeated the same 8 tokens three times. Loops flatter n-gram drafting.",
            "percentunit",
            (
                Query(
                    share(rate("paceline_looped_requests_total", "route"), rate("paceline_requests_total", "route")),
                    "{{route}}",
                ),
            ),
        ),
    ),
)

LATENCY = Row(
    "Latency",
    (
        Panel(
            "Time per output token, p50 and p95",
            "Seconds per output token after the first, of finished requests, by route.",
            "s",
            (
                Query(quantile(0.5, "paceline_time_per_output_token_seconds", "route"), "{{route}} p50"),
                Query(quantile(0.95, "paceline_time_per_output_token_seconds", "route"), "{{route}} p95"),
            ),
        ),
        Panel(
            "Time to first token, p50 and p95",
            "From the arrival of a request at the server to its first token, by route.",
            "s",
            (
                Query(quantile(0.5, "paceline_time_to_first_token_seconds", "route"), "{{route}} p50"),
                Query(quantile(0.95, "paceline_time_to_first_token_seconds", "route"), "{{route}} p95"),
            ),
        ),
        Panel(
            "Queue, p95",
            "Seconds that a request waited for a slot, by route.",
            "s",
            (Query(quantile(0.95, "paceline_queue_seconds", "route"), "{{route}}"),),
        ),
        Panel(
            "Time per output token by drafter, p50",
            "Not at equal load and not the same requests: for the gain, read the speedup.",
            "s",
            (Query(quantile(0.5, "paceline_time_per_output_token_seconds", "drafter"), "{{drafter}}"),),
        ),
        Panel(
            "Time per output token by output length, p50",
            "Speculation pays over long outputs; here is whether short ones lose.",
            "s",
            (
                Query(
                    quantile(0.5, "paceline_time_per_output_token_seconds", "length_bucket"),
                    "{{length_bucket}} tokens",
                ),
            ),
        ),
        Panel(
            "Decode time of a request, p50",
            "From the first to the last token, by route.",
            "s",
            (Query(quantile(0.5, "paceline_decode_seconds", "route"), "{{route}}"),),
        ),
    ),
)
