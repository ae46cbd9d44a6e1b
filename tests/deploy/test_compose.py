"""What the compose file and the Dockerfiles name is there, and fits together. No container engine is needed."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from laggard_exporter import flags
from tests.collector.support import CONFIGURATIONS, ROOT
from tests.exporter.support import TIMEOUT

COMPOSE = ROOT / "deploy" / "compose" / "compose.yaml"
DOCKER = ROOT / "deploy" / "docker"
SERVICES: dict[str, Any] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]


def tree(service: str, folder: Path) -> Path:
    """Lay what a service mounts from here into a folder, as it sees it."""
    for mount in SERVICES[service]["volumes"]:
        source, target = mount.split(":")[:2]
        if source.startswith("."):
            found = Path(os.path.normpath(COMPOSE.parent / source))
            assert found.exists(), mount
            place = folder / target.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(found, place) if found.is_dir() else shutil.copy(found, place)
    return folder


def option(service: str, name: str) -> str:
    """Return the value of a flag of a service."""
    (value,) = (each.partition("=")[2] for each in SERVICES[service]["command"] if each.startswith(f"{name}="))
    return value


@pytest.mark.parametrize(
    ("service", "check"),
    [("prometheus", ["promtool", "check", "config"]), ("alertmanager", ["amtool", "check-config"])],
)
def test_the_servers_find_their_files(service: str, check: list[str], tmp_path: Path) -> None:
    """With nothing but what is mounted, the configuration loads, rules included."""
    if shutil.which(check[0]) is None:
        pytest.skip(f"{check[0]} is missing: scripts/tools/fetch_servers.sh")
    path = tree(service, tmp_path) / option(service, "--config.file").lstrip("/")
    done = subprocess.run([*check, path], capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 0, done.stderr
    if service == "prometheus":
        rules = len(list((ROOT / "rules").glob("*.yml")))
        assert done.stdout.count("SUCCESS") >= rules
        targets = re.findall(r'targets: \["(localhost:\d+)"\]', path.read_text())
        listening = {
            option(name, "--web.listen-address").replace("127.0.0.1", "localhost") for name in list(SERVICES)[:3]
        }
        assert set(targets) | {"localhost:9090"} == listening


def test_grafana_finds_its_dashboards(tmp_path: Path) -> None:
    """The provider names the folder in which the dashboards are; the data source is the Prometheus."""
    inside = tree("grafana", tmp_path)
    provisioning = inside / "etc" / "grafana" / "provisioning"
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "laggard.yml").read_text())["providers"]
    assert len(list((inside / provider["options"]["path"].lstrip("/")).glob("*.json"))) == 10
    (source,) = yaml.safe_load((provisioning / "datasources" / "laggard.yml").read_text())["datasources"]
    assert source["url"] == "http://localhost:9090"


def test_nothing_is_open_to_the_network() -> None:
    """Every service listens on this host alone."""
    for name in ("exporter", "prometheus", "alertmanager"):
        assert option(name, "--web.listen-address").startswith("127.0.0.1:")
    assert SERVICES["grafana"]["environment"]["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"


def test_the_images_start_what_is_there() -> None:
    """Files that are copied exist, flags are the command's, and the command is one that the package installs."""
    for path in DOCKER.iterdir():
        for line in re.findall(r"^COPY (?!--from)(.+)$", path.read_text(), re.MULTILINE):
            for source in shlex.split(line)[:-1]:
                assert (ROOT / source).exists(), line
    exporter, collector = (DOCKER / f"{name}.Dockerfile" for name in ("exporter", "collector"))
    assert (ROOT / SERVICES["exporter"]["build"]["dockerfile"]) == exporter
    project = (ROOT / "pyproject.toml").read_text()
    assert 'ENTRYPOINT ["laggard-exporter"]' in exporter.read_text()
    assert "\nlaggard-exporter = " in project
    known = {each for action in flags.parser({})._actions for each in action.option_strings}
    assert {each.partition("=")[0] for each in SERVICES["exporter"]["command"]} <= known
    binary = re.findall(
        r"^binary=.*?/bin/(\S+?)\"$", (ROOT / "scripts" / "tools" / "build_collector.sh").read_text(), re.MULTILINE
    )
    assert collector.read_text().count(f"/{binary[0]}") >= 2
    ports = set(
        re.findall(
            r"localhost:(\d+)",
            "".join(
                line
                for name in ("agent", "gateway")
                for line in (CONFIGURATIONS / f"{name}.yaml").read_text().splitlines(keepends=True)
                if "OTLP_" in line and not line.startswith("#")
            ),
        )
    )
    (exposed,) = re.findall(r"^EXPOSE (.+)$", collector.read_text(), re.MULTILINE)
    assert set(exposed.split()) == ports
