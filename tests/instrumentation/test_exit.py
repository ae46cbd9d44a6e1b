"""A rank whose telemetry goes nowhere ends as fast, and with the same exit code, as one without."""

from __future__ import annotations

import functools
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest

from tests.support.launch import PROGRAMS, Launcher

pytestmark = pytest.mark.timed

#: What an exit may take, the interpreter's own included.
LIMIT_SECONDS = 3.0
CODES = {"finish": 0, "raise": 1, "wait": -signal.SIGTERM}


@pytest.fixture(params=["closed", "silent"])
def nowhere(request: pytest.FixtureRequest) -> Iterator[int]:
    """A port that nobody listens on, or one where connections are taken and never answered."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        port = server.getsockname()[1]
        if request.param == "closed":
            server.close()
        yield port


def printed_time(process: subprocess.Popen[str]) -> float:
    """When the program began to end, in its own words."""
    assert process.stdout is not None
    return float(process.stdout.readline())


def time_ends(
    start: Callable[..., subprocess.Popen[str]], port: int, cases: list[tuple[str, str]], *arguments: str
) -> dict[tuple[str, str], float]:
    """Start the program once for each ending and protocol, and time its end; exit codes are those without laggard.

    With the protocol ``none`` it has nowhere to send to.
    """
    sending = {
        "OTEL_METRICS_EXPORTER": "otlp",
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
    }
    running = {
        (ending, protocol): start(
            PROGRAMS / "endings.py",
            ending,
            *arguments,
            LAGGARD_TRACE_EVERY="1",
            **({} if protocol == "none" else {**sending, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}),
        )
        for ending, protocol in cases
    }
    began: dict[tuple[str, str], float] = {}
    for case, process in running.items():
        began[case] = printed_time(process)
        if case[0] == "wait":
            began[case] = time.time()
            process.terminate()
    took: dict[tuple[str, str], float] = {}
    while len(took) < len(running) and time.time() < max(began.values()) + 30:
        for case, process in running.items():
            if case not in took and process.poll() is not None:
                took[case] = time.time() - began[case]
        time.sleep(0.01)
    print({" ".join(case): round(seconds, 2) for case, seconds in took.items()})
    assert {case: process.returncode for case, process in running.items()} == {case: CODES[case[0]] for case in running}
    return took


def test_an_endpoint_that_does_not_answer_holds_no_exit_up(nowhere: int, launcher: Launcher) -> None:
    """A clean end, an exception and SIGTERM take at most three seconds with metrics and traces to send.

    By gRPC and by HTTP, with the exporters' own time limit of ten seconds.
    """
    cases = [(ending, protocol) for ending in CODES for protocol in ("grpc", "http/protobuf")]
    start = functools.partial(launcher.start, "python")
    assert max(time_ends(start, nowhere, cases).values()) < LIMIT_SECONDS


@pytest.mark.parametrize("nowhere", ["silent"], indirect=True)
def test_with_torch_loaded_the_end_is_as_fast(nowhere: int, launcher: Launcher) -> None:
    """The endpoint costs at most three seconds, on top of what taking torch down takes beside it without one."""
    cases = [("finish", "none"), ("finish", "grpc"), ("raise", "http/protobuf"), ("wait", "grpc")]
    took = time_ends(launcher.fork, nowhere, cases, "torch")
    usual = took.pop(("finish", "none"))
    assert took.pop(("wait", "grpc")) < LIMIT_SECONDS  # killed by the signal, so nothing is taken down
    assert max(took.values()) - usual < LIMIT_SECONDS


@pytest.mark.parametrize("nowhere", ["silent"], indirect=True)
def test_a_rank_that_is_killed_while_it_fails_has_its_own_exit_code(nowhere: int, launcher: Launcher) -> None:
    """A launcher ends the ranks beside one that fails; one that has failed too, and still reports, exits with 1."""
    endpoint = {"OTEL_METRICS_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{nowhere}"}
    process = launcher.start("python", PROGRAMS / "endings.py", "raise", **endpoint)
    assert process.stderr is not None
    assert any("on purpose" in line for line in process.stderr if "RuntimeError" in line)
    time.sleep(0.3)  # the last report takes 0.4 s here, and the rest of the exit less than 0.3
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 1
