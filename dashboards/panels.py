"""The kinds of panel that the dashboards are made of, each with a title, a description, a unit and its queries.

No plot shows more than :data:`MOST_SERIES` series: what has one for each rank or GPU goes through :func:`top`.
Colours are those that people with a colour vision deficiency tell apart (Okabe and Ito, 2008).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dashboards.sdk import (
    common,
    dashboard,
    heat,
    heatmap,
    models,
    prometheus,
    prometheus_models,
    shared,
    stat,
    statetimeline,
    table,
    timeseries,
)
from laggard_cli import pack

#: More lines than this nobody can tell apart, and a browser draws slowly.
MOST_SERIES = 50
#: Points of each line: what a server computes grows with them, and over thousands of ranks that is seconds.
POINTS = 120
#: And of plots that look through all ranks of a run.
COARSE = 60
#: From where on TrainingStraggler holds a rank to be slow, as shipped: where colours of own times become bright.
STRAGGLER_SCORE = pack.threshold("straggler_score")
#: Lines of a plot in which each is a rank or a GPU.
FEW = 12
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, YELLOW, GREY = "#CC79A7", "#56B4E9", "#F0E442", "#8E8E8E"
#: One colour for each phase, the same on all dashboards.
PHASES = {
    "data": ORANGE,
    "h2d": YELLOW,
    "forward": SKY,
    "backward": BLUE,
    "optimizer": GREEN,
    "communication": RED,
    "checkpoint": PURPLE,
    "evaluation": "#7F6BB0",
    "other": GREY,
}
#: The data source that a person chose.
SOURCE = shared.DataSourceRef(type_val="prometheus", uid="${datasource}")

Panel = Any
"""A builder of the SDK; what they share has no type there."""


@dataclass(frozen=True)
class Query:
    """A query and the name of what it returns.

    Attributes:
        expr: PromQL, with Grafana's variables.
        legend: name of a series, with ``{{label}}``.
        limit: True for a threshold, which is drawn as a dashed red line.
    """

    expr: str
    legend: str
    limit: bool = False


def top(expr: str, count: int = FEW) -> str:
    """Return a query for the series that are the largest at the end of the time shown, over all of it.

    Args:
        expr: the query; ``{at}`` stands where a selector's ``@`` modifier goes.
        count: so many series at most.
    """
    return f"({expr.format(at='')}) and topk({count}, {expr.format(at=' @ end()')})"


def newest(labels: str, series: str) -> str:
    """Return what a join finds one of for each of some labels: the newest.

    A server that starts again shows for five minutes what it recorded before, beside what it records now.
    """
    return f"topk by ({labels}) (1, timestamp({series})) ^ 0"


def threshold(name: str, legend: str = "threshold") -> Query:
    """Return the line that an alert compares with: the run's own where it overrides one."""
    expr = (
        f'max(run:laggard_threshold:value{{name="{name}", cluster="$cluster", training_run="$training_run"}}) '
        f'or max(laggard_threshold{{name="{name}"}})'
    )
    return Query(expr, legend, limit=True)


def series(
    title: str,
    description: str,
    unit: str,
    *queries: Query,
    stacked: bool = False,
    colours: dict[str, str] | None = None,
    most: float | None = None,
) -> Panel:
    """Return a plot of lines over time, or of areas that add up.

    Args:
        title: what is plotted.
        description: how to read it, and what to do when it looks bad.
        unit: Grafana's name of the unit.
        queries: what to plot.
        stacked: whether values add up.
        colours: colour of a series by its name.
        most: where the axis ends unless a value is larger.
    """
    panel = _common(timeseries.Panel(), title, description, queries).unit(unit).min(0)
    panel.line_width(1).fill_opacity(70 if stacked else 0).show_points(shared.VisibilityMode.NEVER)
    panel.legend(
        common.VizLegendOptions()
        .show_legend(show_legend=True)
        .display_mode(shared.LegendDisplayMode.TABLE)
        .placement(shared.LegendPlacement.RIGHT)
        .calcs(["lastNotNull", "max"])
        .sort_by("Last *")
        .sort_desc(sort_desc=True)
    )
    panel.tooltip(common.VizTooltipOptions().mode(shared.TooltipDisplayMode.MULTI).sort(shared.SortOrder.DESCENDING))
    if most is not None:
        panel.axis_soft_max(most)
    if stacked:
        panel.stacking(common.StackingConfig().mode(shared.StackingMode.NORMAL))
    for name, colour in (colours or {}).items():
        panel.override_by_name(name, [_fixed(colour)])
    for query in queries:
        if query.limit:
            dashed = {"fill": "dash", "dash": [10, 10]}
            stack = {"mode": "none", "group": "limit"}
            panel.override_by_name(
                query.legend,
                [
                    _fixed(RED),
                    models.DynamicConfigValue("custom.lineStyle", dashed),
                    models.DynamicConfigValue("custom.fillOpacity", 0),
                    models.DynamicConfigValue("custom.stacking", stack),
                ],
            )
    return panel


def number(
    title: str,
    description: str,
    unit: str,
    query: Query,
    *,
    steps: Sequence[tuple[float | None, str]] = ((None, BLUE),),
    decimals: int | None = None,
    history: bool = True,
) -> Panel:
    """Return the newest value of one query as a number, coloured by steps of it; ``history`` draws it over time too."""
    panel = _common(stat.Panel(), title, description, [query], instant=not history).unit(unit).height(4).span(4)
    panel.thresholds(_steps(steps))
    panel.graph_mode(shared.BigValueGraphMode.AREA if history else shared.BigValueGraphMode.NONE)
    panel.color_mode(shared.BigValueColorMode.VALUE).no_value("no data")
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).fields("").values(values=False))
    if decimals is not None:
        panel.decimals(decimals)
    return panel


