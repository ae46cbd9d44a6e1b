"""Plays a recording to a real Prometheus with the shipped rules, in compressed time.

All that is a duration in the rules shrinks by one factor, and so does the time between two samples; what the samples
say of durations stays. A rule therefore sees what it would have seen, only sooner. Gauges that hold a time are moved to
the clock of the replay: the start of a process in proportion, so that the order of starts stays, other times so that
their age stays.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import socket
import subprocess
import threading
import time
from collections.abc import Generator
from datetime import timedelta
from pathlib import Path

import httpx
import numpy as np
import yaml

from laggard_cli.errors import CommandError
from laggard_cli.local_servers import programs
from laggard_cli.local_servers.processes import end, how_it_ended, last_line, launch
from laggard_cli.pack import pack_folder
from laggard_cli.prometheus import quoted
from laggard_cli.replay.recording import Recording, Series
from laggard_cli.rules import render
from laggard_cli.rules.profiles import PRODUCTION, load_profile
from laggard_cli.ways import direct

#: Seconds of the rules' time between two scrapes, as in production.
INTERVAL = 15.0
#: Recordings shorter than this are stretched: it is what the slowest common verdict needs.
SHORTEST = 1500.0
#: Eight scrapes a second where a scrape is small; about 40,000 samples a second can be scraped and judged.
_TICK_SECONDS = 0.125
_SAMPLES_PER_SECOND = 40_000
_START_SECONDS = 30.0
#: A rate looks back at four scrapes and needs two of them.
_LATE_TICKS = 2.0
_ITERATIONS = "prometheus_rule_group_iterations"
#: Start of a rank's process; its order and distance to other starts is what rules read.
_STARTS = ("training_rank_start_timestamp_seconds", "training_process_start_timestamp_seconds")


@dataclasses.dataclass(frozen=True)
class Pace:
    """How the recording's time, the rules' time and the wall clock relate."""

    begin: float
    end: float
    tick: float

    @property
    def stretch(self) -> float:
        """Rules' seconds for each recorded second: 1 unless the recording is short."""
        return max(1.0, SHORTEST / max(self.end - self.begin, 1e-9))

    @property
    def speed(self) -> float:
        """Recorded seconds for each second of the wall clock."""
        return INTERVAL / self.tick / self.stretch

    @property
    def seconds(self) -> float:
        """How long the replay takes."""
        return (self.end - self.begin) / self.speed

    def slower(self) -> Pace:
        """Return half of this pace."""
        return dataclasses.replace(self, tick=2 * self.tick)


def pace_of(recording: Recording) -> Pace:
    """Return a pace that this machine can follow."""
    return Pace(recording.begin, recording.end, max(_TICK_SECONDS, len(recording.series) / _SAMPLES_PER_SECOND))


_WAIT_SECONDS = 0.02


class Player:
    """A metrics endpoint that exposes a recording as it was at the present moment of the replay."""

    def __init__(self, recording: Recording, pace: Pace) -> None:
        self._series = recording.series
        self._heads = [_head(series) for series in self._series]
        self._pace = pace
        self._started: float | None = None
        self._lock = threading.Lock()
        self._shown: list[float] = []

    def wait_for_scrape(self, seconds: float) -> None:
        """Wait until somebody asks, but no longer than ``seconds``."""
        deadline = time.monotonic() + seconds
        while not self._shown and time.monotonic() < deadline:
            time.sleep(_WAIT_SECONDS)

    def start(self) -> None:
        """Begin to play; until then there is nothing to see."""
        self._started = time.time()

    @property
    def position(self) -> float:
        """Recorded time that is shown now."""
        if self._started is None:
            return -np.inf
        return self._pace.begin + (time.time() - self._started) * self._pace.speed

    @property
    def missed(self) -> float:
        """Share of the time in which a rate had nothing to look back at, or of the scrapes that never came."""
        with self._lock:
            shown = [moment for moment in self._shown if self._started is not None and moment >= self._started]
        if self._started is None:
            return 0.0
        gaps = np.diff([self._started, *shown, time.time()]) / self._pace.tick
        lost = float(np.maximum(gaps - _LATE_TICKS, 0).sum())
        return max(lost / max(gaps.sum(), 1e-9), 1 - len(shown) / max(gaps.sum() - 1, 1.0))

    def exposition(self) -> str:
        """Return all series that are there now, as Prometheus' text."""
        now, position = time.time(), self.position
        with self._lock:
            self._shown.append(now)
        lines: list[str] = []
        for head, series in zip(self._heads, self._series, strict=True):
            value = sample(series, position)
            if value is None:
                continue
            if series.name.endswith("_timestamp_seconds"):
                value = self._moved(series.name, value, now, position)
            lines.append(f"{head} {value!r}\n")
        return "".join(lines)

    def _moved(self, name: str, value: float, now: float, position: float) -> float:
        """Return a time of the recording on the clock of the replay."""
        if name in _STARTS:
            return (self._started or now) + (value - self._pace.begin) / self._pace.speed
        return now - (position - value)


