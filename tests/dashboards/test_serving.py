"""The serving dashboard against the table of metrics: every query parses, and asks for what exists."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import promql_parser
import pytest
from grafana_foundation_sdk.models.dashboard import Dashboard

import dashboards
from dashboards.panel import Form, Panel, Query
from dashboards.serving import panels, serving_json
from tests.dashboards.grafana_variables import substitute
from tuner.metrics import METRICS, Kind

COMMITTED = Path(dashboards.__file__).parent / "paceline.json"
SCRAPE_LABELS = {"job", "instance", "le"}
PANELS = {panel.title: panel for _, panel in panels()}


def nodes(query: str) -> list[Any]:
    """Every node of a query's syntax tree."""
    found: list[Any] = []
    promql_parser.walk(promql_parser.parse(substitute(query)), pre_visit=lambda node: found.append(node))
    return found


def selectors(query: str) -> Iterator[tuple[Any, bool]]:
    """(selector, whether a rate or an increase is taken of it)."""
    ranged = {str(node.vector_selector) for node in nodes(query) if isinstance(node, promql_parser.MatrixSelector)}
    for node in nodes(query):
        if isinstance(node, promql_parser.MatrixSelector):
            yield node.vector_selector, True
        elif isinstance(node, promql_parser.VectorSelector) and str(node) not in ranged:
            yield node, False


def metric_of(series: str) -> str:
    """The table's name of a series: a histogram's without its suffix."""
    stem = re.sub(r"_(bucket|sum|count)$", "", series)
    return stem if stem in METRICS and METRICS[stem].kind is Kind.HISTOGRAM else series


def problems(panel: Panel) -> list[str]:
    """What is wrong with a panel, one sentence each."""
    found = [f"{panel.title}: no {name}" for name in ("title", "description", "unit") if not getattr(panel, name)]
    if not panel.queries:
        found.append(f"{panel.title}: no query")
    for query in panel.queries:
        available = set(SCRAPE_LABELS)
        for selector, ranged in selectors(query.expr):
            metric = METRICS.get(metric_of(selector.name))
            if metric is None:
                found.append(f"{panel.title}: {selector.name} does not exist")
                continue
            available |= set(metric.labels)
            matched = {matcher.name for matcher in selector.matchers.matchers}
            found += [f"{panel.title}: {name} is not matched" for name in ("job", "instance") if name not in matched]
            found += [
                f"{panel.title}: {metric.name} has no {name}" for name in matched - {*metric.labels, *SCRAPE_LABELS}
            ]
            if (metric.kind is Kind.GAUGE) == ranged:
                found.append(
                    f"{panel.title}: {selector.name} is a {metric.kind}, read {'with' if ranged else 'without'} a rate"
                )
        named = set(re.findall(r"{{(\w+)}}", query.legend))
        for node in nodes(query.expr):
            if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
                named |= set(node.modifier.labels)
        found += [f"{panel.title}: no metric of the query has the label {name}" for name in named - available]
    return found


def test_the_committed_dashboard_is_the_one_that_the_code_makes() -> None:
    assert COMMITTED.read_text(encoding="utf-8") == serving_json(), "run `make docs` and commit the result"


def test_the_json_survives_a_round_trip_through_grafanas_own_types() -> None:
    loaded = json.loads(serving_json())
    again = Dashboard.from_json(loaded)
    assert again.uid == "paceline-serving"
    assert [panel.title for panel in again.panels or []] == [panel["title"] for panel in loaded["panels"]]


def test_panel_ids_are_unique_and_panels_do_not_overlap() -> None:
    drawn = json.loads(serving_json())["panels"]
    assert len({panel["id"] for panel in drawn}) == len(drawn)
    cells = [
        (panel["gridPos"]["x"] + column, panel["gridPos"]["y"] + line)
        for panel in drawn
        for column in range(panel["gridPos"]["w"])
        for line in range(panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(column for column, _ in cells) == 23


@pytest.mark.parametrize("title", PANELS)
def test_a_panel_asks_for_what_exists(title: str) -> None:
    assert problems(PANELS[title]) == []


def test_every_query_of_the_json_is_a_query_of_the_panels() -> None:
    drawn = [target["expr"] for panel in json.loads(serving_json())["panels"] for target in panel.get("targets", [])]
    assert drawn == [query.expr for panel in PANELS.values() for query in panel.queries]


def test_every_metric_is_on_the_board() -> None:
    charted = {
        metric_of(selector.name)
        for panel in PANELS.values()
        for query in panel.queries
        for selector, _ in selectors(query.expr)
    }
    assert charted == set(METRICS)


def test_the_variables_are_datasource_job_instance_and_route() -> None:
    variables = json.loads(serving_json())["templating"]["list"]
    assert [variable["name"] for variable in variables] == ["datasource", "job", "instance", "route"]
    for variable in variables[1:]:
        metric, label = re.findall(r"label_values\((\w+)[^,]*, (\w+)\)", variable["query"])[0]
        assert label in {*METRICS[metric].labels, *SCRAPE_LABELS}
        assert variable["includeAll"]


@pytest.mark.parametrize(
    ("expr", "complaint"),
    [
        ('sum (paceline_nothing{job=~"$job", instance=~"$instance"})', "does not exist"),
        ('sum (rate(paceline_requests_total{job=~"$job"}[$__rate_interval]))', "instance is not matched"),
        ('sum (paceline_requests_total{job=~"$job", instance=~"$instance"})', "without a rate"),
        ('sum (rate(paceline_pins{job=~"$job", instance=~"$instance"}[$__rate_interval]))', "with a rate"),
        ('sum by (tenant) (paceline_pins{job=~"$job", instance=~"$instance"})', "label tenant"),
        ('sum (paceline_pins{job=~"$job", instance=~"$instance", route=~"$route"})', "has no route"),
    ],
)
def test_the_check_sees_a_wrong_query(expr: str, complaint: str) -> None:
    broken = replace(PANELS["Throughput"], queries=(Query(expr, ""),))
    assert [sentence for sentence in problems(broken) if complaint in sentence]


def test_the_check_sees_a_missing_title_unit_or_query() -> None:
    assert len(problems(Panel("", "", "", (), Form.LINES))) == 4
