"""Faults of laggard itself: whatever breaks of it, training computes the same numbers and ends the same way."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from chaos.job import Job
from chaos.stack import Stack
from laggard_cli.errors import CommandError
from laggard_cli.prometheus import Prometheus

_WORLD = 2
_STEPS = 150
_START_SECONDS = 60.0
#: From the first step to the end of the process.
_RUN_SECONDS = 90.0
_DOWN_SECONDS = 5.0
_COUNT_SECONDS = 20.0
_GARBAGE_BYTES = 10_000_000
_STORM_CLIENTS = 50
_STORM_SECONDS = 5.0


@dataclass
class Scene:
    """A job that runs while laggard breaks."""

    stack: Stack
    folder: Path
    ports: Sequence[int]
    state: Path

    @property
    def served(self) -> list[int]:
        """Ports at which laggard answers: the ranks' metrics and the node exporter's."""
        exporter = int(self.stack.servers.addresses["exporter"].rpartition(":")[2])
        return [*self.ports[1 : 1 + _WORLD], exporter]


#: Gives the job's environment, then breaks something while it runs, then cleans up behind it.
Act = Callable[[Scene], Generator[dict[str, str], None, None]]


@dataclass(frozen=True)
class OwnFault:
    """A fault of laggard, what a user sees of it, and what is lost."""

    name: str
    title: str
    act: Act
    sees: str
    lost: str
    #: Steps in Prometheus at the end are those that were made.
    counted: bool = True
    needs_root: bool = False


@dataclass
class OwnResult:
    """How it went."""

    fault: OwnFault
    problems: list[str] = field(default_factory=list[str])
    skipped: str = ""

    @property
    def passed(self) -> bool:
        """Whether training noticed nothing."""
        return not self.problems


def _nothing(_: Scene) -> Generator[dict[str, str], None, None]:
    yield {}
    yield {}


def _prometheus(scene: Scene) -> Generator[dict[str, str], None, None]:
    yield {}
    scene.stack.servers.kill("prometheus")
    scene.stack.pause(_DOWN_SECONDS)
    scene.stack.servers.start("prometheus")
    yield {}


def _exporter(scene: Scene) -> Generator[dict[str, str], None, None]:
    yield {}
    scene.stack.servers.kill("exporter")
    scene.stack.pause(_DOWN_SECONDS)
    scene.stack.servers.start("exporter")
    yield {}


def _endpoint_never_answers(_: Scene) -> Generator[dict[str, str], None, None]:
    with socket.create_server(("127.0.0.1", 0), backlog=128) as server:
        yield _endpoint(server.getsockname()[1])
        yield {}


def _endpoint_unreachable(_: Scene) -> Generator[dict[str, str], None, None]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    yield _endpoint(port)
    yield {}


def _endpoint(port: int) -> dict[str, str]:
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_METRIC_EXPORT_INTERVAL": "1000",
    }


def _disk_full(scene: Scene) -> Generator[dict[str, str], None, None]:
    disk = scene.folder.with_name(f"{scene.folder.name}-disk")
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "laggard-chaos", disk], check=True)
    try:
        with contextlib.suppress(OSError):
            (disk / "full").write_bytes(bytes(2**20))
        yield {"LAGGARD_STATE_DIR": str(disk)}
        yield {}
    finally:
        subprocess.run(["umount", "--lazy", disk], check=False)


def _disk_fills(scene: Scene) -> Generator[dict[str, str], None, None]:
    disk = scene.folder.with_name(f"{scene.folder.name}-disk")
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "laggard-chaos", disk], check=True)
    try:
        yield {"LAGGARD_STATE_DIR": str(disk)}
        with contextlib.suppress(OSError):
            (disk / "full").write_bytes(bytes(2**20))
        yield {}
    finally:
        subprocess.run(["umount", "--lazy", disk], check=False)


def _state_removed(scene: Scene) -> Generator[dict[str, str], None, None]:
    folder = scene.folder.with_name(f"{scene.folder.name}-state")
    yield {"LAGGARD_STATE_DIR": str(folder)}
    shutil.rmtree(folder)
    yield {}


def _state_impossible(_: Scene) -> Generator[dict[str, str], None, None]:
    yield {"LAGGARD_STATE_DIR": "/proc/laggard"}
    yield {}


def _ports_taken(scene: Scene) -> Generator[dict[str, str], None, None]:
    with contextlib.ExitStack() as sockets:
        for port in scene.ports[1:]:
            sockets.enter_context(socket.create_server(("127.0.0.1", port)))
        yield {}
        yield {}


def _storm(scene: Scene) -> Generator[dict[str, str], None, None]:
    def ask(port: int) -> None:
        with httpx.Client(timeout=10) as client:
            while time.monotonic() < ends:
                with contextlib.suppress(httpx.HTTPError):
                    client.get(f"http://127.0.0.1:{port}/metrics")

    yield {}
    ends = time.monotonic() + _STORM_SECONDS
    ports = scene.served
    _together([lambda port=port: ask(port) for port in ports for _ in range(_STORM_CLIENTS // len(ports))])
    yield {}


def _garbage(scene: Scene) -> Generator[dict[str, str], None, None]:
    def send(port: int) -> None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(garbage)

    yield {}
    garbage = secrets.token_bytes(_GARBAGE_BYTES)
    _together([lambda port=port: send(port) for port in scene.served])
    yield {}


def _together(calls: Sequence[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)


_SAME = "nothing"

OWN_FAULTS = (
    OwnFault("watched", "nothing: laggard looks on", _nothing, "the run, as always", _SAME),
    OwnFault(
        "prometheus-restarts",
        "Prometheus is killed and starts again",
        _prometheus,
        "a gap in all series; Alertmanager's dead man's switch, if it lasts",
        "the values of gauges during the gap; counters and histograms go on with all that was counted meanwhile",
    ),
    OwnFault(
        "exporter-restarts",
        "the node exporter is killed and starts again",
        _exporter,
        "TrainingTelemetryDown for each rank of the node, after a minute",
        "ages and states during the gap; the state files keep counting",
    ),
    OwnFault(
        "endpoint-never-answers",
        "the OTLP endpoint accepts and never answers",
        _endpoint_never_answers,
        "no metrics of the ranks; their state files go on, so stalls and deaths are still found",
        "spans beyond the SDK's queue; metrics are cumulative and arrive with the next export that works",
    ),
    OwnFault(
        "endpoint-unreachable",
        "nobody listens at the OTLP endpoint",
        _endpoint_unreachable,
        "as above",
        "as above",
    ),
    OwnFault(
        "disk-full",
        "the disk of the state folder is full before the start",
        _disk_full,
        "one warning in the rank's log; its metrics as always",
        "the state file: a stall or a death of this rank is found by its metrics alone, after minutes",
        counted=False,
        needs_root=True,
    ),
    OwnFault(
        "disk-fills",
        "the disk of the state folder becomes full during the run",
        _disk_fills,
        "nothing: a state file has its final size from the beginning",
        _SAME,
        counted=False,
        needs_root=True,
    ),
    OwnFault(
        "state-removed",
        "the state folder is removed during the run",
        _state_removed,
        "TrainingTelemetryDown for each rank of the node, after a minute",
        "what the state files say from then on; metrics as always",
        counted=False,
    ),
    OwnFault(
        "state-impossible",
        "the state folder can not be made",
        _state_impossible,
        "one warning in the rank's log; its metrics as always",
        "the state file, as with a full disk",
        counted=False,
    ),
    OwnFault(
        "ports-taken",
        "all ports of the ranks' metrics are taken",
        _ports_taken,
        "the ranks serve at the next free port, which their state files name",
        "metrics of the ranks, until somebody scrapes that port",
    ),
    OwnFault("scrape-storm", "50 clients scrape without a pause", _storm, "slower scrapes for a moment", _SAME),
    OwnFault("garbage", "10 MB of random bytes are sent to each port of laggard", _garbage, "nothing", "nothing"),
)


class OwnPlay:
    """Plays faults of laggard, each on a job of its own, and compares with a job that laggard does not watch."""

    def __init__(self, stack: Stack, show: Callable[[str], None]) -> None:
        self._stack = stack
        self._show = show
        self._reference: list[list[str]] | None = None
        self._lock = threading.Lock()

    def play(self, fault: OwnFault) -> OwnResult:
        """Play a fault; whatever goes wrong stands in its result."""
        result = OwnResult(fault)
        if fault.needs_root and os.geteuid() != 0:
            result.skipped = "a small disk needs root"
        else:
            try:
                self._play(fault, result)
            except (CommandError, OSError, subprocess.SubprocessError) as error:
                result.problems.append(str(error))
        said = "; ".join(result.problems) or (
            f"skipped: {result.skipped}" if result.skipped else "losses bit-identical, exit codes 0"
        )
        self._show(f"{'ok  ' if result.passed else 'FAIL'} {fault.name}: {said}")
        return result

    def _play(self, fault: OwnFault, result: OwnResult) -> None:
        with self._lock:
            if self._reference is None:
                self._reference = self._losses("unwatched", _nothing, instrumented=False)[0]
        losses, counted = self._losses(fault.name, fault.act, counted=fault.counted)
        if losses != self._reference:
            result.problems.append("the losses differ from those of a run without laggard")
        if fault.counted and counted != _STEPS:
            result.problems.append(f"Prometheus counts {counted} steps of {_STEPS}")

    def _losses(
        self, name: str, act: Act, *, instrumented: bool = True, counted: bool = False
    ) -> tuple[list[list[str]], float | None]:
        """Run a job to its end. Return the losses of each rank, and the steps that Prometheus knows in the end."""
        servers = self._stack.servers
        folder = servers.folder / name
        with self._stack.place() as ports:
            acts = act(Scene(self._stack, folder, ports, servers.state_directories[0]))
            environment = next(acts)
            try:
                with Job(
                    folder,
                    name,
                    _WORLD,
                    ports,
                    servers.state_directories[:1],
                    environment=environment,
                    flags=("--steps", str(_STEPS)),
                    instrumented=instrumented,
                ) as job:
                    self._wait_for_start(job)
                    next(acts)
                    self._wait_for_end(job)
                    codes = [process.poll() for process in job.processes]
                    if any(codes):
                        raise CommandError(f"exit codes {codes}: {job.log(0)[-2000:]}")
                    steps = self._count(name) if counted else None
            finally:
                acts.close()
        return [json.loads((folder / f"losses{rank}").read_text()) for rank in range(_WORLD)], steps

    def _wait_for_start(self, job: Job) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not (job.folder / "started").exists():
            if time.monotonic() > deadline or any(process.poll() is not None for process in job.processes):
                raise CommandError(f"the job did not start: {job.log(0)[-2000:]}")
            self._stack.pause(0.1)

    def _wait_for_end(self, job: Job) -> None:
        deadline = time.monotonic() + _RUN_SECONDS
        while any(process.poll() is None for process in job.processes):
            if time.monotonic() > deadline:
                raise CommandError(f"the job did not end within {_RUN_SECONDS:.0f} s: {job.log(0)[-2000:]}")
            self._stack.pause(0.1)

    def _count(self, run: str) -> float | None:
        """Return the steps of the rank that made fewest, as the node exporter's series says, once it is up to date."""
        prometheus = Prometheus(self._stack.servers.addresses["prometheus"])
        deadline = time.monotonic() + _COUNT_SECONDS
        value = None
        while value != _STEPS and time.monotonic() < deadline:
            self._stack.pause(0.5)
            with contextlib.suppress(CommandError):  # somebody else's fault has just ended it
                found = prometheus.query(f'min(training_process_steps_total{{training_run="{run}"}})')
                value = found[0].value if found else None
        prometheus.close()
        return value
