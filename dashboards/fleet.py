"""The dashboard of `paceline sidecar`: the upstreams behind it, what they draft, and what passing through costs."""

from dashboards.panel import INSTANCES, Board, Form, Panel, Query, Row, Variable, quantile, rate, share
from dashboards.rows_speculation import POLICIES, SPEEDUP, WHOLE_GAIN

UPSTREAMS = '{job=~"$job", instance=~"$instance", upstream=~"$upstream"}'
_DONE = '{job=~"$job", instance=~"$instance", upstream=~"$upstream", end="done"}'
_KNOWN_DRAFTER = '{job=~"$job", instance=~"$instance", upstream=~"$upstream", drafter!~"none|unknown"}'


def _by_upstream(metric: str) -> str:
    return rate(metric, "upstream", UPSTREAMS)


UPSTREAM_ROW = Row(
    "Upstreams",
    (
        Panel(
            "Upstreams",
            "Who serves at each upstream, what it drafts with, whether requests are sent to it, and how many are there "
            "now. An upstream that is down is tried again by itself; `paceline status` tells why it is.",
            "short",
            (
                Query(
                    "max by (instance, upstream, engine, version, model, drafter, block_length) "
                    f"(paceline_upstream_info{UPSTREAMS})",
                    "",
                ),
                Query(f"min by (instance, upstream) (paceline_upstream_up{UPSTREAMS})", ""),
                Query(f"sum by (instance, upstream) (paceline_upstream_in_flight{UPSTREAMS})", ""),
            ),
            Form.TABLE,
            width=24,
            columns={
                "instance": "Sidecar",
                "upstream": "Upstream",
                "engine": "Engine",
                "version": "Version",
                "model": "Model",
                "drafter": "Drafter",
                "block_length": "Block length",
                "Value #B": "Up",
                "Value #C": "In flight",
            },
        ),
        Panel(
            "Exchanges by upstream",
            "Requests passed on per second. Uneven between replicas: sessions hold on to where their prefix is cached.",
            "reqps",
            (Query(_by_upstream("paceline_exchanges_total"), "{{upstream}}"),),
            Form.STACKED,
        ),
        Panel(
            "Exchanges by end",
            "Requests passed on per second, by how they ended. broken, timed_out and upstream_error are the upstream's "
            "doing; cancelled and client_error are the client's.",
            "reqps",
            (Query(rate("paceline_exchanges_total", "end", UPSTREAMS), "{{end}}"),),
            Form.STACKED,
        ),
        Panel(
            "In flight",
            "Requests in progress at each upstream, and at all of them.",
            "short",
            (
                Query(f"sum by (upstream) (paceline_upstream_in_flight{UPSTREAMS})", "{{upstream}}"),
                Query(f"sum (paceline_proxy_streams{INSTANCES})", "all"),
            ),
        ),
        Panel(
            "First byte, p50 and p95",
            "From a request's last byte to the first byte of its streamed answer, by upstream.",
            "s",
            (
                Query(quantile(0.5, "paceline_upstream_first_byte_seconds", "upstream", UPSTREAMS), "{{upstream}} p50"),
                Query(
                    quantile(0.95, "paceline_upstream_first_byte_seconds", "upstream", UPSTREAMS), "{{upstream}} p95"
                ),
            ),
        ),
        Panel(
            "Restarts",
            "Upstreams that began anew, per hour: counters that fell, another version, other models.",
            "short",
            (Query(f"3600 * {_by_upstream('paceline_upstream_restarts_total')}", "{{upstream}}"),),
        ),
        Panel(
            "Down",
            "1 while no requests are sent to an upstream. For an alert: above 0 for a minute.",
            "short",
            (Query(f"1 - min by (upstream) (paceline_upstream_up{UPSTREAMS})", "{{upstream}}"),),
        ),
    ),
)

GAIN_ROW = Row("Gain", (SPEEDUP, WHOLE_GAIN, POLICIES))

DRAFTING = Row(
    "Drafting",
    (
        Panel(
            "Exchanges by lane",
            "Requests passed on per second, by the way they were sent; unchosen were passed on as they came.",
            "reqps",
            (Query(rate("paceline_exchanges_total", "lane", UPSTREAMS), "{{lane}}"),),
            Form.STACKED,
        ),
        Panel(
            "Acceptance",
            "Accepted over drafted tokens, by the upstream's own counts. A gap: it drafts nothing, or does not tell.",
            "percentunit",
            (
                Query(
                    share(
                        _by_upstream("paceline_upstream_accepted_tokens_total"),
                        _by_upstream("paceline_upstream_drafted_tokens_total"),
                    ),
                    "{{upstream}}",
                ),
            ),
        ),
        Panel(
            "Tokens per cycle",
            "Accepted tokens of a cycle with drafts and the target's own one. 1 is plain.",
            "short",
            (
                Query(
                    "1 + "
                    + share(
                        _by_upstream("paceline_upstream_accepted_tokens_total"),
                        _by_upstream("paceline_upstream_cycles_total"),
                    ),
                    "{{upstream}}",
                ),
            ),
            threshold=1.0,
        ),
        Panel(
            "Drafted",
            "Draft tokens per second, by the upstream's own counts.",
            "suffix: tokens/s",
            (Query(_by_upstream("paceline_upstream_drafted_tokens_total"), "{{upstream}}"),),
        ),
        Panel(
            "Launched to draft, and idle",
            "Requests per second at an upstream that was launched with a drafter and drafts nothing: it holds memory, "
            "and nobody gains. Steered to plain it is as it should be. For an alert: present for 15 minutes.",
            "reqps",
            (
                Query(
                    f"({rate('paceline_exchanges_total', 'upstream', _DONE)} > 0)"
                    f" and on (upstream) ({_by_upstream('paceline_upstream_drafted_tokens_total')} == 0)"
                    f" and on (upstream) (paceline_upstream_info{_KNOWN_DRAFTER})",
                    "{{upstream}}",
                ),
            ),
        ),
        Panel(
            "Lanes",
            "Where each lane leads, and what it drafts with. Without a lane whose drafter is none there is no plain "
            "pool, and gains stay unknown.",
            "short",
            (Query(f"max by (lane, upstream, drafter, block_length) (paceline_lane_info{UPSTREAMS})", ""),),
            Form.TABLE,
            columns={
                "lane": "Lane",
                "upstream": "Upstream",
                "drafter": "Drafter",
                "block_length": "Block length",
            },
        ),
    ),
)

