"""What an agent has accepted arrives, whatever is killed."""

from __future__ import annotations

import json
import shutil
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from laggard_cli.demo.servers import _free_ports  # pyright: ignore[reportPrivateUsage] - as the demo finds them
from tests.collector.support import agent, gateway, missing, named, processes, wait_until

PERIOD = 0.1
_PROMETHEUS = "storage: {tsdb: {out_of_order_time_window: 10m}}\n"


class Pusher:
    """Pushes a counter that grows by one, and keeps what was accepted: values by their time in milliseconds."""

    def __init__(self, port: int) -> None:
        self.accepted: dict[int, int] = {}
        self.refused = 0
        self._port = port
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Push no more."""
        self._ended.set()
        self._thread.join(10)

    def _work(self) -> None:
        value = 0
        start = time.time_ns()
        while not self._ended.wait(PERIOD):
            value += 1
            now = time.time_ns() // 10**6
            try:
                self._push(value, start, now)
                self.accepted[now] = value
            except OSError:
                self.refused += 1

    def _push(self, value: int, start: int, now: int) -> None:
        point = {"startTimeUnixNano": str(start), "timeUnixNano": str(now * 10**6), "asInt": str(value)}
        steps = {"aggregationTemporality": 2, "isMonotonic": True, "dataPoints": [point]}
        metric = {"name": "training.steps", "unit": "{step}", "sum": steps}
        body = json.dumps({"resourceMetrics": [{"scopeMetrics": [{"metrics": [metric]}]}]}).encode()
        url = f"http://127.0.0.1:{self._port}/v1/metrics"
        with urllib.request.urlopen(
            urllib.request.Request(url, body, {"Content-Type": "application/json"}), timeout=5
        ) as answer:
            answer.read()


def stored(server: str) -> dict[int, int]:
    """Return the counter's samples: values by their time in milliseconds."""
    query = urllib.parse.urlencode({"query": "training_steps_total[10m]"})
    with urllib.request.urlopen(f"{server}/api/v1/query?{query}", timeout=10) as answer:
        result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return {round(at * 1000): int(value) for series in result for at, value in series["values"]}


def test_nothing_that_was_accepted_is_lost(tmp_path: Path) -> None:
    """Agent and gateway are killed, together and in turn, with Prometheus away and back: every sample is there."""
    if shutil.which("prometheus") is None:
        missing("prometheus is missing: apt-get install prometheus")
    ports = _free_ports(9)
    ours = named(ports[:5], "grpc", "http", "health", "self", "exporter")
    theirs = named(ports[5:8], "grpc", "health", "self")
    server = f"http://127.0.0.1:{ports[8]}"
    (tmp_path / "prometheus.yml").write_text(_PROMETHEUS)
    with processes(tmp_path) as started:
        arguments = [
            f"--config.file={tmp_path / 'prometheus.yml'}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{ports[8]}",
            "--web.enable-remote-write-receiver",
        ]
        write = gateway(tmp_path, theirs, f"{server}/api/v1/write", "http://127.0.0.1:1")
        programs = {
            "prometheus": (["prometheus", *arguments], {}, f"{server}/-/ready"),
            "gateway": (*write, f"http://127.0.0.1:{theirs['health']}/"),
            "agent": (*agent(tmp_path, ours, [theirs["grpc"]]), f"http://127.0.0.1:{ours['health']}/"),
        }

        def start(name: str) -> None:
            command, environment, url = programs[name]
            started.start(name, command, environment)
            started.wait(name, url)

        for name in programs:
            start(name)
        pusher = Pusher(ours["http"])
        wait_until(lambda: stored(server), "nothing arrives")
        started.kill("gateway")
        time.sleep(2)
        started.kill("agent")
        time.sleep(0.5)
        start("agent")
        time.sleep(0.5)
        # Again, with what was left from before in its queue; and the gateway with what Prometheus did not take.
        started.kill("agent")
        started.kill("prometheus")
        start("agent")
        start("gateway")
        time.sleep(2)
        started.kill("gateway")
        start("prometheus")
        start("gateway")
        time.sleep(1)
        pusher.end()
        assert pusher.refused > 0, "the agent was never away"
        assert len(pusher.accepted) > 20
        wait_until(lambda: max(stored(server).values()) == max(pusher.accepted.values()), "the newest does not arrive")
        wait_until(lambda: pusher.accepted.items() <= stored(server).items(), lost(pusher, server))


def lost(pusher: Pusher, server: str) -> str:
    """Say what is lost."""
    found = stored(server)
    gone = [value for at, value in pusher.accepted.items() if at not in found]
    return f"{len(gone)} of {len(pusher.accepted)} are lost: {gone[:10]}"
