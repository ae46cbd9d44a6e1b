"""What a script calls by hand, and the traces that come out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from opentelemetry import trace

import laggard
from laggard._spans import step_context
from tests.support.launch import PROGRAMS, Launcher
from tests.support.otlp import Receiver


def attributes(span: Any) -> dict[str, Any]:
    """Attributes of a span as plain values."""
    return {a.key: getattr(a.value, str(a.value.WhichOneof("value"))) for a in span.attributes}


def test_the_public_surface_is_what_is_promised() -> None:
    """One sorted list of names, and each of them is there."""
    assert laggard.__all__ == sorted(laggard.__all__)
    assert all(callable(getattr(laggard, name)) for name in laggard.__all__ if name != "__version__")
    with pytest.raises(AttributeError, match="module 'laggard' has no attribute 'nonsense'"):
        laggard.nonsense  # noqa: B018 - on purpose


def test_without_instrument_the_contexts_do_nothing() -> None:
    """A script that names its steps and phases runs unchanged where nothing is instrumented."""
    with laggard.step(), laggard.phase("data"):
        pass


@pytest.mark.parametrize(("given", "interval"), [({}, 15_000), ({"OTEL_METRIC_EXPORT_INTERVAL": "7000"}, 7000)])
def test_instrument_alone_pushes_as_often_as_the_rules_need(given: dict[str, str], interval: int) -> None:
    """By OTLP every 15 seconds, as under ``laggard run``, unless the user says otherwise."""
    program = (
        "import laggard; from laggard import _providers; laggard.instrument();"
        "(reader,) = _providers._own._all_metric_readers; print(reader._export_interval_millis)"
    )
    environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", **given}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert float(done.stdout) == interval


@pytest.mark.timed
def test_steps_and_phases_by_hand(launcher: Launcher, receiver: Receiver) -> None:
    """The named steps are what is reported, to a millisecond; slow and sampled ones are traced with their times."""
    printed = launcher.run_forked(
        PROGRAMS / "by_hand.py", **receiver.environment, LAGGARD_TRACE_EVERY="7", LAGGARD_TRACE_SLOW="3"
    )
    step_mean, data_mean = json.loads(printed.splitlines()[-1])
    step = receiver.value("training.step.duration")
    assert step.count == 37
    assert step.mean == pytest.approx(step_mean, abs=0.001)
    assert receiver.value("training.phase.duration", training__phase="data").mean == pytest.approx(data_mean, abs=1e-3)
    assert receiver.value("training.steps") == 40

    roots = {attributes(span)["training.step"]: span for span in receiver.spans if span.name == "training.step"}
    assert {number: attributes(span).get("training.step.slow") for number, span in roots.items()} == {
        **dict.fromkeys((7, 14, 21, 28, 35)),
        38: True,
    }
    for number, root in roots.items():
        context = trace.get_current_span(step_context("test", number)).get_span_context()
        assert int.from_bytes(root.trace_id, "big") == context.trace_id
        assert int.from_bytes(root.parent_span_id, "big") == context.span_id
        data, other = [span for span in receiver.spans if span.parent_span_id == root.span_id]
        assert [data.name, other.name] == ["training.data", "training.other"]
        assert root.start_time_unix_nano <= data.start_time_unix_nano < data.end_time_unix_nano
        assert data.end_time_unix_nano <= root.end_time_unix_nano
        assert attributes(data)["training.rank"] == "0"
    slow = roots[38]
    assert (slow.end_time_unix_nano - slow.start_time_unix_nano) * 1e-9 == pytest.approx(0.32, abs=0.05)


def test_uninstrument_leaves_nothing(launcher: Launcher) -> None:
    """After it the state file is gone; the unknown phase was named in one warning."""
    process = launcher.fork(PROGRAMS / "by_hand.py", "uninstrument")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert list(launcher.state_directory.iterdir()) == []
    warnings = [line for line in errors.splitlines() if "no such phase" in line]
    assert len(warnings) == 1
    assert warnings[0].startswith(
        "laggard: laggard.phase('no such phase'): no such phase, counted as other; known are other,"
    )