def sample(series: Series, position: float) -> float | None:
    """Return a series' value at a time: the last one, or on a counter's way to the next; None where it is gone."""
    after = int(np.searchsorted(series.times, position, side="right"))
    if after == 0 or position - series.times[after - 1] > series.reach:
        return None
    value = float(series.values[after - 1])
    if not np.isfinite(value):
        return None
    if series.grows and np.isfinite(series.reach) and after < len(series.times):
        gap, growth = series.times[after] - series.times[after - 1], series.values[after] - value
        if growth > 0 and gap <= series.reach:
            value += float(growth * (position - series.times[after - 1]) / gap)
    return value


def _head(series: Series) -> str:
    return series.name + "{" + ",".join(f"{label}={quoted(value)}" for label, value in series.labels) + "}"


@contextlib.contextmanager
def serving(player: Player) -> Generator[str]:
    """Serve the player on loopback; yield its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = player.exposition().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            # Prometheus may have given up, which is counted as a missing scrape.
            with contextlib.suppress(ConnectionError):
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """Say nothing."""

    class Server(http.server.ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            """Say nothing on the terminal."""

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def prometheus(target: str, pace: Pace, folder: Path) -> Generator[str]:
    """Run Prometheus over one target, with the shipped rules in the replay's time; yield its URL when it is ready."""
    program = programs.find_prometheus()
    address = _free_address()
    lookback = _write_configuration(target, pace, folder)
    flags = (f"--query.lookback-delta={lookback}", "--log.level=warn")
    process = launch(programs.prometheus(program, folder, address, *flags), folder / "prometheus.log")
    try:
        _wait_until_ready(f"http://{address}", process, folder)
        yield f"http://{address}"
    finally:
        end(process)


def _write_configuration(target: str, pace: Pace, folder: Path) -> str:
    """Write rules and configuration; return the lookback that belongs to them."""
    production = load_profile(pack_folder("rules"), PRODUCTION)
    factor = pace.tick / INTERVAL

    def shrunk(length: timedelta) -> timedelta:
        return timedelta(milliseconds=round(length / timedelta(milliseconds=1) * factor))

    profile = dataclasses.replace(
        production,
        name="replay",
        durations={length: shrunk(length) for length in production.durations},
        # Starts keep their order and move together.
        thresholds={"start_skew_seconds": 300 * factor},
    )
    texts = render(profile)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    tick = f"{round(1000 * pace.tick)}ms"
    configuration = {
        "global": {"scrape_interval": tick, "scrape_timeout": tick, "evaluation_interval": tick},
        "rule_files": list(texts),
        "scrape_configs": [{"job_name": "recording", "static_configs": [{"targets": [target]}]}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration), encoding="utf-8")
    return f"{round(300_000 * factor)}ms"


def missed_evaluations(address: str) -> float:
    """Return the share of the rules' evaluations that Prometheus had no time for."""
    try:
        page = direct().get(f"{address}/metrics", timeout=20).text
    except httpx.HTTPError as error:
        raise CommandError(f"the replay's Prometheus does not answer: {error}") from error
    missed, whole = (
        sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(f"{_ITERATIONS}{name}{{"))
        for name in ("_missed_total", "_total")
    )
    return missed / whole if whole else 1.0


def _wait_until_ready(address: str, process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise CommandError(
                f"prometheus ended {how_it_ended(process.returncode)}: {last_line(folder / 'prometheus.log')}"
            )
        with contextlib.suppress(httpx.TransportError, KeyError, ValueError):
            answer = direct().get(f"{address}/api/v1/rules", timeout=2)
            if answer.is_success and answer.json()["data"]["groups"]:
                return
        time.sleep(0.1)
    raise CommandError(f"prometheus did not become ready within {_START_SECONDS:.0f} s")


def _free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"127.0.0.1:{probe.getsockname()[1]}"
