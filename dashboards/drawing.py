"""Draws a board with grafana-foundation-sdk."""

from grafana_foundation_sdk.builders import bargauge, common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BarGaugeDisplayMode,
    GraphTresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    StackingMode,
    VizOrientation,
)
from grafana_foundation_sdk.models.dashboard import (
    DataSourceRef,
    DataTransformerConfig,
    Threshold,
    ThresholdsMode,
    VariableOption,
    VariableRefresh,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from dashboards.panel import Board, Form, Panel, Variable

DATASOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
PANEL_HEIGHT = 8

PanelBuilder = timeseries.Panel | bargauge.Panel | stat.Panel | table.Panel


def board_json(board: Board) -> str:
    """The dashboard as Grafana reads it, with sorted keys, so that a change shows as a small difference."""
    return JSONEncoder(sort_keys=True, indent=2).encode(_dashboard(board).build()) + "\n"


def _dashboard(board: Board) -> dashboard.Dashboard:
    drawn = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.description)
        .tags(["paceline", "llm"])
        .readonly()
        .refresh("10s")
        .time("now-1h", "now")
        .timezone("browser")
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for variable in board.variables:
        drawn = drawn.with_variable(_variable(variable))
    serial = 0
    for row in board.rows:
        serial += 1
        drawn = drawn.with_row(dashboard.Row(row.title).id(serial))
        for panel in row.panels:
            serial += 1
            drawn = drawn.with_panel(_draw(panel).id(serial))
    return drawn


def _variable(variable: Variable) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(variable.name)
        .label(variable.label)
        .datasource(DATASOURCE)
        .query(variable.query)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .include_all(True)
        .all_value(".+")
        .current(VariableOption(selected=True, text="All", value="$__all"))
        .multi(True)
    )


def _draw(panel: Panel) -> PanelBuilder:
    builder = _shape(panel)
    builder.title(panel.title).description(panel.description).unit(panel.unit).datasource(DATASOURCE)
    builder.height(PANEL_HEIGHT).span(panel.width)
    if panel.threshold is not None:
        steps = [Threshold(value=None, color="red"), Threshold(value=panel.threshold, color="green")]
        builder.thresholds(dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps))
    for index, query in enumerate(panel.queries):
        target = prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(chr(ord("A") + index))
        if panel.form in (Form.LINES, Form.STACKED):
            target.range()
        else:
            target.instant()
        if panel.form is Form.TABLE:
            target.format(PromQueryFormat.TABLE)
        builder.with_target(target)
    return builder


def _shape(panel: Panel) -> PanelBuilder:
    match panel.form:
        case Form.LINES | Form.STACKED:
            return _lines(panel)
        case Form.BARS:
            return (
                bargauge.Panel()
                .display_mode(BarGaugeDisplayMode.GRADIENT)
                .orientation(VizOrientation.HORIZONTAL)
                .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
            )
        case Form.NUMBERS:
            return stat.Panel().reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        case Form.TABLE:
            return _table(panel)


def _lines(panel: Panel) -> timeseries.Panel:
    legend = common.VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)
    builder = timeseries.Panel().legend(legend.show_legend(True)).line_width(1.5)
    if panel.form is Form.STACKED:
        builder.stacking(common.StackingConfig().mode(StackingMode.NORMAL)).fill_opacity(40)
    if panel.threshold is not None:
        builder.thresholds_style(common.GraphThresholdsStyleConfig().mode(GraphTresholdsStyleMode.DASHED))
    return builder


def _table(panel: Panel) -> table.Panel:
    """Queries merged on the labels that they share; only the named columns are shown, in their order."""
    columns = panel.columns or {}
    hidden = {"Time": True} | {
        f"Value #{chr(ord('A') + index)}": True
        for index in range(len(panel.queries))
        if f"Value #{chr(ord('A') + index)}" not in columns
    }
    order = {name: place for place, name in enumerate(columns)}
    organize = {"excludeByName": hidden, "indexByName": order, "renameByName": dict(columns)}
    return (
        table.Panel()
        .with_transformation(DataTransformerConfig(id_val="merge", options={}))
        .with_transformation(DataTransformerConfig(id_val="organize", options=organize))
    )
