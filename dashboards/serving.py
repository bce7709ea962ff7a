"""The dashboard of `paceline serve`."""

from dashboards.panel import Board, Variable
from dashboards.rows_speculation import CYCLES, DECISIONS, GAIN, HEALTH
from dashboards.rows_traffic import LATENCY, TRAFFIC

SERVING = Board(
    "paceline.json",
    "Paceline",
    "paceline-serving",
    "What speculative decoding does to each route and language, and what it gains.",
    (
        Variable("job", "Job", "label_values(paceline_build_info, job)"),
        Variable("instance", "Instance", 'label_values(paceline_build_info{job=~"$job"}, instance)'),
        Variable("route", "Route", 'label_values(paceline_kill_switch_active{job=~"$job"}, route)'),
    ),
    (TRAFFIC, GAIN, LATENCY, CYCLES, DECISIONS, HEALTH),
)
