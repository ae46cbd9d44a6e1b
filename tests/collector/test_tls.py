"""Agent and gateway over a network that others use too: both show certificates."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

from laggard_cli.demo.servers import free_ports
from tests.collector.support import CONFIGURATIONS, agent, collector, gateway, named, processes
from tests.collector.test_gateway import accepted, span
from tests.exporter.web.certificates import Authority, Pair
from tests.support.otlp import Receiver
from tests.support.waiting import until


def _over(role: str, authority: Authority, pair: Pair) -> tuple[list[str | Path], dict[str, str]]:
    """Return what is added to command and environment of a Collector."""
    return ["--config", CONFIGURATIONS / f"{role}-tls.yaml"], {
        "TLS_CA": str(authority.certificate),
        "TLS_CERT": str(pair.certificate),
        "TLS_KEY": str(pair.key),
    }


def _send(port: int, step: int) -> None:
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span(step, 0, slow=True)]}]}]}).encode()
    url = f"http://127.0.0.1:{port}/v1/traces"
    with urllib.request.urlopen(
        urllib.request.Request(url, body, {"Content-Type": "application/json"}), timeout=10
    ) as answer:
        assert answer.status == 200


def test_a_gateway_takes_from_agents_with_a_certificate_alone(tmp_path: Path) -> None:
    """What an agent with a certificate sends arrives; one of another authority, one without, and no TLS do not."""
    ours, theirs = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    of_gateway = ours.issue("gateway")
    of_agents = {"known": ours.issue("agent"), "stranger": theirs.issue("stranger")}
    ports = free_ports(18)
    of_port = named(ports[:3], "grpc", "health", "self")
    places = dict(zip(("known", "stranger", "plain"), (ports[3:8], ports[8:13], ports[13:18]), strict=True))
    agents = {name: named(place, "grpc", "http", "health", "self", "exporter") for name, place in places.items()}
    with Receiver() as receiver, processes(tmp_path) as started:
        back_end = receiver.environment["OTEL_EXPORTER_OTLP_ENDPOINT"]
        command, environment = gateway(tmp_path, of_port, "http://127.0.0.1:1/api/v1/write", back_end)
        more, files = _over("gateway", ours, of_gateway)
        started.start("gateway", [*command, *more], {**environment, **files})
        for name, place in agents.items():
            command, environment = agent(tmp_path / name, place, [of_port["grpc"]])
            if name in of_agents:
                # The stranger trusts the gateway, but not the other way round.
                more, files = _over("agent", ours, of_agents[name])
                command, environment = [*command, *more], {**environment, **files}
            started.start(name, command, environment)
        for name, place in {"gateway": of_port, **agents}.items():
            started.wait(name, f"http://127.0.0.1:{place['health']}/")
        for number, place in enumerate(agents.values()):
            _send(place["http"], number)
        until(lambda: receiver.spans, "the known agent's span does not arrive")
        time.sleep(2)
        assert [int(each.trace_id.hex(), 16) - 1 for each in receiver.spans] == [0]
        assert accepted(of_port["self"]) == 1
        for name in ("stranger", "plain"):
            assert "rpc error: code = Unavailable" in started.log(name)
        with pytest.raises(ssl.SSLError):
            _shake_hands(of_port["grpc"], ours)


def _shake_hands(port: int, authority: Authority) -> None:
    """Connect without a certificate of one's own, and read what TLS 1.3 says of it only then."""
    context = ssl.create_default_context(cafile=str(authority.certificate))
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", port), 10) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as wrapped,
    ):
        wrapped.recv(1)


@pytest.mark.parametrize("role", ["agent", "gateway"])
def test_a_certificate_that_is_not_there_is_said(role: str, tmp_path: Path) -> None:
    """The Collector ends at once and names the file."""
    authority = Authority(tmp_path, "ours")
    missing = Pair(tmp_path / "nowhere.crt", tmp_path / "nowhere.key")
    ports = free_ports(5)
    command, environment = (
        agent(tmp_path, named(ports, "grpc", "http", "health", "self", "exporter"), [1])
        if role == "agent"
        else gateway(tmp_path, named(ports[:3], "grpc", "health", "self"), "http://127.0.0.1:1", "http://127.0.0.1:1")
    )
    more, files = _over(role, authority, missing)
    done = subprocess.run(
        [*map(str, command), *map(str, more)],
        env={**environment, **files, "PATH": str(collector().parent)},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 1
    assert "nowhere" in done.stderr