def heat_map(title: str, description: str, unit: str, query: Query, *, least: float, most: float) -> Panel:
    """Return rows over time, the colour being the value: one row for each series.

    Colours go from ``least``, which is dark, to ``most``: fixed, or noise of a per cent would look like a fault.
    """
    panel = _common(heatmap.Panel(), title, description, [query]).calculate(calculate=False)
    panel.color(
        heatmap.HeatmapColorOptions()
        .mode(heat.HeatmapColorMode.SCHEME)
        .scheme("Viridis")
        .scale(heat.HeatmapColorScale.LINEAR)
        .steps(64)
        .fill(BLUE)
        .exponent(0.5)
        .reverse(reverse=False)
        .min(least)
        .max(most)
    )
    panel.cell_values(heatmap.CellValues().unit(unit)).cell_gap(1).show_legend()
    panel.rows_frame(heatmap.RowsHeatmapOptions().layout(shared.HeatmapCellLayout.UNKNOWN))
    return panel.y_axis(heatmap.YAxisConfig().axis_placement(shared.AxisPlacement.LEFT)).height(12)


def timeline(title: str, description: str, query: Query, values: dict[str, tuple[str, str]]) -> Panel:
    """Return bars over time, one row for each series; ``values`` has the text and the colour of each value."""
    # A verdict of a minute must not fall between two points.
    panel = _common(statetimeline.Panel(), title, description, [query]).max_data_points(10 * POINTS)
    panel.mappings([_words(values)]).show_value(shared.VisibilityMode.AUTO).merge_values(merge_values=True)
    panel.legend(
        common.VizLegendOptions()
        .show_legend(show_legend=True)
        .display_mode(shared.LegendDisplayMode.LIST)
        .placement(shared.LegendPlacement.BOTTOM)
    )
    return panel.row_height(0.85).no_value("none").height(9)


def listing(
    title: str,
    description: str,
    query: Query,
    columns: dict[str, str],
    *,
    unit: str = "none",
    link: tuple[str, str] | None = None,
    hidden: str = "",
    least_first: bool = False,
    values: dict[str, tuple[str, str]] | None = None,
) -> Panel:
    """Return a table of the newest values, the largest first unless it is the least that matters.

    Args:
        title: what is listed.
        description: how to read it.
        query: an instant query; its value is the last column, named by the legend.
        columns: heading of each label that is shown, in order.
        unit: Grafana's name of the value's unit.
        link: a label, and the address to which its cells lead.
        hidden: a label that is not shown, for the address.
        least_first: the other order.
        values: text and colour of each value, where values stand for something.
    """
    panel = _common(table.Panel(), title, description, [query], instant=True)
    panel.cell_options(shared.TableAutoCellOptions())
    order = {label: index for index, label in enumerate((*columns, "Value"))}
    transformed = {
        "indexByName": order,
        "renameByName": {**columns, "Value": query.legend},
        "includeByName": dict.fromkeys((*order, hidden) if hidden else order, True),
    }
    panel.transformations(
        [
            models.DataTransformerConfig("organize", options=transformed),
            models.DataTransformerConfig(
                "sortBy", options={"sort": [{"field": query.legend, "desc": not least_first}]}
            ),
        ]
    )
    shown = [models.DynamicConfigValue("unit", unit)]
    if values:
        shown.append(models.DynamicConfigValue("mappings", [_words(values)]))
        shown.append(models.DynamicConfigValue("custom.cellOptions", {"type": "color-text"}))
    panel.override_by_name(query.legend, shown)
    if hidden:
        panel.override_by_name(hidden, [models.DynamicConfigValue("custom.hidden", True)])
    if link is not None:
        target = {"title": "Open", "url": link[1]}
        panel.override_by_name(columns[link[0]], [models.DynamicConfigValue("links", [target])])
    return panel.no_value("none").height(9)


def _common(panel: Panel, title: str, description: str, queries: Sequence[Query], *, instant: bool = False) -> Panel:
    panel.title(title).description(description).datasource(SOURCE).span(12).height(8)
    for index, query in enumerate(queries):
        target = prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(chr(ord("A") + index))
        target.datasource(SOURCE)
        if instant:
            target.instant().format(prometheus_models.PromQueryFormat.TABLE)
        else:
            target.range()
        panel.with_target(target)
    return panel if instant else panel.max_data_points(POINTS)


def _words(values: dict[str, tuple[str, str]]) -> Any:
    options = {
        value: models.ValueMappingResult(text=text, color=colour, index=index)
        for index, (value, (text, colour)) in enumerate(values.items())
    }
    return models.ValueMap(options=options)


def _fixed(colour: str) -> Any:
    return models.DynamicConfigValue("color", {"mode": "fixed", "fixedColor": colour})


def _steps(steps: Sequence[tuple[float | None, str]]) -> Any:
    return (
        dashboard.ThresholdsConfig()
        .mode(models.ThresholdsMode.ABSOLUTE)
        .steps([models.Threshold(value, colour) for value, colour in steps])
    )
