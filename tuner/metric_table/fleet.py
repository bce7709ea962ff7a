"""Metrics of `paceline sidecar` alone, and what of a server's nobody tells it."""

from tuner.metric_table.row import PREFIX, counter, gauge, histogram

FIRST_BYTE_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6)
OVERHEAD_BUCKETS = (0.0001, 0.000_25, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05)

FLEET = (
    # The data path.
    counter(
        "exchanges", "exchanges", ("upstream", "lane", "end"),
        "Requests that were passed on, by the way they were sent and how they ended.",
        "Many broken, timed_out or upstream_error: read that upstream's log; client_error says nothing of its health.",
    ),
    histogram(
        "upstream_first_byte_seconds", ("upstream",), FIRST_BYTE_BUCKETS,
        "Seconds from a request's last byte to the first byte of its answer, of streamed answers.",
        "One upstream above its replicas: its queue is longer or its prefix cache colder; see its load.",
    ),
    histogram(
        "proxy_overhead_seconds", (), OVERHEAD_BUCKETS,
        "Seconds that the proxy took before it passed a request on; has buckets only.",
        "Above 2 ms at p99: the data path lacks processor time; give it a core of its own.",
    ),
    counter(
        "exchanges_dropped", "exchanges", (),
        "Exchanges that the data path measured and the tuner did not take.",
        "Rising: the tuner cannot keep up; no request waits for it. Give the control process a core.",
    ),
    counter(
        "chooser_faults", "requests", (),
        "Requests that were passed on as they came since the choice of their upstream failed.",
        "Should stay 0. Read the log and file a bug; serving goes on.",
    ),
    # Upstreams, from their own counters.
    counter(
        "upstream_cycles", "cycles", ("upstream",),
        "Cycles of one sequence in which an upstream verified drafts, by its own count.",
        "Accepted over cycles, and one more, is the tokens that a cycle brings.",
    ),
    counter(
        "upstream_drafted_tokens", "tokens", ("upstream",),
        "Tokens that an upstream's drafter proposed, by its own count; absent where it does not tell.",
        "No increase under traffic at an upstream that was launched to draft: it pays for a drafter that is idle.",
    ),
    counter(
        "upstream_accepted_tokens", "tokens", ("upstream",),
        "Drafted tokens that an upstream kept, bonus tokens not counted; absent where it does not tell.",
        "Over drafted tokens it is the acceptance; a fall means that traffic, prompt or model changed.",
    ),
    counter(
        "upstream_restarts", "changes", ("upstream",),
        "Times that an upstream began anew: its counters fell, or it tells of another version or other models.",
        "After a rollout: as it should be. Again and again: it crashes; read its log.",
    ),
    counter(
        "telemetry_missing", "events", ("upstream", "source"),
        "Readings of an upstream's metrics that failed or had no counts, and generations that ended without theirs.",
        "metrics: launch the upstream with its metrics on. answer: let Paceline ask for usage, with mode advise.",
    ),
    # vLLM's plug-in, by its own word.
    counter(
        "plugin_steps", "steps", ("upstream",),
        "Steps of vLLM's scheduler that its plug-in saw.",
        "See paceline_plugin_seconds_total.",
    ),
    counter(
        "plugin_seconds", "seconds", ("upstream",),
        "Seconds that the plug-in added to the steps of vLLM's scheduler.",
        "Over paceline_plugin_steps_total: what steering costs a step; above 1 ms, file a bug.",
    ),
    counter(
        "plugin_faults", "events", ("upstream",),
        "Faults of the plug-in itself; vLLM went on as it does without it.",
        "Should stay 0. vLLM's log tells the first one; file a bug.",
    ),
    counter(
        "plugin_reports_dropped", "events", ("upstream",),
        "Reports of the plug-in that were dropped because nobody took them in time.",
        "Rising: the tuner cannot keep up; vLLM is not slowed. Give the control process a core.",
    ),
    counter(
        "plugin_unread_words", "requests", ("upstream",),
        "Requests whose word for the plug-in could not be read; they were served as those that come without one.",
        "Rising: the plug-in is of another version; write it anew with `paceline plugin vllm`, and restart vLLM.",
    ),
    # The present.
    gauge(
        "proxy_streams", "exchanges", (),
        "Requests that are in progress.",
        "Rising without end: upstreams hang; see fleet.idle_seconds.",
    ),
    gauge(
        "upstream_up", "boolean", ("upstream",),
        "1 while requests are sent to an upstream.",
        "0: `paceline status` tells why. It is tried again by itself.",
    ),
    gauge(
        "upstream_in_flight", "requests", ("upstream",),
        "Requests in progress at an upstream.",
        "Uneven between replicas: sessions hold on to where their prefix is cached.",
    ),
    gauge(
        "plugin_steered", "boolean", ("upstream",),
        "1 while every plug-in of an upstream steers by a policy; absent where none has ever come.",
        "0: its policy is too old, or it is gone; blocks are as vLLM was launched. See both logs.",
    ),
    gauge(
        "upstream_info", "info", ("upstream", "engine", "version", "model", "drafter", "block_length"),
        "Always 1; the labels tell who serves at an upstream, and what it drafts with.",
        "Compare replicas after a rollout; an unknown drafter is named in fleet.upstreams.",
    ),
    gauge(
        "capability_info", "info", ("upstream", "lever", "effect"),
        "Always 1; the labels tell what came of pulling a lever of an upstream.",
        "ignored or refused: `paceline doctor --url URL` says what was tried, and what to do instead.",
    ),
    gauge(
        "lane_info", "info", ("lane", "upstream", "drafter", "block_length"),
        "Always 1; the labels tell where a lane leads and what it drafts with.",
        "No lane with drafter none: there is no plain pool, and every gain stays unknown.",
    ),
)  # fmt: skip

NEEDS_OWN_ENGINE = frozenset(
    PREFIX + name
    for name in (
        "request_draft_seconds_total",
        "request_verify_seconds_total",
        "draft_seconds_total",
        "verify_seconds_total",
        "shadow_seconds_total",
        "prefill_seconds_total",
        "reused_tokens_total",
        "preemptions_total",
        "running_sequences",
        "waiting_requests",
        "free_kv_blocks",
        "linear_floor_ratio",
        "engine_info",
    )
)
"""Of a server's metrics, those that no sidecar can tell: they have their HELP and TYPE there, and no number.

vLLM drafts and verifies in one go, and its plug-in does not see how long each of them takes."""

NEEDS_PLUGIN = frozenset(
    PREFIX + name
    for name in (
        "looped_requests_total",
        "queue_seconds",
        "shadowed_requests_total",
        "prefill_tokens_total",
        "cycles_total",
        "cycle_seconds",
        "emitted_tokens_total",
        "proposed_tokens_total",
        "verified_tokens_total",
        "accepted_tokens_total",
        "accepted_at_position_total",
        "rejected_at_position_total",
        "baseline_cycle_seconds",
        "window_tokens_total",
        "window_seconds_total",
        "safety_budget_seconds",
        "safety_budget_cap_seconds",
        "safety_hold",
        "safety_holds_total",
    )
)
"""Of a server's metrics, those that a sidecar tells only of cycles and requests that vLLM's plug-in reports."""
