"""A real Prometheus on loopback that evaluates the rule pack over a run that a test plays."""

from __future__ import annotations

import contextlib
import http.server
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from laggard.shared.phases import STILL_SECONDS, Condition
from laggard_cli.rules import render
from tests.support.waiting import wait_until

RUN = "live"

#: Seconds of a healthy step: own time without data, data, and the transfer. Eight steps a second.
COMPUTE, DATA, TRANSFER = 0.09, 0.01, 0.025


class Play:
    """Four ranks as their metrics endpoints and node exporter would show them, in real time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._born = self._then = time.monotonic()
        self._edge = self._then
        self._steps = 0.0
        self._seconds = [{"data": 0.0, "forward": 0.0, "communication": 0.0} for _ in range(4)]
        #: Seconds that each rank needs for its data.
        self.data = [DATA] * 4
        #: The rank for which all others wait, once one is stuck.
        self.stuck: int | None = None
        self.state = "running"
        #: When, by what and with what each rank's newest process ended that did not end cleanly.
        self.failure: tuple[float, str, str] | None = None
        #: When the ranks' processes started, in seconds since 1970.
        self.started = time.time()

    def exposition(self) -> str:
        """Return all series of the run, after it went on for the time since the last call."""
        with self._lock:
            self._go_on()
            return "".join(line + "\n" for rank in range(4) for line in self._lines(rank))

    def _go_on(self) -> None:
        now = time.monotonic()
        if self.stuck is None and self.state == "running":
            step = COMPUTE + max(self.data) + TRANSFER
            steps = (now - self._then) / step
            self._steps += steps
            for data, seconds in zip(self.data, self._seconds, strict=True):
                seconds["data"] += data * steps
                seconds["forward"] += COMPUTE * steps
                seconds["communication"] += (step - COMPUTE - data) * steps
            self._edge = now
        self._then = now

    def _lines(self, rank: int) -> Iterator[str]:
        """Yield the samples of one rank."""
        seconds, steps = self._seconds[rank], self._steps

        def sample(name: str, value: float, **labels: str) -> str:
            everything = {"training_run": RUN, "training_rank": str(rank), **labels}
            text = ",".join(f'{label}="{content}"' for label, content in everything.items())
            return f"training_{name}{{{text}}} {float(value)}"

        waits = self.stuck not in (None, rank)
        yield sample("steps_total", steps)
        for metric, total in (
            ("step", sum(seconds.values())),
            ("step_own", seconds["data"] + seconds["forward"]),
        ):
            yield sample(f"{metric}_duration_seconds_sum", total)
            yield sample(f"{metric}_duration_seconds_count", steps)
        for phase, total in seconds.items():
            yield sample("phase_duration_seconds_sum", total, training_phase=phase)
        # The shortest wait of all: far from being bound by communication, however long a test takes.
        yield sample("communication_floor_seconds", TRANSFER / 2)
        yield sample("signal_available", 1, training_signal="communication")
        yield sample("signal_available", 1, training_signal="data")
        yield sample("rank_start_timestamp_seconds", self._born, host_name="node-1")
        yield sample("process_up", self.state == "running")
        for state in ("running", "finished"):
            yield sample("rank_state", self.state == state, training_state=state)
            yield sample("process_state", self.state == state, training_state=state)
        age = time.monotonic() - self._edge
        yield sample("process_phase_age_seconds", age)
        condition = {"finished": Condition.ENDED, "dead": Condition.DEAD}.get(self.state, Condition.QUIET)
        if condition is not Condition.QUIET or age > STILL_SECONDS:
            yield sample("process_condition", condition)
            yield sample("process_standstill_seconds", age)
            yield sample("process_phase", waits, training_phase="communication", host_name="node-1")
            yield sample("process_phase", not waits, training_phase="forward", host_name="node-1")
            yield sample("process_in_collective", waits, training_process_group="world")
            yield sample("process_collective_sequence", int(steps) + waits, training_process_group="world")
        yield sample("process_world_size", 4)
        yield sample("process_start_timestamp_seconds", self.started)
        if self.failure is not None:
            at, by, how = self.failure
            ended = {"host_name": "node-1", "training_ended_by": by, "training_ended_with": how}
            yield sample("process_failure_timestamp_seconds", at, training_phase="other", **ended)


class Prometheus:
    """A running server; :meth:`firing` asks it."""

    def __init__(self, address: str) -> None:
        self.address = f"http://{address}"
        self._client = httpx.Client(base_url=f"{self.address}/api/v1", timeout=5)

    def close(self) -> None:
        """End the connections to the server."""
        self._client.close()

    def ready(self) -> bool:
        """Say whether the server answers and has loaded all groups."""
        with contextlib.suppress(httpx.TransportError):
            answer = self._client.get("/rules")
            return answer.is_success and len(answer.json()["data"]["groups"]) > 0
        return False

    def firing(self) -> list[dict[str, str]]:
        """Return the labels of the alerts that fire, less the one that always does."""
        alerts = self._client.get("/alerts").json()["data"]["alerts"]
        labels = [alert["labels"] for alert in alerts if alert["state"] == "firing"]
        return [each for each in labels if each["alertname"] != "LaggardWatchdog"]

    def failures(self) -> list[str]:
        """Return the errors of rules, in their last evaluation."""
        groups = self._client.get("/rules").json()["data"]["groups"]
        return [rule["lastError"] for group in groups for rule in group["rules"] if rule.get("lastError")]


@contextlib.contextmanager
def serving(play: Play) -> Iterator[str]:
    """Serve a play on loopback; yield the address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the name is http.server's
            body = play.exposition().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # the name is http.server's
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def free_address() -> str:
    """Return an address of loopback on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@contextlib.contextmanager
def prometheus(
    target: str,
    folder: Path,
    binary: str = "prometheus",
    *,
    rare: tuple[str, int] | None = None,
) -> Iterator[Prometheus]:
    """Run Prometheus over one target; yield it when it has loaded the rules.

    Args:
        target: what is scraped.
        folder: for its configuration and its data.
        binary: the program.
        rare: another target, and every how many seconds it is scraped.
    """
    rules = folder / "rules"
    rules.mkdir()
    for name, text in render("fast").items():
        (rules / name).write_text(text, encoding="utf-8")
    configuration = folder / "prometheus.yml"
    jobs = [f"{{job_name: live, static_configs: [{{targets: ['{target}']}}]}}"]
    if rare:
        jobs += [f"{{job_name: rare, scrape_interval: {rare[1]}s, static_configs: [{{targets: ['{rare[0]}']}}]}}"]
    configuration.write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        f"rule_files: ['{rules}/*.yml']\n"
        f"scrape_configs: [{', '.join(jobs)}]\n",
        encoding="utf-8",
    )
    address = free_address()
    process = subprocess.Popen(
        [
            binary,
            f"--config.file={configuration}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={address}",
            "--log.level=warn",
        ]
    )
    server = Prometheus(address)
    try:
        wait_until(server.ready, 20)
        yield server
    finally:
        server.close()
        process.terminate()
        process.wait(10)
