"""From a dashboard as data to Grafana's JSON, through grafana-foundation-sdk. Pure: the same data, the same text."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from string import ascii_uppercase

from grafana_foundation_sdk.builders import bargauge, common, heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.builders import dashboard as grafana
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    GraphTresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
    VizOrientation,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    Threshold,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from sapwood_dashboards.panels import Dashboard, Kind, Panel, Variable, selected

RUNBOOKS = "docs/runbooks.md"
"""Where runbooks are, unless who installs this says another address: the chart puts its own in this one's place."""

AnyPanel = timeseries.Panel | stat.Panel | bargauge.Panel | heatmap.Panel
_PROMETHEUS = DataSourceRef(type_val="prometheus", uid="${datasource}")
_TAG = "sapwood"
_LABELS: dict[Variable, str] = {
    "namespace": "Namespace",
    "inference_service": "InferenceService",
    "pod": "Pod",
}


def dashboard_json(dashboard: Dashboard) -> str:
    """Return the JSON of one dashboard, ready to be imported or provisioned."""
    builder = (
        grafana.Dashboard(dashboard.title)
        .uid(dashboard.uid)
        .description(dashboard.description)
        .tags([_TAG])
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .refresh("30s")
        .time("now-1h", "now")
        .link(
            grafana.DashboardLink("Sapwood")
            .type(DashboardLinkType.DASHBOARDS)
            .tags([_TAG])
            .as_dropdown(True)
            .include_vars(True)
            .keep_time(True)
        )
        .with_variable(grafana.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for variable, query in dashboard.variable_queries().items():
        builder.with_variable(_variable(variable, query, label=dashboard.label_of(variable)))
    builder.with_variable(
        grafana.TextBoxVariable("runbooks")
        .label("Runbooks")
        .description("Address of the page with a section per alert.")
        .default_value(RUNBOOKS)
        .current(VariableOption(text=RUNBOOKS, value=RUNBOOKS, selected=True))
    )
    numbers = count(1)
    for row in dashboard.rows:
        builder.with_row(grafana.Row(row.title).id(next(numbers)))
        for panel in row.panels:
            builder.with_panel(_panel(panel, next(numbers)))
    return json.dumps(builder.build(), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


def _variable(name: Variable, query: str, *, label: str) -> grafana.QueryVariable:
    every = VariableOption(text="All", value="$__all", selected=True)
    return (
        grafana.QueryVariable(name)
        .label(_LABELS[name])
        .query(f"label_values({query}, {label})")
        .datasource(_PROMETHEUS)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        # Not the list of all values: it would leave out what was scraped without this label.
        .all_value(".*")
        .current(every)
    )


def _panel(panel: Panel, number: int) -> AnyPanel:
    """Return the builder of a panel; ``number``: by which links name it."""
    builder = _MAKERS[panel.kind](panel).id(number)
    builder.title(panel.title).description(panel.description).datasource(_PROMETHEUS).unit(panel.unit)
    builder.span(panel.width).height(panel.height)
    if panel.limits:
        builder.thresholds(_thresholds(panel))
    if panel.runbook:
        link = grafana.DashboardLink(f"Runbook: {panel.runbook}").type(DashboardLinkType.LINK)
        builder.links([link.url(f"${{runbooks}}#{panel.runbook.lower()}").target_blank(True)])
    for ref_id, query in zip(ascii_uppercase, panel.queries, strict=False):
        target = prometheus.Dataquery().ref_id(ref_id).expr(selected(query.expr)).legend_format(query.legend or "all")
        if panel.kind in ("stat", "bars"):
            target.instant()
        else:
            target.range().exemplar(query.exemplar)
        if panel.kind == "heatmap":
            target.format(PromQueryFormat.HEATMAP)
        builder.with_target(target)
    return builder


def _thresholds(panel: Panel) -> grafana.ThresholdsConfig:
    first = Threshold(color=panel.below, value=None)
    return grafana.ThresholdsConfig().steps(
        [first, *(Threshold(color=limit.colour, value=limit.value) for limit in panel.limits)]
    )


def _lines(panel: Panel) -> timeseries.Panel:
    made = (
        timeseries.Panel()
        .min(0)
        .line_width(1)
        .fill_opacity(10)
        .show_points(VisibilityMode.NEVER)
        .legend(
            common.VizLegendOptions()
            .show_legend(True)
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
        )
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
    )
    if panel.limits:
        made.thresholds_style(common.GraphThresholdsStyleConfig().mode(GraphTresholdsStyleMode.LINE))
    return made


def _stacked(panel: Panel) -> timeseries.Panel:
    return _lines(panel).fill_opacity(40).stacking(common.StackingConfig().mode(StackingMode.NORMAL))


def _stat(_: Panel) -> stat.Panel:
    return stat.Panel().reduce_options(_last())


def _bars(panel: Panel) -> bargauge.Panel:
    made = bargauge.Panel().reduce_options(_last()).orientation(VizOrientation.HORIZONTAL).min(0)
    return made.max(1) if panel.unit == "percentunit" else made


def _heatmap(panel: Panel) -> heatmap.Panel:
    colour = heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Blues")
    axis = heatmap.YAxisConfig().unit(panel.unit)
    return heatmap.Panel().calculate(False).color(colour).y_axis(axis).hide_legend()


def _last() -> common.ReduceDataOptions:
    return common.ReduceDataOptions().calcs(["lastNotNull"])


_MAKERS: dict[Kind, Callable[[Panel], AnyPanel]] = {
    "lines": _lines,
    "stacked": _stacked,
    "stat": _stat,
    "bars": _bars,
    "heatmap": _heatmap,
}
