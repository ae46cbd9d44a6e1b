"""One process of Mimir with the limits of deploy/mimir, on loopback, and its tool."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from laggard_cli.demo.servers import free_ports
from tests.collector.support import ROOT, Processes, missing

TOOLS = ROOT / ".cache" / "tools" / "bin"
OVERRIDES = ROOT / "deploy" / "mimir" / "overrides.yaml"
TENANT = "laggard"


class Mimir:
    """Everything that Mimir is in one process, its files in a folder. What has no limit here has Mimir's own."""

    def __init__(self, folder: Path, started: Processes) -> None:
        if not (TOOLS / "mimir").exists():
            missing("no Mimir: run scripts/tools/build_mimir.sh, which needs Go")
        self._started = started
        http, grpc, gossip = free_ports(3)
        self.url = f"http://127.0.0.1:{http}"
        data = folder / "mimir"
        here = {"instance_addr": "127.0.0.1", "kvstore": {"store": "inmemory"}}
        configuration: dict[str, Any] = {
            "target": "all",
            "multitenancy_enabled": True,
            "usage_stats": {"enabled": False},
            "server": {
                "http_listen_address": "127.0.0.1",
                "http_listen_port": http,
                "grpc_listen_address": "127.0.0.1",
                "grpc_listen_port": grpc,
            },
            "memberlist": {"bind_addr": ["127.0.0.1"], "bind_port": gossip, "advertise_addr": "127.0.0.1"},
            "common": {"storage": {"backend": "filesystem", "filesystem": {"dir": str(data / "common")}}},
            "blocks_storage": {
                "storage_prefix": "blocks",
                "tsdb": {"dir": str(data / "tsdb")},
                "bucket_store": {"sync_dir": str(data / "sync")},
            },
            "ruler_storage": {"storage_prefix": "ruler"},
            "ruler": {"rule_path": str(data / "rules"), "ring": here},
            "alertmanager_storage": {"storage_prefix": "alertmanager"},
            "compactor": {"data_dir": str(data / "compactor"), "sharding_ring": here},
            "distributor": {"ring": here},
            "ingester": {"ring": {**here, "replication_factor": 1}},
            "store_gateway": {"sharding_ring": {**here, "replication_factor": 1}},
            "query_scheduler": {"ring": here},
            "frontend": {"address": "127.0.0.1"},
            "activity_tracker": {"filepath": str(data / "activity.log")},
            "runtime_config": {"file": str(OVERRIDES)},
        }
        data.mkdir()
        self._file = folder / "mimir.json"
        self._file.write_text(json.dumps(configuration))

    def start(self) -> None:
        """Start it and wait until it is ready."""
        self._started.start("mimir", [TOOLS / "mimir", f"-config.file={self._file}"])
        self._started.wait("mimir", f"{self.url}/ready")


def mimirtool(*arguments: str | Path) -> str:
    """Return what the tool says, which must succeed."""
    # It takes addresses and passwords from the environment too.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MIMIR_")}
    command = [str(TOOLS / "mimirtool"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=inherited)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
