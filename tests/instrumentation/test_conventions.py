"""The table of names is what really comes out."""

from __future__ import annotations

from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from laggard.prometheus import PrometheusReader
from laggard.shared import metrics, process_metrics
from laggard.shared.metrics import Metric
from laggard.shared.names import clip_name, prometheus_label, prometheus_name, run_name
from laggard.shared.phases import Phase, RankState


def exposed_name(metric: Metric) -> str:
    """The name under which OpenTelemetry's own reader exposes a metric."""
    reader = PrometheusReader()
    meter = MeterProvider([reader], shutdown_on_exit=False).get_meter("test")
    if metric.kind == "histogram":
        meter.create_histogram(metric.name, unit=metric.unit).record(1)
    elif metric.kind == "counter":
        meter.create_counter(metric.name, unit=metric.unit).add(1)
    else:
        meter.create_gauge(metric.name, unit=metric.unit).set(1)
    (family,) = [
        family
        for family in text_string_to_metric_families(generate_latest(reader.registry).decode())
        if family.name != "target_info"
    ]
    return f"{family.name}_total" if family.type == "counter" else family.name


def test_every_name_is_what_opentelemetry_makes_of_it() -> None:
    """The rules' names, computed from the table, are those of the real exporter."""
    every = metrics.TRAINING_METRICS
    assert {metric.name: prometheus_name(metric) for metric in every} == {
        metric.name: exposed_name(metric) for metric in every
    }


def test_names_keep_the_conventions() -> None:
    """No name contains ``total``, units are base units without a rate, and no name stands twice."""
    every = (*metrics.TRAINING_METRICS, *process_metrics.PROCESS_METRICS)
    names = [metric.name for metric in every]
    assert len(set(names)) == len(names)
    for metric in every:
        assert "total" not in metric.name
        assert metric.unit in ("", "s", "By") or metric.unit.startswith("{")
        assert metric.description.endswith(".")
        assert metric.kind == "histogram" or not metric.bounds


def test_stored_values_never_change() -> None:
    """Phases and states are stored in files that another version may read."""
    assert {phase.label: phase.value for phase in Phase} == {
        "other": 0,
        "data": 1,
        "h2d": 2,
        "forward": 3,
        "backward": 4,
        "optimizer": 5,
        "communication": 6,
        "checkpoint": 7,
        "evaluation": 8,
    }
    assert {state.label: state.value for state in RankState} == {
        "starting": 0,
        "running": 1,
        "finished": 2,
        "failed": 3,
    }


def test_bounds_are_one_grid() -> None:
    """Sixteen bounds, three a decade, from a millisecond to 100 seconds."""
    assert len(metrics.STEP_BOUNDS) == 16
    assert metrics.STEP_BOUNDS[:4] == (0.001, 0.00215, 0.00464, 0.01)
    assert metrics.STEP_BOUNDS[-1] == 100.0


def test_labels_and_clipping() -> None:
    """Dots become underscores; a cut name is valid UTF-8 of at most the given bytes."""
    assert prometheus_label("training.peer_group") == "training_peer_group"
    assert clip_name("aé" * 3, 5) == "aéa"


def test_a_name_is_one_line_that_a_terminal_does_not_obey() -> None:
    """What cannot be printed becomes a blank: in variables, in state files, and in what commands look for."""
    assert clip_name("two\nlines\x1b[31m\u2028\u202e 日本 e\u0301\udcff") == "two lines [31m   日本 e\u0301 "
    assert run_name("\n pretrain-7\r\n") == "pretrain-7"
