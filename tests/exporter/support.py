"""What the exporter's tests share: ranks, exporters and what they say."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import urllib.request
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from laggard.shared import statefile
from laggard.shared.statefile import Facts, StateWriter
from laggard_exporter.amd_smi import library as amd_smi
from laggard_exporter.amd_smi.collector import AmdSmiCollector
from laggard_exporter.gpus.child_process import Child
from laggard_exporter.gpus.collector import GpuCollector
from laggard_exporter.gpus.worker import Worker
from laggard_exporter.kernel_log import KernelLog
from laggard_exporter.nvml import library as nvml
from laggard_exporter.nvml.collector import NvmlCollector
from laggard_exporter.samples import PartialFailureError, Sample

REPOSITORY = Path(__file__).parents[2]
EXPORTER = Path(sysconfig.get_path("scripts")) / "laggard-exporter"
NANOSECONDS = 1_000_000_000
TIMEOUT = 20

#: What a rank's files say unless a test says otherwise; the rank started 10 s after boot.
FACTS = Facts(
    pid=4242,
    pid_start_ticks=1000,
    start_boottime_ns=10 * NANOSECONDS,
    start_unix_ns=1_700_000_000_500_000_000,
    boot_id=statefile.boot_id(),
    run="run-1",
    host="node-7",
    peer_group="stage0",
    workload="train.py",
    hardware_id="GPU-0",
    rank=3,
    local_rank=1,
    world_size=8,
    restarts=2,
    metrics_port=9465,
)


def fresh(**changes: Any) -> Facts:
    """Return the facts of a rank that starts now, for tests in real time."""
    return replace(FACTS, **{"start_boottime_ns": statefile.boottime_ns(), **changes})


def series_name(name: str, labels: Iterable[tuple[str, str]]) -> str:
    """Return ``name{label="value"}`` with sorted labels, values unescaped."""
    inner = ",".join(f'{label}="{value}"' for label, value in sorted(labels))
    return f"{name}{{{inner}}}" if inner else name


def as_dict(samples: Iterable[Sample]) -> dict[str, float]:
    """Return the samples by the name of their series; a series that comes twice is an error."""
    result: dict[str, float] = {}
    for family, labels, value in samples:
        series = series_name(family.name, zip(family.labels, labels, strict=True))
        assert series not in result, f"{series} came twice"
        result[series] = float(value)
    return result


def parse(text: str) -> dict[str, float]:
    """Return the samples of an exposition by the name of their series."""
    result: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            series = series_name(sample.name, sample.labels.items())
            assert series not in result, f"{series} came twice"
            result[series] = sample.value
    return result


def open_metrics(text: str) -> list[Metric]:
    """Return the families of an exposition in the OpenMetrics format."""
    return list(cast("Iterable[Metric]", openmetrics.text_string_to_metric_families(text)))


def starting_with(samples: Mapping[str, float], prefix: str) -> dict[str, float]:
    """Return those samples whose series start with ``prefix``."""
    return {series: value for series, value in samples.items() if series.startswith(prefix)}


def dead_file(directory: Path, facts: Facts = FACTS, words: Mapping[int, int] | None = None) -> Path:
    """Write the state file that a killed rank leaves behind."""
    writer = StateWriter(directory, facts)
    for index, value in (words or {}).items():
        writer.words[index] = value
    writer.close()
    return writer.path


@contextlib.contextmanager
def live_rank(
    directory: Path,
    facts: Facts = FACTS,
    words: Mapping[int, int] | None = None,
    environment: Mapping[str, str] | None = None,
    ends: int | list[str] | None = None,
) -> Generator[subprocess.Popen[str], None, None]:
    """Run a rank's process that holds its state file, with more variables in its environment where told so.

    Once its input is closed it ends as every program, or with the exit code ``ends``; below 0 that is a signal. Where
    that is a program, the process runs it from then on.
    """
    plain = {**vars(facts), "boot_id": facts.boot_id.hex()}
    request = {"directory": str(directory), "facts": plain, "words": words or {}, "ends": ends}
    program = [sys.executable, str(Path(__file__).with_name("rank_process.py"))]
    with running(program, env={**os.environ, **(environment or {})}) as process:
        ask(process, json.dumps(request))
        yield process


@contextlib.contextmanager
def running(command: list[str], **options: Any) -> Generator[subprocess.Popen[str], None, None]:
    """Run a process with pipes and end it afterwards, by its id."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options) as process:
        try:
            yield process
        finally:
            process.kill()
            process.wait(TIMEOUT)


