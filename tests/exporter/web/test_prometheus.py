"""A real Prometheus scrapes over TLS, with a client's certificate and a password."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.exporter.support import EXPORTER, TIMEOUT, Exporter, fresh, live_rank, running
from tests.exporter.web.certificates import Authority
from tests.exporter.web.support import SECRET_HASH
from tests.rules.engine import free_address

CONFIGURATION = """
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: welcome
    scheme: https
    params: {{"collect[]": [state]}}
    basic_auth: {{username: prometheus, password: secret}}
    tls_config: &tls {{ca_file: {authority}, cert_file: {certificate}, key_file: {key}}}
    static_configs: &targets [{{targets: ["{target}"]}}]
  - job_name: wrong password
    scheme: https
    basic_auth: {{username: prometheus, password: wrong}}
    tls_config: *tls
    static_configs: *targets
  - job_name: no certificate
    scheme: https
    basic_auth: {{username: prometheus, password: secret}}
    tls_config: {{ca_file: {authority}}}
    static_configs: *targets
"""


def targets(address: str) -> dict[str, tuple[str, str]]:
    """Return health and last error of each job's target, none before Prometheus answers."""
    try:
        with urllib.request.urlopen(f"http://{address}/api/v1/targets", timeout=TIMEOUT) as response:
            active: list[Any] = json.load(response)["data"]["activeTargets"]
    except (urllib.error.URLError, ConnectionError):
        return {}
    return {target["labels"]["job"]: (target["health"], target["lastError"]) for target in active}


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="apt-get install prometheus")
def test_prometheus(tmp_path: Path) -> None:
    """Prometheus gets the ranks with certificate and password, and nothing without one of them."""
    authority = Authority(tmp_path, "authority")
    pair, client = authority.issue("localhost", file="server"), authority.issue("prometheus", file="client")
    (tmp_path / "web.yml").write_text(
        f"tls_server_config:\n  cert_file: {pair.certificate.name}\n  key_file: {pair.key.name}\n"
        f"  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: {authority.certificate.name}\n"
        f"basic_auth_users: {{prometheus: {SECRET_HASH}}}\n"
    )
    # Not the helper: its requests are plain ones.
    command = [str(EXPORTER), "--web.listen-address=127.0.0.1:0", f"--web.config.file={tmp_path / 'web.yml'}"]
    command += ["--no-collector.nvml", f"--state.directory={tmp_path / 'ranks'}"]
    with live_rank(tmp_path / "ranks", fresh()), running(command, stderr=subprocess.PIPE) as process:
        target = Exporter(process).url.removeprefix("https://").partition("/")[0]
        text = CONFIGURATION.format(
            authority=authority.certificate, certificate=client.certificate, key=client.key, target=target
        )
        (tmp_path / "prometheus.yml").write_text(text)
        address = free_address()
        server = ["prometheus", f"--config.file={tmp_path / 'prometheus.yml'}", "--log.level=error"]
        server += [f"--storage.tsdb.path={tmp_path / 'data'}", f"--web.listen-address={address}"]
        with running(server):
            found: dict[str, tuple[str, str]] = {}
            deadline = time.monotonic() + TIMEOUT
            while time.monotonic() < deadline:
                found = targets(address)
                if found and all(health != "unknown" for health, _ in found.values()):
                    break
                time.sleep(0.1)
            query = f"http://{address}/api/v1/query?query=training_process_up"
            with urllib.request.urlopen(query, timeout=TIMEOUT) as response:
                (result,) = json.load(response)["data"]["result"]
    assert found["welcome"] == ("up", "")
    assert found["wrong password"] == ("down", "server returned HTTP status 401 Unauthorized")
    assert found["no certificate"][0] == "down"
    # A connection that is closed while a request is on its way may be gone before the reason is read.
    assert any(word in found["no certificate"][1] for word in ("certificate", "reset by peer", "broken pipe"))
    assert (result["metric"]["training_rank"], result["value"][1]) == ("3", "1")
