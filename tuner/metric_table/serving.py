"""Metrics of a server: those of `paceline serve`, most of which a sidecar has too."""

from tuner.metric_table.row import counter, gauge, histogram

TTFT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8)
TPOT_BUCKETS = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.012, 0.016, 0.024, 0.032, 0.048, 0.064, 0.128, 0.25, 0.5)
QUEUE_BUCKETS = (0.001, 0.004, 0.016, 0.064, 0.25, 1.0, 4.0, 16.0, 64.0)
DECODE_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
CYCLE_BUCKETS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.024, 0.032, 0.048, 0.064, 0.096, 0.128, 0.256, 0.512)

ARM = ("route", "language", "drafter")
CONTEXT = ("route", "language")

SERVING = (
    # Requests, counted when they end.
    counter(
        "requests", "requests", (*ARM, "outcome"),
        "Finished requests.",
        "A rising share of error or cancelled: read the log, then the panels of queue and TTFT.",
    ),
    counter(
        "decisions", "requests", ("route", "reason"),
        "Finished requests by the reason of their decision.",
        "`paceline explain ROUTE --language L` tells what stands behind a reason.",
    ),
    counter(
        "decision_errors", "requests", (),
        "Requests that were served plain because the decision itself failed (reason ERROR).",
        "Should stay 0. Read the log and file a bug; serving goes on.",
    ),
    counter(
        "output_tokens", "tokens", ARM,
        "Tokens sent to clients, the first one of each request included; counted when the request ends.",
        "For billing and long windows; for live throughput use paceline_emitted_tokens_total.",
    ),
    counter(
        "looped_requests", "requests", ("route",),
        "Requests whose output repeated the same 8 tokens three times in a row.",
        "Loops flatter n-gram drafting: where they are common, distrust the gain and look at the sampling settings.",
    ),
    counter(
        "invalid_outputs", "requests", ("route",),
        "Structured outputs that came to their end and do not have the form that was asked of them.",
        "Should stay 0: a grammar holds them to it. File a bug; the guardrail stops speculation if that is the cause.",
    ),
    histogram(
        "time_to_first_token_seconds", ARM, TTFT_BUCKETS,
        "Seconds from the arrival of a request to its first token.",
        "High with a queue: add capacity. High without one: prompts are long, see the prefill share of a cycle.",
    ),
    histogram(
        "time_per_output_token_seconds", (*ARM, "length_bucket"), TPOT_BUCKETS,
        "Seconds per output token after the first, of one request.",
        "Compare routes and drafters at equal load; if a drafter is slower than none, see its speedup interval.",
    ),
    histogram(
        "queue_seconds", ("route",), QUEUE_BUCKETS,
        "Seconds that a request waited for a slot.",
        "Above zero for long: more arrivals than the engine serves; add capacity or slots.",
    ),
    histogram(
        "decode_seconds", ARM, DECODE_BUCKETS,
        "Seconds from the first to the last token of a request.",
        "Read together with output tokens; TPOT is the ratio of the two.",
    ),
    counter(
        "request_draft_seconds", "seconds", ARM,
        "Drafting seconds attributed to requests: each cycle's, divided by its load.",
        "A large share of decode seconds: the drafter costs too much here; a shorter block or another drafter.",
    ),
    counter(
        "request_verify_seconds", "seconds", ARM,
        "Verification seconds attributed to requests: each cycle's, divided by its load.",
        "Divide by output tokens for the target's own price of a token.",
    ),
    # Cycles, counted as they happen.
    counter(
        "cycles", "cycles", ("window",),
        "Decode cycles in switchback windows (plain) and outside of them (served).",
        "The plain share is what measuring the baseline costs; it falls as the interval narrows.",
    ),
    histogram(
        "cycle_seconds", ("window",), CYCLE_BUCKETS,
        "Seconds of one decode cycle: draft, allocation, verification, commit; no prefill, no waiting.",
        "A jump at equal load: something else uses the processors, or the machine throttles.",
    ),
    counter(
        "emitted_tokens", "tokens", ARM,
        "Tokens that decode cycles emitted; the first token of a request comes from its prefill.",
        "Its rate is the live throughput; over cycles times load it is the tokens per sequence and cycle.",
    ),
    counter(
        "proposed_tokens", "tokens", ARM,
        "Tokens that drafters offered.",
        "Zero while a policy is on: the drafter finds nothing to propose in this traffic.",
    ),
    counter(
        "verified_tokens", "tokens", ARM,
        "Proposed tokens that the allocation sent through the target.",
        "Far below proposed: the allocation expects the rest not to pay at this load.",
    ),
    counter(
        "accepted_tokens", "tokens", ARM,
        "Verified tokens that the target kept.",
        "Accepted over verified is the acceptance; a drop on one route means that its traffic or prompt changed.",
    ),
    counter(
        "accepted_at_position", "tokens", ("drafter", "position"),
        "Verified tokens kept, by their position in the block.",
        "With the rejected ones it gives the hazard of each position: where the curve falls, the block should end.",
    ),
    counter(
        "rejected_at_position", "blocks", ("drafter", "position"),
        "Blocks whose first rejected token stood at this position.",
        "Mostly position 1: the drafter seldom fits this traffic. Mostly late: longer blocks may pay.",
    ),
    counter(
        "draft_seconds", "seconds", ("drafter",),
        "Seconds spent drafting.",
        "Compare with verify seconds: drafting that costs as much as it saves should be off.",
    ),
    counter(
        "shadow_seconds", "seconds", (),
        "Seconds of drafting that nobody verifies: drafters scored beside requests, and copies that were not taken.",
        "Under 1 % of the cycles' seconds but for a start and after a change; it is what knowing them costs.",
    ),
    counter(
        "shadowed_requests", "requests", ("drafter",),
        "Requests beside which a drafter proposed that did not serve them.",
        "Zero for a drafter that does not serve: nothing new is learned of it.",
    ),
    counter(
        "verify_seconds", "seconds", (),
        "Seconds of the target's decode passes and the choice of their tokens.",
        "The floor of every cycle; grows with load and with the tokens verified.",
    ),
    counter(
        "prefill_seconds", "seconds", (),
        "Seconds spent on prompts.",
        "A large share: long prompts crowd out decoding; TTFT and TPOT both suffer.",
    ),
    counter(
        "prefill_tokens", "tokens", (),
        "Prompt tokens processed.",
        "Over prefill seconds: the speed of prefill.",
    ),
    counter(
        "reused_tokens", "tokens", (),
        "Tokens that a sequence found in the KV cache instead of computing them, from a text that began alike.",
        "Low with one long system prompt on every request: what differs stands before it, or the cache is too small.",
    ),
    counter(
        "preemptions", "sequences", (),
        "Times that a running sequence gave its KV blocks back and had to be computed again.",
        "Rising: the cache is too small for this load; raise engine.kv_blocks, or lower slots or the context limit.",
    ),
    gauge(
        "running_sequences", "sequences", (),
        "Sequences in the engine's slots.",
        "At the number of slots with requests waiting: the engine is full.",
    ),
    gauge(
        "waiting_requests", "requests", (),
        "Requests that have no slot yet.",
        "Above zero for minutes: add capacity.",
    ),
    gauge(
        "free_kv_blocks", "blocks", (),
        "Blocks of the KV cache that no sequence holds.",
        "Near zero while slots are free: long contexts hold the cache; lower slots or the context limit.",
    ),
    # Policies, read from the snapshot.
    gauge(
        "policy_info", "info", (*ARM, "state", "reason", "version"),
        "Always 1; the labels tell the policy in force for each route and language.",
        "`paceline explain ROUTE --language L` prints its evidence.",
    ),
    gauge(
        "policy_block_length", "tokens", (*CONTEXT, "load"),
        "Block length K of the policy at a load; 0 is plain.",
        "K should fall as load rises; to fix it, `paceline pin`.",
    ),
    counter(
        "policy_changes", "changes", (*CONTEXT, "reason"),
        "New versions of a policy.",
        "More than a few an hour: the gain is near zero there; pin it off or raise the margin.",
    ),
    gauge(
        "speedup_ratio", "ratio", CONTEXT,
        "TPOT of measured plain over TPOT as served, at equal load; above 1 is a gain. Absent while unknown.",
        "Read it with its interval; below 1 for long should not happen, file a bug.",
    ),
    gauge(
        "speedup_low_ratio", "ratio", CONTEXT,
        "Lower end of the 95 % interval of paceline_speedup_ratio.",
        "Above 1: the gain is proved.",
    ),
    gauge(
        "speedup_high_ratio", "ratio", CONTEXT,
        "Upper end of the 95 % interval of paceline_speedup_ratio.",
        "Below 1: speculation loses there; `paceline off ROUTE` while you look.",
    ),
    gauge(
        "engine_speedup_ratio", "ratio", (),
        "As paceline_speedup_ratio, over everything that is served: the gain of all that Paceline does.",
        "The one figure for the whole server; read it with its interval. Absent while unknown.",
    ),
    gauge(
        "engine_speedup_low_ratio", "ratio", (),
        "Lower end of the 95 % interval of paceline_engine_speedup_ratio.",
        "Above 1: the gain is proved.",
    ),
    gauge(
        "engine_speedup_high_ratio", "ratio", (),
        "Upper end of the 95 % interval of paceline_engine_speedup_ratio.",
        "Below 1: `paceline off --all` while you look.",
    ),
    gauge(
        "predicted_speedup_ratio", "ratio", (*CONTEXT, "load"),
        "Gain over plain that the cost model predicts for the policy's schedule at a load.",
        "Far from the measured speedup: see paceline_cost_model_error_ratio.",
    ),
    gauge(
        "baseline_cycle_seconds", "seconds", ("load",),
        "Mean seconds of a measured plain cycle at a load; absent for loads that plain windows have not met.",
        "What every gain is compared with; it should rise smoothly with load.",
    ),
    gauge(
        "switchback_share_ratio", "ratio", (),
        "Share of time that plain windows take now; of a fleet with a plain pool, share of sessions that it serves.",
        "Starts at 0.02 and falls; if it stays high, traffic is too thin or too mixed to narrow the interval.",
    ),
    counter(
        "window_tokens", "tokens", ("window",),
        "Tokens emitted inside measured windows, the first cycle after each switch left out.",
        "Over paceline_window_seconds_total: tokens per busy second, tuned and plain.",
    ),
    counter(
        "window_seconds", "seconds", ("window",),
        "Busy seconds inside measured windows, the first cycle after each switch left out.",
        "See paceline_window_tokens_total.",
    ),
    gauge(
        "cost_model_error_ratio", "ratio", (),
        "Median absolute relative error of the seconds predicted for cycles before the model learned from them.",
        "Above 0.1 for long: decisions lean on a wrong cost; look for other work on the machine.",
    ),
    counter(
        "changes_found", "changes", ("kind",),
        "Alarms that acceptance, the cost of a cycle or a version is not as it was: what was learned is dropped.",
        "After a rollout: as it should be. Every few minutes: traffic swings, or other work takes the processors.",
    ),
    gauge(
        "safety_budget_seconds", "seconds", (),
        "Engine seconds that speculation may still lose against plain before only proven arms go on, then none.",
        "Falling: predictions are too hopeful, see paceline_cost_model_error_ratio.",
    ),
    gauge(
        "safety_budget_cap_seconds", "seconds", (),
        "Most that the safety budget can hold: 1 % of the plain work of 500 requests.",
        "See paceline_safety_budget_seconds.",
    ),
    gauge(
        "safety_hold", "boolean", (),
        "1 while the safety budget is spent, so that nothing but pins speculates.",
        "It opens by itself as plain cycles fill the budget again.",
    ),
    counter(
        "safety_holds", "changes", (),
        "Times that the safety budget was spent.",
        "Often: speculation hardly pays on this machine at this load; raise tuner.margin.",
    ),
    gauge(
        "guardrail_held", "boolean", ("route", "check"),
        "1 while a guardrail holds a route plain, or lets only a share of its requests try again; * is every route.",
        "`paceline explain ROUTE --language L` tells what was measured.",
    ),
    counter(
        "guardrail_trips", "changes", ("route", "check"),
        "Times that a guardrail held a route plain.",
        "Again and again: speculation breaks an objective there; `paceline off ROUTE`, or a looser objective.",
    ),
    gauge(
        "linear_floor_ratio", "ratio", (),
        "Seconds of the target's linear layers alone over a measured plain cycle, both at load 1; 1 is perfect.",
        "Low: attention, sampling or Python eat the cycle; check threads and neighbours on the machine.",
    ),
    gauge(
        "pins", "pins", (),
        "Pins in force.",
        "Forgotten pins stop the learning; `paceline status` lists them with their expiry.",
    ),
    gauge(
        "pin_expiry_timestamp_seconds", "seconds", CONTEXT,
        "Unix time at which a pin ends; language * is every language of the route.",
        "Renew it or let it end.",
    ),
    gauge(
        "kill_switch_active", "boolean", ("route",),
        "1 while speculation is killed for a route; route * is everywhere.",
        "After the incident, `paceline on`.",
    ),
    gauge(
        "snapshot_timestamp_seconds", "seconds", (),
        "Unix time at which the policy snapshot in force was published.",
        "Old while traffic flows: the tuner is stuck; serving goes on with the last policy. Restart when it suits.",
    ),
    # Health.
    gauge(
        "store_up", "boolean", (),
        "1 while the SQL store takes writes.",
        "0: repair the database. Serving goes on; what does not fit the queue is dropped and counted.",
    ),
    counter(
        "recorder_dropped", "events", (),
        "Rows that the recorder dropped before they reached the store.",
        "Rising: the store is down or too slow.",
    ),
    counter(
        "telemetry_dropped", "events", (),
        "Events that the bounded telemetry queue dropped.",
        "Rising: the tuner cannot keep up; the engine is not slowed. Give the control process a core.",
    ),
    gauge(
        "engine_up", "boolean", (),
        "1 while the engine process answers; of a sidecar, while requests are sent to any upstream.",
        "0: requests fail. Read the log and restart the service.",
    ),
    gauge(
        "engine_info", "info", ("model", "dtype", "device"),
        "Always 1; what the engine serves and on what.",
        "Compare replicas.",
    ),
    gauge(
        "build_info", "info", ("version", "python"),
        "Always 1; the version that runs.",
        "Compare replicas after a rollout.",
    ),
)  # fmt: skip
