"""Pushing to a real receiver of OTLP."""

from __future__ import annotations

import importlib
import os
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import (
    MetricsServiceServicer,
    add_MetricsServiceServicer_to_server,
)
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult

from laggard_exporter import flags, main
from laggard_exporter.collection import Collection
from laggard_exporter.otlp.push import Pusher
from laggard_exporter.otlp.settings import EXPORTERS, OtlpError, Settings, settings
from tests.exporter.support import EXPORTER, TIMEOUT, exporter, fresh, live_rank
from tests.exporter.trees import CGROUP_SYSFS, HOST_PROCFS, INFINIBAND_SYSFS, rank_procfs, write_tree
from tests.fake_nvml.fake import Scenario
from tests.support.otlp import Receiver

GPU = "GPU-00000000-0000-0000-0000-000000000000"


def test_the_same_facts(tmp_path: Path, fake_nvml: Path, scenario: Scenario) -> None:
    """A receiver gets the GPUs, the ranks and the host, with the values that a scrape has."""
    variables = {**scenario.environment(fake_nvml), "OTEL_METRIC_EXPORT_INTERVAL": "200"}
    with Receiver() as receiver, live_rank(tmp_path / "ranks", fresh()) as rank:
        procfs = write_tree(tmp_path / "proc", {**HOST_PROCFS, **rank_procfs(rank.pid)})
        sysfs = write_tree(tmp_path / "sys", {**INFINIBAND_SYSFS, **CGROUP_SYSFS})
        arguments = [f"--path.procfs={procfs}", f"--path.sysfs={sysfs}", f"--state.directory={tmp_path / 'ranks'}"]
        endpoint = receiver.environment["OTEL_EXPORTER_OTLP_ENDPOINT"]
        with exporter(*arguments, f"--otlp.endpoint={endpoint}", "--host.name=node-7", **variables) as node:
            scraped = node.scrape()
            deadline = time.monotonic() + TIMEOUT
            while not receiver.series("hw.gpu.memory.limit") and time.monotonic() < deadline:
                time.sleep(0.05)
        assert (
            receiver.value("hw.gpu.memory.limit", hw__id=GPU) == scraped[f'gpu_memory_capacity_bytes{{uuid="{GPU}"}}']
        )
        assert receiver.value("hw.energy", hw__id=GPU, hw__type="gpu") == pytest.approx(
            scraped[f'gpu_energy_joules_total{{uuid="{GPU}"}}'], rel=0.1
        )
        assert receiver.value("hw.status", hw__id=GPU, hw__state="ok", hw__vendor="NVIDIA") == 1
        assert receiver.value("hw.gpu.memory.utilization", hw__id=GPU) == pytest.approx(
            receiver.value("hw.gpu.memory.usage", hw__id=GPU) / receiver.value("hw.gpu.memory.limit", hw__id=GPU)
        )
        assert receiver.value("training.process.up", training__run="run-1", training__rank="3") == 1
        assert receiver.value("training.process.run_delay", training__run="run-1") == 1.25
        assert receiver.value("system.memory.limit", host__name="node-7") == 1000 * 1024
        assert receiver.value("system.disk.io", system__device="nvme0n1", disk__io__direction="read") == 2000 * 512
        assert receiver.value("hw.network.io", hw__id="mlx5_0/1", network__io__direction="receive") == 4000
        assert receiver.value("host.pressure", resource="io", tasks="full") == 2
        assert receiver.value("laggard.exporter.collector_success", collector="state") == 1


class GrpcReceiver(MetricsServiceServicer):
    """Keeps the names of the metrics that come by gRPC."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.arrived = threading.Event()

    def Export(  # noqa: N802 - the name of the service's method
        self, request: ExportMetricsServiceRequest, context: Any
    ) -> ExportMetricsServiceResponse:
        for resource in request.resource_metrics:
            self.names |= {metric.name for scope in resource.scope_metrics for metric in scope.metrics}
        self.arrived.set()
        return ExportMetricsServiceResponse()


def test_grpc(tmp_path: Path) -> None:
    """The same goes by gRPC where the variables say so."""
    receiver = GrpcReceiver()
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        add_MetricsServiceServicer_to_server(receiver, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        arguments = ["--collector.disable-defaults", "--collector.state", f"--state.directory={tmp_path}"]
        variables = {
            "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_METRIC_EXPORT_INTERVAL": "200",
        }
        with exporter(*arguments, **variables):
            assert receiver.arrived.wait(TIMEOUT)
        server.stop(0).wait(TIMEOUT)
    assert {"laggard.exporter.build_info", "laggard.exporter.state_directory_exists"} <= receiver.names


def test_a_receiver_that_is_not_there(tmp_path: Path) -> None:
    """Without a receiver scrapes go on as before, and the process ends when told to."""
    arguments = ["--collector.disable-defaults", "--collector.state", f"--state.directory={tmp_path}"]
    with exporter(*arguments, "--otlp.endpoint=http://127.0.0.1:9", OTEL_METRIC_EXPORT_INTERVAL="100") as node:
        for _ in range(3):
            assert node.scrape()['laggard_exporter_collector_success{collector="state"}'] == 1
            time.sleep(0.1)
        assert node.stop() == 0


class Slow(MetricExporter):
    """Takes longer than the interval, and never succeeds; from the fifth time on it waits for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.enough = threading.Event()

    def export(self, *_: Any, **__: Any) -> MetricExportResult:
        self.count += 1
        if self.count == 5:
            self.enough.set()
            threading.Event().wait()
        time.sleep(0.005)
        if self.count % 2:
            raise RuntimeError("no memory")
        return MetricExportResult.FAILURE

    def force_flush(self, timeout_millis: float = 0) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 0, **_: Any) -> None:
        """Do nothing."""


