"""What an agent has accepted arrives, whatever is killed."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from laggard_cli.demo.servers import free_ports
from tests.collector.pusher import Pusher, lost, stored
from tests.collector.support import agent, gateway, missing, named, processes
from tests.support.waiting import until

_PROMETHEUS = "storage: {tsdb: {out_of_order_time_window: 10m}}\n"


def test_nothing_that_was_accepted_is_lost(tmp_path: Path) -> None:
    """Agent and gateway are killed, together and in turn, with Prometheus away and back: every sample is there."""
    if shutil.which("prometheus") is None:
        missing("prometheus is missing: apt-get install prometheus")
    ports = free_ports(9)
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
        until(lambda: stored(server), "nothing arrives")
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
        until(lambda: max(stored(server).values()) == max(pusher.accepted.values()), "the newest does not arrive")
        until(lambda: pusher.accepted.items() <= stored(server).items(), lost(pusher, server))