PLUGIN = Row(
    "vLLM's plug-in",
    (
        Panel(
            "Steered",
            "1 while the plug-ins of an upstream steer by a policy; 0 is blocks as vLLM was launched.",
            "short",
            (Query(f"min by (upstream) (paceline_plugin_steered{UPSTREAMS})", "{{upstream}}"),),
            Form.NUMBERS,
            threshold=1.0,
        ),
        Panel(
            "What steering costs",
            "Seconds that the plug-in adds to a step of vLLM's scheduler.",
            "s",
            (
                Query(
                    share(
                        _by_upstream("paceline_plugin_seconds_total"),
                        _by_upstream("paceline_plugin_steps_total"),
                    ),
                    "{{upstream}}",
                ),
            ),
        ),
        Panel(
            "Faults of the plug-in",
            "Per hour: faults of its own, reports that nobody took, requests whose word could not be read. vLLM serves "
            "on in each case.",
            "short",
            (
                Query(f"3600 * {_by_upstream('paceline_plugin_faults_total')}", "{{upstream}} faults"),
                Query(f"3600 * {_by_upstream('paceline_plugin_reports_dropped_total')}", "{{upstream}} reports"),
                Query(f"3600 * {_by_upstream('paceline_plugin_unread_words_total')}", "{{upstream}} words"),
            ),
        ),
    ),
)

TRUST = Row(
    "What passing through costs, and what is not known",
    (
        Panel(
            "Added by the proxy, p50 and p99",
            "Seconds from a request's last byte to its being passed on.",
            "s",
            tuple(
                Query(
                    f"histogram_quantile({fraction}, sum by (le) "
                    f"(rate(paceline_proxy_overhead_seconds_bucket{INSTANCES}[$__rate_interval])))",
                    legend,
                )
                for fraction, legend in ((0.5, "p50"), (0.99, "p99"))
            ),
        ),
        Panel(
            "Telemetry missing",
            "Per hour: readings of an upstream's metrics that failed or had no counts, and generations that ended "
            "without theirs. For an alert: metrics above 0 for 10 minutes.",
            "short",
            (
                Query(
                    f"3600 * {rate('paceline_telemetry_missing_total', 'upstream, source', UPSTREAMS)}",
                    "{{upstream}} {{source}}",
                ),
            ),
        ),
        Panel(
            "Lost on our side",
            "Per hour: exchanges that the tuner did not take, and requests passed on as they came since the choice "
            "failed. No request waits for either.",
            "short",
            (
                Query(f"3600 * {rate('paceline_exchanges_dropped_total', where=INSTANCES)}", "exchanges dropped"),
                Query(f"3600 * {rate('paceline_chooser_faults_total', where=INSTANCES)}", "chooser's faults"),
            ),
        ),
        Panel(
            "Levers",
            "What came of pulling each lever of an upstream. `paceline doctor --url URL` says what was tried.",
            "short",
            (Query(f"max by (instance, upstream, lever, effect) (paceline_capability_info{UPSTREAMS})", ""),),
            Form.TABLE,
            width=24,
            columns={"instance": "Sidecar", "upstream": "Upstream", "lever": "Lever", "effect": "Effect"},
        ),
    ),
)

FLEET = Board(
    "paceline-fleet.json",
    "Paceline fleet",
    "paceline-fleet",
    "The upstreams behind a sidecar: what they serve, what they draft, and what speculation gains on each route.",
    (
        Variable("job", "Job", "label_values(paceline_proxy_streams, job)"),
        Variable("instance", "Instance", 'label_values(paceline_proxy_streams{job=~"$job"}, instance)'),
        Variable("upstream", "Upstream", 'label_values(paceline_upstream_up{job=~"$job"}, upstream)'),
        Variable("route", "Route", 'label_values(paceline_kill_switch_active{job=~"$job"}, route)'),
    ),
    (UPSTREAM_ROW, GAIN_ROW, DRAFTING, PLUGIN, TRUST),
)