def test_pushes_go_on(caplog: pytest.LogCaptureFixture) -> None:
    """Pushes that fail or take longer than the interval are followed by the next, each problem logged once."""
    exporter = Slow()
    Pusher(Collection([]), "node-7", exporter, 0.001).start()
    assert exporter.enough.wait(TIMEOUT)
    assert {record.getMessage() for record in caplog.records} == {
        "OTLP: a push failed: RuntimeError: no memory",
        "OTLP: the receiver did not take what was sent; the next push tries again",
    }
    assert len(caplog.records) == 2


def test_without_opentelemetry(
    variables: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without OpenTelemetry the flag is refused; variables that may be meant for others are a warning."""

    def missing(_: str) -> None:
        raise ModuleNotFoundError("No module named 'opentelemetry'", name="opentelemetry")

    variables.setattr(importlib, "import_module", missing)
    problem = "to push by OTLP opentelemetry is needed; pip install 'laggard[otel]'"
    collectors = {"state": "ranks"}
    main._push(flags.parse([], collectors), Collection([]))
    variables.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318")
    main._push(flags.parse([], collectors), Collection([]))
    assert [record.getMessage() for record in caplog.records] == [problem]
    with pytest.raises(SystemExit) as end:
        main._push(flags.parse(["--otlp.endpoint=http://localhost:4318"], collectors), Collection([]))
    assert (end.value.code, capsys.readouterr().err) == (2, f"laggard-exporter: error: {problem}\n")


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Return a way to set variables, with none of OpenTelemetry set."""
    # Set first, so that what the settings write is undone too.
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")
    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)
    return monkeypatch


def test_nothing_says_so(variables: pytest.MonkeyPatch) -> None:
    """Without an endpoint, or with exports switched off, nothing is pushed."""
    assert settings("") is None
    variables.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318")
    variables.setenv("OTEL_METRICS_EXPORTER", "none")
    assert settings("") is None
    variables.delenv("OTEL_METRICS_EXPORTER")
    variables.setenv("OTEL_SDK_DISABLED", "true")
    assert settings("") is None


def test_variables(variables: pytest.MonkeyPatch) -> None:
    """An endpoint in the variables is enough; protocol and interval are theirs, those for metrics before the others."""
    variables.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://localhost:4318/v1/metrics")
    assert settings("") == Settings(EXPORTERS["http/protobuf"], 60)
    variables.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "nonsense")
    variables.setenv("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "grpc")
    variables.setenv("OTEL_METRIC_EXPORT_INTERVAL", "15000")
    assert settings("") == Settings(EXPORTERS["grpc"], 15)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "OTEL_EXPORTER_OTLP_PROTOCOL",
            "http/json",
            "OTEL_EXPORTER_OTLP_PROTOCOL='http/json': choose from http/protobuf, grpc",
        ),
        (
            "OTEL_METRIC_EXPORT_INTERVAL",
            "0",
            "OTEL_METRIC_EXPORT_INTERVAL must be milliseconds above 0, got '0'",
        ),
        (
            "OTEL_METRIC_EXPORT_INTERVAL",
            "1m",
            "OTEL_METRIC_EXPORT_INTERVAL must be milliseconds above 0, got '1m'",
        ),
    ],
)
def test_bad_variables(variables: pytest.MonkeyPatch, name: str, value: str, message: str) -> None:
    """A variable that cannot be followed ends the command with exit code 2 and one line."""
    variables.setenv(name, value)
    with pytest.raises(OtlpError) as error:
        settings("http://localhost:4318")
    assert str(error.value) == message
    command = [str(EXPORTER), "--web.listen-address=127.0.0.1:0", "--otlp.endpoint=http://localhost:4318"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert (result.returncode, result.stderr.splitlines()[-1]) == (2, f"laggard-exporter: error: {message}")
