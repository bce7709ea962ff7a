"""Rows of the serving dashboard about speculation: what it gains, what a cycle costs, who decided, what is broken."""

from dashboards.panel import INSTANCES, ROUTES, Form, Panel, Query, Row, over_range, quantile, rate, share

_ACCEPTED_AT = over_range("paceline_accepted_at_position_total", "drafter, position")
_REJECTED_AT = over_range("paceline_rejected_at_position_total", "drafter, position")
# A position may have seen only one of the two; then the other has no series, and counts as zero.
_KEPT = f"({_ACCEPTED_AT} or 0 * {_REJECTED_AT})"
_REJECTED = f"({_REJECTED_AT} or 0 * {_ACCEPTED_AT})"

SPEEDUP = Panel(
    "Speedup against measured plain",
    "TPOT of measured plain over TPOT as served, at equal load, with its 95 % interval. The line is 1.0: "
    "an interval above it is a proved gain, one below it a loss. Absent while unknown.",
    "suffix:x",
    (
        Query(f"avg by (route, language) (paceline_speedup_ratio{ROUTES})", "{{route}} {{language}}"),
        Query(f"avg by (route, language) (paceline_speedup_low_ratio{ROUTES})", "{{route}} {{language}} low"),
        Query(f"avg by (route, language) (paceline_speedup_high_ratio{ROUTES})", "{{route}} {{language}} high"),
    ),
    width=12,
    threshold=1.0,
)

WHOLE_GAIN = Panel(
    "Gain of everything",
    "TPOT of measured plain over TPOT as served, at equal load, over all requests, with its 95 % interval.",
    "suffix:x",
    (
        Query(f"avg (paceline_engine_speedup_ratio{INSTANCES})", "measured"),
        Query(f"avg (paceline_engine_speedup_low_ratio{INSTANCES})", "low"),
        Query(f"avg (paceline_engine_speedup_high_ratio{INSTANCES})", "high"),
    ),
    width=12,
    threshold=1.0,
)

POLICIES = Panel(
    "Policies in force",
    "Drafter, state and reason for each route and language, with the measured gain. "
    "`paceline explain ROUTE --language L` prints the evidence.",
    "short",
    (
        Query(f"max by (route, language, drafter, state, reason, version) (paceline_policy_info{ROUTES})", ""),
        Query(f"avg by (route, language) (paceline_speedup_ratio{ROUTES})", ""),
        Query(f"avg by (route, language) (paceline_speedup_low_ratio{ROUTES})", ""),
        Query(f"avg by (route, language) (paceline_speedup_high_ratio{ROUTES})", ""),
    ),
    Form.TABLE,
    width=16,
    columns={
        "route": "Route",
        "language": "Language",
        "drafter": "Drafter",
        "state": "State",
        "reason": "Reason",
        "version": "Version",
        "Value #B": "Speedup",
        "Value #C": "Low",
        "Value #D": "High",
    },
)

GAIN = Row(
    "Speculation",
    (
        SPEEDUP,
        Panel(
            "Acceptance",
            "Accepted over verified tokens, by route and language. A drop means that traffic, prompt or model changed.",
            "percentunit",
            (
                Query(
                    share(
                        rate("paceline_accepted_tokens_total", "route, language"),
                        rate("paceline_verified_tokens_total", "route, language"),
                    ),
                    "{{route}} {{language}}",
                ),
            ),
            width=12,
        ),
        WHOLE_GAIN,
        Panel(
            "Shadows",
            "Requests per second beside which a drafter proposed that did not serve, and the share of the cycles' time "
            "that this cost.",
            "short",
            (
                Query(rate("paceline_shadowed_requests_total", "drafter", INSTANCES), "{{drafter}}"),
                Query(
                    share(
                        rate("paceline_shadow_seconds_total", where=INSTANCES),
                        rate("paceline_cycle_seconds_sum", where=INSTANCES),
                    ),
                    "share of the time",
                ),
            ),
            width=12,
        ),
        Panel(
            "Block length by load",
            "K of the policy in force at each load; 0 is plain. It should fall as load rises.",
            "short",
            (
                Query(
                    f"max by (route, language, load) (paceline_policy_block_length{ROUTES})",
                    "{{route}} {{language}} at load {{load}}",
                ),
            ),
        ),
        Panel(
            "Predicted speedup by load",
            "What the cost model expects of the policy's schedule; compare with the measured speedup.",
            "suffix:x",
            (
                Query(
                    f"avg by (route, language, load) (paceline_predicted_speedup_ratio{ROUTES})",
                    "{{route}} {{language}} at load {{load}}",
                ),
            ),
            threshold=1.0,
        ),
        Panel(
            "Proposed, verified, accepted",
            "Draft tokens per second: offered by the drafter, sent through the target, kept.",
            "suffix: tokens/s",
            (
                Query(rate("paceline_proposed_tokens_total", "drafter"), "{{drafter}} proposed"),
                Query(rate("paceline_verified_tokens_total", "drafter"), "{{drafter}} verified"),
                Query(rate("paceline_accepted_tokens_total", "drafter"), "{{drafter}} accepted"),
            ),
        ),
        Panel(
            "Where blocks are rejected",
            "Blocks by the position of their first rejected token, over the range. Mostly 1: the drafter seldom fits.",
            "short",
            (
                Query(
                    _REJECTED_AT,
                    "{{drafter}} at {{position}}",
                ),
            ),
            Form.BARS,
            width=12,
        ),
        Panel(
            "Kept, by position",
            "Share of tokens kept among those whose position was reached, over the range: the hazards of the drafter.",
            "percentunit",
            (
                Query(
                    share(_KEPT, f"({_KEPT} + {_REJECTED})"),
                    "{{drafter}} at {{position}}",
                ),
            ),
            Form.BARS,
            width=12,
        ),
    ),
)

