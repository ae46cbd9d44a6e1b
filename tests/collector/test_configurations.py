"""The Collector's configurations are valid for the Collector that our manifest describes."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.collector.support import CONFIGURATIONS, TIMEOUT, collector

FILES = ("agent.yaml", "gateway.yaml")
OVERLAYS = ("agent-tls.yaml", "gateway-tls.yaml")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("exporter", ["prometheus_remote_write", "otlp_http/metrics"])
def test_the_collector_takes_it(name: str, exporter: str, tmp_path: Path) -> None:
    """With its defaults, and with either way to write metrics."""
    command = [collector(), "validate", "--config", CONFIGURATIONS / name]
    environment = {**os.environ, "STATE_DIR": str(tmp_path), "METRICS_EXPORTER": exporter}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", [*FILES, *OVERLAYS])
def test_every_variable_has_a_default_and_a_line(name: str) -> None:
    """A variable that is set is one that the file's head explains, with the default that the file has."""
    text = (CONFIGURATIONS / name).read_text(encoding="utf-8")
    head = "".join(itertools.takewhile(lambda line: line.startswith("#"), text.splitlines(keepends=True)))
    used = set(re.findall(r"\$\{env:([A-Z_]+)", text.removeprefix(head)))
    assert set(re.findall(r"\$\{env:([A-Z_]+):-", text)) == used
    for_machines = {"HEALTH", "SELF_PORT", "SCRAPE_TIMEOUT"}
    explained = {word for line in re.findall(r"^# \| ([A-Z_ ]+)\|", head, re.MULTILINE) for word in line.split()}
    assert explained == used - for_machines


def test_the_manifest_is_what_the_configurations_use() -> None:
    """Each component of the manifest is used by one of the files, but for `debug`."""
    manifest = yaml.safe_load((CONFIGURATIONS / "builder.yaml").read_text(encoding="utf-8"))
    built = {
        re.sub(r"(receiver|processor|exporter)$", "", part["gomod"].split()[0].rpartition("/")[2]).removesuffix(
            "extension"
        )
        for kind in ("receivers", "processors", "exporters", "extensions")
        for part in manifest[kind]
    }
    used: set[str] = set()
    for name in FILES:
        document = yaml.safe_load((CONFIGURATIONS / name).read_text(encoding="utf-8"))
        for kind in ("receivers", "processors", "exporters", "extensions"):
            used |= {part.partition("/")[0].replace("_", "") for part in document[kind]}
    # As a module it has a shorter name.
    assert built == {"otlp" if name == "otlpgrpc" else name for name in used} | {"debug"}
