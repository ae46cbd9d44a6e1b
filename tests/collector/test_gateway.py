"""Spans through an agent and two gateways: slow steps are kept whole."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path
from typing import Any

from laggard_cli.demo.servers import free_ports
from tests.collector.support import agent, gateway, named, processes
from tests.exporter.support import parse, starting_with
from tests.support.otlp import Receiver
from tests.support.waiting import until

STEPS, RANKS = 40, 2


def span(step: int, rank: int, *, slow: bool) -> dict[str, Any]:
    """Return a rank's span of a step, as OTLP's JSON has it."""
    now = time.time_ns()
    marked = [{"key": "training.step.slow", "value": {"boolValue": True}}] if slow else []
    return {
        "traceId": f"{step + 1:032x}",
        "spanId": f"{step * RANKS + rank + 1:016x}",
        "name": "training.step",
        "startTimeUnixNano": str(now - 10**8),
        "endTimeUnixNano": str(now),
        "attributes": [{"key": "training.rank", "value": {"stringValue": str(rank)}}, *marked],
    }


def test_slow_steps_are_kept_whole(tmp_path: Path) -> None:
    """A step that one rank marks is kept with the spans of all ranks, by whichever gateway; the others are dropped."""
    ports = free_ports(11)
    names = ("grpc", "health", "self")
    first, second = named(ports[:3], *names), named(ports[3:6], *names)
    third = named(ports[6:], *names, "http", "exporter")
    with Receiver() as receiver, processes(tmp_path) as started:
        back_end = receiver.environment["OTEL_EXPORTER_OTLP_ENDPOINT"]
        for name, each in (("gateway0", first), ("gateway1", second)):
            nowhere = "http://127.0.0.1:1/api/v1/write"
            started.start(name, *gateway(tmp_path, each, nowhere, back_end, SAMPLED_PERCENT="0"))
        # The agent after them: it would warn of a gateway that does not listen yet.
        for name, each in (("gateway0", first), ("gateway1", second)):
            started.wait(name, f"http://127.0.0.1:{each['health']}/")
        started.start("agent", *agent(tmp_path, third, [first["grpc"], second["grpc"]]))
        started.wait("agent", f"http://127.0.0.1:{third['health']}/")
        slow = {step for step in range(STEPS) if step % 4 == 0}
        # The ranks send one after the other, each all of its steps: a trace is in several requests.
        for rank in range(RANKS):
            spans = [span(step, rank, slow=step in slow and rank == 1) for step in range(STEPS)]
            body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode()
            request = urllib.request.Request(
                f"http://127.0.0.1:{third['http']}/v1/traces", body, {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=10) as answer:
                assert answer.status == 200
        until(lambda: len(receiver.spans) >= len(slow) * RANKS, "the slow steps do not arrive")
        time.sleep(1)
        kept = sorted((int(each.trace_id.hex(), 16) - 1, int(each.span_id.hex(), 16)) for each in receiver.spans)
        assert kept == sorted((step, step * RANKS + rank + 1) for step in slow for rank in range(RANKS))
        said = [line for name in ("gateway0", "gateway1", "agent") for line in started.log(name).splitlines()]
        assert [line for line in said if "\twarn\t" in line or "\terror\t" in line] == []
        shares = [accepted(each["self"]) for each in (first, second)]
        assert (min(shares) > 0, sum(shares)) == (True, STEPS * RANKS)


def accepted(port: int) -> int:
    """Return how many spans a Collector says that it took."""
    with urllib.request.urlopen(f"http://localhost:{port}/metrics", timeout=10) as answer:
        page = answer.read().decode()
    found = starting_with(parse(page), "otelcol_receiver_accepted_spans")
    return int(sum(found.values()))