CYCLES = Row(
    "Cycles",
    (
        Panel(
            "Where the time goes",
            "Seconds per second spent drafting, verifying, on prompts, and on the rest of the cycles.",
            "percentunit",
            (
                Query(rate("paceline_draft_seconds_total", "drafter", INSTANCES), "draft {{drafter}}"),
                Query(rate("paceline_verify_seconds_total", where=INSTANCES), "verify"),
                Query(rate("paceline_prefill_seconds_total", where=INSTANCES), "prefill"),
                Query(
                    f"{rate('paceline_cycle_seconds_sum', where=INSTANCES)}"
                    f" - {rate('paceline_draft_seconds_total', where=INSTANCES)}"
                    f" - {rate('paceline_verify_seconds_total', where=INSTANCES)}",
                    "rest of the cycle",
                ),
            ),
            Form.STACKED,
            width=12,
        ),
        Panel(
            "Cycle time, p50",
            "Seconds of a decode cycle, in switchback windows (plain) and outside of them.",
            "s",
            (Query(quantile(0.5, "paceline_cycle_seconds", "window", INSTANCES), "{{window}}"),),
            width=12,
        ),
        Panel(
            "Plain cycle by load",
            "Mean seconds of measured plain cycles: what every gain is compared with.",
            "s",
            (Query(f"avg by (load) (paceline_baseline_cycle_seconds{INSTANCES})", "load {{load}}"),),
        ),
        Panel(
            "Switchback",
            "Share of time that plain windows take: as planned now, and of the cycles that were run.",
            "percentunit",
            (
                Query(f"avg (paceline_switchback_share_ratio{INSTANCES})", "planned"),
                Query(
                    share(
                        rate("paceline_cycles_total", where='{job=~"$job", instance=~"$instance", window="plain"}'),
                        rate("paceline_cycles_total", where=INSTANCES),
                    ),
                    "of cycles",
                ),
            ),
        ),
        Panel(
            "Seconds per output token",
            "Drafting and verification attributed to requests, over the tokens that they returned, by route.",
            "s",
            (
                Query(
                    share(
                        rate("paceline_request_draft_seconds_total", "route"),
                        rate("paceline_output_tokens_total", "route"),
                    ),
                    "{{route}} draft",
                ),
                Query(
                    share(
                        rate("paceline_request_verify_seconds_total", "route"),
                        rate("paceline_output_tokens_total", "route"),
                    ),
                    "{{route}} verify",
                ),
            ),
        ),
        Panel(
            "Prefill speed",
            "Prompt tokens per second of prefill, and tokens per second that were found in the KV cache instead.",
            "suffix: tokens/s",
            (
                Query(
                    share(
                        rate("paceline_prefill_tokens_total", where=INSTANCES),
                        rate("paceline_prefill_seconds_total", where=INSTANCES),
                    ),
                    "prefill",
                ),
                Query(rate("paceline_reused_tokens_total", where=INSTANCES), "from the KV cache"),
            ),
            width=12,
        ),
        Panel(
            "Model quality",
            "Error of the predicted cycle time, and how near a plain cycle at load 1 comes to its linear layers alone.",
            "percentunit",
            (
                Query(f"avg (paceline_cost_model_error_ratio{INSTANCES})", "cost model error"),
                Query(f"avg (paceline_linear_floor_ratio{INSTANCES})", "linear floor"),
            ),
            width=12,
        ),
    ),
)

