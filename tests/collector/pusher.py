"""Pushes samples to a Collector, and keeps what was accepted."""

from __future__ import annotations

import json
import threading
import time
import urllib.parse
import urllib.request
from typing import Any

PERIOD = 0.1
#: A name that no rule reads.
_METRIC, _SERIES = "pushed.steps", "pushed_steps_total"


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
        metric = {"name": _METRIC, "unit": "{step}", "sum": steps}
        body = json.dumps({"resourceMetrics": [{"scopeMetrics": [{"metrics": [metric]}]}]}).encode()
        url = f"http://127.0.0.1:{self._port}/v1/metrics"
        with urllib.request.urlopen(
            urllib.request.Request(url, body, {"Content-Type": "application/json"}), timeout=5
        ) as answer:
            answer.read()


def stored(server: str) -> dict[int, int]:
    """Return the counter's samples: values by their time in milliseconds."""
    query = urllib.parse.urlencode({"query": f"{_SERIES}[10m]"})
    with urllib.request.urlopen(f"{server}/api/v1/query?{query}", timeout=10) as answer:
        result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return {round(at * 1000): int(value) for series in result for at, value in series["values"]}


def lost(pusher: Pusher, server: str) -> str:
    """Say what is lost."""
    found = stored(server)
    gone = [value for at, value in pusher.accepted.items() if at not in found]
    return f"{len(gone)} of {len(pusher.accepted)} are lost: {gone[:10]}"
