"""A dashboard from rows of panels: its variables, its links, the annotations of what fires, and where panels lie."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from dashboards.panels import RED, SOURCE, Panel
from dashboards.sdk import dashboard as builders
from dashboards.sdk import models, prometheus

TAG = "laggard"
#: Columns of Grafana's grid.
WIDTH = 24


@dataclass(frozen=True)
class Variable:
    """Something that a person chooses at the top of a dashboard.

    Attributes:
        name: as it stands in queries, after ``$``.
        label: as people read it.
        query: where its values come from.
        every: whether several values, or all, can be chosen.
        label_shown: where the query is PromQL: the label whose values, at the end of the time shown, can be chosen.
    """

    name: str
    label: str
    query: str
    every: bool = False
    label_shown: str = ""


#: Without a choice, and empty in all queries, where no series has the label.
CLUSTER = Variable("cluster", "Cluster", "label_values(run:training_ranks_expected:max, cluster)")
RUN = Variable("training_run", "Run", 'label_values(run:training_ranks_expected:max{cluster="$cluster"}, training_run)')
GPU = Variable("uuid", "GPU", "label_values(gpu_up, uuid)", every=True)


@dataclass(frozen=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Board:
    """One dashboard.

    Attributes:
        name: the last part of its uid, which never changes: alerts and people link to it.
        title: its name for people.
        description: the question that it answers.
        rows: what it shows, from top to bottom.
        variables: what can be chosen, after the data source.
        since: how much time is shown at first.
    """

    name: str
    title: str
    description: str
    rows: Sequence[Row]
    variables: Sequence[Variable] = field(default=(CLUSTER, RUN))
    since: str = "now-1h"

    @property
    def uid(self) -> str:
        """The stable name in Grafana's addresses."""
        return f"laggard-{self.name}"

    def build(self) -> Any:
        """Return the dashboard in the SDK's model."""
        board = builders.Dashboard(f"laggard / {self.title}").uid(self.uid).description(self.description)
        board.tags([TAG]).timezone("utc").time(self.since, "now").refresh("30s").editable()
        board.tooltip(models.DashboardCursorSync.CROSSHAIR)
        board.link(
            builders.DashboardLink("laggard")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .as_dropdown(as_dropdown=True)
            .include_vars(include_vars=True)
            .keep_time(keep_time=True)
        )
        board.with_variable(builders.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        for variable in self.variables:
            board.with_variable(_variable(variable))
        if RUN in self.variables:
            board.annotation(_firing())
        for panel in _placed(self.rows):
            if isinstance(panel, builders.Row):
                board.with_row(panel)
            else:
                board.with_panel(panel)
        return board.build()


def _variable(variable: Variable) -> Any:
    query = (
        builders.QueryVariable(variable.name)
        .label(variable.label)
        .datasource(SOURCE)
        .query({"query": variable.query, "refId": variable.name})
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
    )
    if variable.label_shown:
        query.query({"query": f"query_result({variable.query})", "refId": variable.name})
        query.regex(f'/{variable.label_shown}="([^"]+)"/').include_all(include_all=True).multi(multi=True)
        query.current(models.VariableOption(text="All", value="$__all", selected=True))
    if variable.every:
        query.include_all(include_all=True).multi(multi=True).all_value(".*")
        query.current(models.VariableOption(text="All", value="$__all", selected=True))
    return query


def _firing() -> Any:
    """Return the marks of verdicts on every plot."""
    expr = (
        "max by (alertname, training_rank, host_name, training_peer_group, training_phase) "
        '(ALERTS{alertstate="firing", severity=~"critical|warning", '
        'cluster="$cluster", training_run="$training_run"})'
    )
    return (
        builders.AnnotationQuery()
        .name("Verdicts")
        .datasource(SOURCE)
        .enable(enable=True)
        .icon_color(RED)
        .title_format("{{alertname}}")
        .text_format("rank {{training_rank}} {{host_name}} {{training_peer_group}} {{training_phase}}")
        .target(prometheus.Dataquery().expr(expr).interval("15s").ref_id("Verdicts"))
    )


def _placed(rows: Sequence[Row]) -> Iterator[Any]:
    """Give each panel its place and its number: from left to right, in lines that are as high as their highest."""
    y = number = 0
    for row in rows:
        number += 1
        yield builders.Row(row.title).grid_pos(models.GridPos(h=1, w=WIDTH, x=0, y=y)).id(number)
        y += 1
        x = height = 0
        for panel in row.panels:
            wanted = panel.build().grid_pos
            if x + wanted.w > WIDTH:
                x, y, height = 0, y + height, 0
            number += 1
            yield panel.grid_pos(models.GridPos(h=wanted.h, w=wanted.w, x=x, y=y)).id(number)
            x += wanted.w
            height = max(height, wanted.h)
        y += height
