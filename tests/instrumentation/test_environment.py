"""A value that cannot be used is named in one warning, and the default is used in its place: training goes on."""

from __future__ import annotations

import pytest

from laggard._process import Process
from laggard.prometheus import PrometheusReader
from laggard.shared import environment
from laggard.shared.environment import HIGHEST_PORT

NAME = "LAGGARD_TEST"


@pytest.mark.parametrize(("value", "read"), [("", 100), ("0", 0), ("7", 7), ("7.0", 7), ("1e3", 1000)])
def test_a_whole_number_is_read(value: str, read: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However it is written, and without one the default is used."""
    monkeypatch.setenv(NAME, value)
    assert environment.whole_number(NAME, 100) == read


@pytest.mark.parametrize("value", ["-1", "1.5", "inf", "nan", "ten", "2147483648"])
def test_what_is_not_a_whole_number_is_named(
    value: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In one warning, and the default is used."""
    monkeypatch.setenv(NAME, value)
    assert environment.whole_number(NAME, 100) == 100
    assert caplog.messages == [f"LAGGARD_TEST must be a whole number of 0 to 2147483647, got {value!r}; using 100"]


@pytest.mark.parametrize("value", ["-0.1", "inf", "nan", "half"])
def test_what_is_not_a_number_is_named(
    value: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In one warning: an infinite factor would fail at each step that is compared with it."""
    monkeypatch.setenv(NAME, value)
    assert environment.number(NAME, 0.5) == 0.5
    assert caplog.messages == [f"LAGGARD_TEST must be a number of at least 0, got {value!r}; using 0.5"]


def test_a_port_beyond_the_highest_is_never_tried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Training goes on without an endpoint, and the warning says why."""
    monkeypatch.setenv("OTEL_EXPORTER_PROMETHEUS_PORT", str(HIGHEST_PORT))
    reader = PrometheusReader()
    try:
        assert reader.serve(local_rank=1) == 0
    finally:
        reader.shutdown()
    (message,) = caplog.messages
    assert message == (
        "no port of 65536 to 65567 on localhost can be opened (the highest port is 65535); training goes on without an "
        "endpoint. Set OTEL_EXPORTER_PROMETHEUS_PORT"
    )


def test_a_hook_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """As it was written, with those that do."""
    monkeypatch.setenv("LAGGARD_DISABLED_HOOKS", "no-such, optimiser")
    monkeypatch.setattr("laggard._process.HOOKS", ())
    process = Process()
    process.start()
    process.stop()
    assert caplog.messages == [
        "LAGGARD_DISABLED_HOOKS=no-such,optimiser: no such hook; known are control, log, trace, profile, hang"
    ]