def ask(process: subprocess.Popen[str], line: str) -> str:
    """Write a line to the process and return the line that it answers."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    assert answer, f"{process.args} did not answer"
    return answer.rstrip("\n")


def lasting(samples: Mapping[str, float]) -> dict[str, float]:
    """Return the samples about GPUs but for the activity since the scrape before.

    A new process has none, and neither has one that was asked a moment ago.
    """
    activity = ("_activity_ratio", "_sm_occupancy_ratio", "_dram_bandwidth_utilization_ratio", "_cycles_total")
    return {
        series: value
        for series, value in starting_with(samples, "gpu_").items()
        if not series.partition("{")[0].endswith(activity)
    }


class GpuProbe:
    """A collector of GPUs on a clock that stands still, over a child process with these environment variables.

    ``start`` makes a child, ``make`` the collector.
    """

    def __init__(
        self,
        variables: Mapping[str, str],
        start: Callable[[Mapping[str, str]], Child],
        make: Callable[..., GpuCollector[Any]],
        **options: Any,
    ) -> None:
        self._now = 1000.0
        self.children: list[Child] = []
        self.incomplete = ""
        self._environment = {**os.environ, **variables}
        self._start_child = start
        options = {"host": "node-1", "sysfs": Path("/nonexistent"), **options}
        self.collector = make(Worker(self._start), clock=lambda: self._now, **options)

    def _start(self) -> Child:
        self.children.append(self._start_child(self._environment))
        return self.children[-1]

    def collect(self, *, later: float = 0) -> dict[str, float]:
        """Move the clock by ``later`` seconds and return all samples; :attr:`incomplete` is what is missing."""
        self._now += later
        samples: list[Sample] = []
        self.incomplete = ""
        try:
            for sample in self.collector.collect():
                samples.append(sample)  # noqa: PERF402 - what came before an error is kept
        except PartialFailureError as error:
            self.incomplete = str(error)
        return as_dict(samples)

    def gpus(self, *, later: float = 0) -> dict[str, float]:
        """Return the samples about GPUs that do not depend on the scrape before."""
        return lasting(self.collect(later=later))


@contextlib.contextmanager
def _running_probe(probe: GpuProbe) -> Generator[GpuProbe, None, None]:
    """Give the probe; no child of it is left."""
    try:
        yield probe
    finally:
        probe.collector.close()
        for child in probe.children:
            child.process.kill()
            child.process.wait(TIMEOUT)


def nvml_probe(variables: Mapping[str, str], **options: Any) -> contextlib.AbstractContextManager[GpuProbe]:
    """Run the NVML collector with these environment variables; no child of it is left."""
    options = {"kernel_log": KernelLog(Path("/nonexistent")), **options}
    return _running_probe(GpuProbe(variables, nvml.start, NvmlCollector, **options))


def amd_probe(variables: Mapping[str, str], **options: Any) -> contextlib.AbstractContextManager[GpuProbe]:
    """Run the collector of AMD's GPUs with these environment variables; no child of it is left."""
    return _running_probe(GpuProbe(variables, amd_smi.start, AmdSmiCollector, **options))


class Exporter:
    """A running ``laggard-exporter``."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.log: list[str] = []
        self.url = self.next_url()

    def next_url(self) -> str:
        """Return the next address that the exporter says it serves on."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            if match := re.search(r"serving metrics at (https?://\S+)", line):
                return match[1]
        raise AssertionError(f"the exporter ended: {self.log}")

    def get(self, url: str | None = None, *, timeout: float = TIMEOUT, **headers: str) -> tuple[Mapping[str, str], str]:
        """Return headers and text of a page; the metrics when no other is named."""
        request = urllib.request.Request(url or self.url, headers=headers)
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return dict(response.headers), response.read().decode()

    def scrape(self) -> dict[str, float]:
        """Return all samples."""
        return parse(self.get()[1])

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(TIMEOUT)


@contextlib.contextmanager
def exporter(*arguments: str, **variables: str) -> Generator[Exporter, None, None]:
    """Run ``laggard-exporter`` on a free port of the loopback interface."""
    command = [str(EXPORTER), "--web.listen-address=127.0.0.1:0", *arguments]
    with running(command, stderr=subprocess.PIPE, env={**os.environ, **variables}) as process:
        yield Exporter(process)


def promtool_check(text: str) -> str:
    """Return what ``promtool check metrics`` complains about."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is missing: apt-get install prometheus")
    result = subprocess.run(
        [promtool, "check", "metrics"], input=text, text=True, capture_output=True, timeout=TIMEOUT, check=False
    )
    return result.stdout + result.stderr + ("" if result.returncode == 0 else f"exit code {result.returncode}")
