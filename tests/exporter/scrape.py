"""What a scrape of the exporter is to prometheus_client, whose text is the measure of ours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector as PrometheusCollector

from laggard_exporter.samples import Family, Grouped, merged


class Scrape(PrometheusCollector):
    """The samples of one scrape."""

    def __init__(self, collected: Iterable[Grouped]) -> None:
        self._collected = collected

    def collect(self) -> Iterator[Metric]:
        """Yield every family."""
        for family, series in merged(self._collected).items():
            yield _metric(family, series)


def _metric(family: Family, series: dict[tuple[str, ...], float]) -> Metric:
    build = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = build(family.name, family.help, labels=family.labels)
    for labels, value in series.items():
        metric.add_metric(labels, value)
    return metric