DECISIONS = Row(
    "Policies",
    (
        POLICIES,
        Panel(
            "Policy changes",
            "New policy versions per hour, by reason. More than a few an hour: the gain is near zero there.",
            "short",
            (Query(f"3600 * {rate('paceline_policy_changes_total', 'reason')}", "{{reason}}"),),
        ),
        Panel(
            "Changes found",
            "Alarms per hour that acceptance, the cost of a cycle or a version is not as it was.",
            "short",
            (Query(f"3600 * {rate('paceline_changes_found_total', 'kind', INSTANCES)}", "{{kind}}"),),
        ),
        Panel(
            "Guardrails",
            "1 while a guardrail holds a route plain (* is every route), how often that began, and structured outputs "
            "without their form, both per hour.",
            "short",
            (
                Query(f"max by (route, check) (paceline_guardrail_held{INSTANCES})", "{{route}} {{check}}"),
                Query(
                    f"3600 * {rate('paceline_guardrail_trips_total', 'route, check', INSTANCES)}",
                    "{{route}} {{check}} trips",
                ),
                Query(f"3600 * {rate('paceline_invalid_outputs_total', 'route')}", "{{route}} invalid outputs"),
            ),
        ),
        Panel(
            "Safety budget",
            "Engine seconds that speculation may still lose against plain, and the most that the budget holds.",
            "s",
            (
                Query(f"min (paceline_safety_budget_seconds{INSTANCES})", "left"),
                Query(f"min (paceline_safety_budget_cap_seconds{INSTANCES})", "cap"),
            ),
        ),
        Panel(
            "Held by the budget",
            "1 while the safety budget is spent, so that only pins speculate, and how often that began per hour.",
            "short",
            (
                Query(f"max (paceline_safety_hold{INSTANCES})", "held"),
                Query(f"3600 * {rate('paceline_safety_holds_total', where=INSTANCES)}", "times"),
            ),
        ),
        Panel(
            "Kill switches and pins",
            "1 while speculation is killed for a route (* is everywhere), and the number of pins in force.",
            "short",
            (
                Query(f"max by (route) (paceline_kill_switch_active{INSTANCES})", "kill {{route}}"),
                Query(f"max (paceline_pins{INSTANCES})", "pins"),
            ),
        ),
        Panel(
            "Pins end in",
            "Time until each pin expires.",
            "s",
            (
                Query(
                    f"max by (route, language) (paceline_pin_expiry_timestamp_seconds{ROUTES}) - time()",
                    "{{route}} {{language}}",
                ),
            ),
            Form.BARS,
        ),
    ),
)

HEALTH = Row(
    "Health",
    (
        Panel(
            "Up",
            "1 while the engine process answers, and while the SQL store takes writes. Serving needs no store.",
            "short",
            (
                Query(f"min (paceline_engine_up{INSTANCES})", "engine"),
                Query(f"min (paceline_store_up{INSTANCES})", "store"),
            ),
            Form.NUMBERS,
            threshold=1.0,
        ),
        Panel(
            "Dropped",
            "Telemetry events and store rows dropped per second. Nothing that is served waits for either.",
            "short",
            (
                Query(rate("paceline_telemetry_dropped_total", where=INSTANCES), "telemetry"),
                Query(rate("paceline_recorder_dropped_total", where=INSTANCES), "recorder"),
            ),
        ),
        Panel(
            "Age of the policy snapshot",
            "Growing while traffic flows: the tuner is stuck, and the last policy stays in force.",
            "s",
            (Query(f"time() - min (paceline_snapshot_timestamp_seconds{INSTANCES})", "age"),),
        ),
        Panel(
            "What runs",
            "Model, number format, device and version of each instance.",
            "short",
            (
                Query(f"max by (instance, model, dtype, device) (paceline_engine_info{INSTANCES})", ""),
                Query(f"max by (instance, version, python) (paceline_build_info{INSTANCES})", ""),
            ),
            Form.TABLE,
            width=24,
            columns={
                "instance": "Instance",
                "model": "Model",
                "dtype": "Number format",
                "device": "Device",
                "version": "Version",
                "python": "Python",
            },
        ),
    ),
)
