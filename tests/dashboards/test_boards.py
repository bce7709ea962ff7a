"""The dashboards against the tables of metrics: every query parses, and asks for what exists."""

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
from dashboards.__main__ import BOARDS
from dashboards.drawing import board_json
from dashboards.fleet import FLEET
from dashboards.panel import Board, Form, Panel, Query
from dashboards.serving import SERVING
from tests.dashboards.grafana_variables import VALUES, substitute
from tuner.metric_table import NEEDS_OWN_ENGINE
from tuner.metrics import FLEET_METRICS, METRICS, Kind

FOLDER = Path(dashboards.__file__).parent
TABLE = {**METRICS, **FLEET_METRICS}
SCRAPE_LABELS = {"job", "instance", "le"}
each_board = pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)


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
    return stem if stem in TABLE and TABLE[stem].kind is Kind.HISTOGRAM else series


def problems(panel: Panel) -> list[str]:
    """What is wrong with a panel, one sentence each."""
    found = [f"{panel.title}: no {name}" for name in ("title", "description", "unit") if not getattr(panel, name)]
    if not panel.queries:
        found.append(f"{panel.title}: no query")
    for query in panel.queries:
        available = set(SCRAPE_LABELS)
        for selector, ranged in selectors(query.expr):
            metric = TABLE.get(metric_of(selector.name))
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


def charted(board: Board) -> set[str]:
    """The metrics that a board asks for."""
    queries = [query for panel in board.panels for query in panel.queries]
    return {metric_of(selector.name) for query in queries for selector, _ in selectors(query.expr)}


@each_board
def test_the_committed_dashboard_is_the_one_that_the_code_makes(board: Board) -> None:
    committed = (FOLDER / board.file).read_text(encoding="utf-8")
    assert committed == board_json(board), "run `make docs` and commit the result"


@each_board
def test_the_json_survives_a_round_trip_through_grafanas_own_types(board: Board) -> None:
    loaded = json.loads(board_json(board))
    again = Dashboard.from_json(loaded)
    assert again.uid == board.uid
    assert [panel.title for panel in again.panels or []] == [panel["title"] for panel in loaded["panels"]]


@each_board
def test_panel_ids_are_unique_and_panels_do_not_overlap(board: Board) -> None:
    drawn = json.loads(board_json(board))["panels"]
    assert len({panel["id"] for panel in drawn}) == len(drawn)
    cells = [
        (panel["gridPos"]["x"] + column, panel["gridPos"]["y"] + line)
        for panel in drawn
        for column in range(panel["gridPos"]["w"])
        for line in range(panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(column for column, _ in cells) == 23


def test_boards_are_told_apart_by_their_titles_and_files() -> None:
    for names in ([board.title for board in BOARDS], [board.uid for board in BOARDS], [board.file for board in BOARDS]):
        assert len(set(names)) == len(BOARDS)


@pytest.mark.parametrize(
    "panel",
    [pytest.param(panel, id=f"{board.uid}-{panel.title}") for board in BOARDS for panel in board.panels],
)
def test_a_panel_asks_for_what_exists(panel: Panel) -> None:
    assert problems(panel) == []


@each_board
def test_every_query_of_the_json_is_a_query_of_the_panels(board: Board) -> None:
    assert len({panel.title for panel in board.panels}) == len(board.panels)
    drawn = [target["expr"] for panel in json.loads(board_json(board))["panels"] for target in panel.get("targets", [])]
    assert drawn == [query.expr for panel in board.panels for query in panel.queries]


def test_every_metric_of_a_server_is_on_its_board() -> None:
    assert charted(SERVING) == set(METRICS)


def test_every_metric_of_a_sidecar_alone_is_on_the_fleets_board_with_the_gain_of_each_route() -> None:
    gain = {"paceline_speedup_ratio", "paceline_speedup_low_ratio", "paceline_speedup_high_ratio"}
    assert charted(FLEET) >= {*FLEET_METRICS, *gain}


def test_the_fleets_board_shows_nothing_that_a_sidecar_never_tells() -> None:
    assert charted(FLEET) & NEEDS_OWN_ENGINE == set()


@pytest.mark.parametrize(
    ("board", "names"),
    [
        (SERVING, ["datasource", "job", "instance", "route"]),
        (FLEET, ["datasource", "job", "instance", "upstream", "route"]),
    ],
)
def test_a_boards_variables_are_those_that_its_queries_use(board: Board, names: list[str]) -> None:
    variables = json.loads(board_json(board))["templating"]["list"]
    assert [variable["name"] for variable in variables] == names
    for variable in variables[1:]:
        metric, label = re.findall(r"label_values\((\w+)[^,]*, (\w+)\)", variable["query"])[0]
        assert label in {*TABLE[metric].labels, *SCRAPE_LABELS}
        assert variable["includeAll"]
    used = {name for panel in board.panels for query in panel.queries for name in re.findall(r"\$\w+", query.expr)}
    assert used <= set(VALUES)
    assert {name for name in used if not name.startswith("$__")} == {f"${name}" for name in names[1:]}


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
    broken = replace(SERVING.panels[0], queries=(Query(expr, ""),))
    assert [sentence for sentence in problems(broken) if complaint in sentence]


def test_the_check_sees_a_missing_title_unit_or_query() -> None:
    assert len(problems(Panel("", "", "", (), Form.LINES))) == 4
