"""The quick start does what it says: its files and its commands, in their order, lead to the verdict that it shows."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from laggard_cli.demo.servers import free_ports
from laggard_cli.ways import direct
from tests.support.waiting import until

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """What a shell of the reader would have, with folders and ports of the test's own."""
    foreign = ("LAGGARD_", "OTEL_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {
        **inherited,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{inherited.get('PATH', '')}",
        "LAGGARD_STATE_DIR": str(tmp_path / "state"),
    }


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    """What runs in the background, until the end of the test."""
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    # In this way torchrun ends its ranks, which are in sessions of their own.
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait(60)


def test_the_quick_start_leads_to_its_verdict(
    tmp_path: Path, environment: dict[str, str], started: list[subprocess.Popen[bytes]]
) -> None:
    """The script of the page is trained by the commands of the page, and rank 2 is named, with its phase."""
    (tmp_path / "state").mkdir()
    exporter, prometheus = free_ports(2)

    def here(text: str) -> str:
        """Return a text of the page with the test's own ports."""
        return text.replace("localhost:9495", f"127.0.0.1:{exporter}").replace(
            "localhost:9090", f"127.0.0.1:{prometheus}"
        )

    for name, text in re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```$', PAGE, re.MULTILINE | re.DOTALL):
        (tmp_path / name).write_text(here(text), encoding="utf-8")
    assert sorted(path.name for path in tmp_path.glob("*.*")) == ["prometheus.yml", "train.py"]

    lines = "".join(re.findall(r"^```sh\n(.*?)^```$", PAGE.partition("## With servers")[2], re.MULTILINE | re.DOTALL))
    begin, (render, *background, diagnose) = lines.splitlines()[:4], lines.splitlines()[4:]
    assert [command.partition("  # ")[0].strip() for command in begin] == [
        "python3 -m venv ../first && . ../first/bin/activate",
        "pip install '.[otel,exporter,cli]' torch",
        "scripts/tools/fetch_servers.sh && export PATH=$PATH:$PWD/.cache/tools/bin",
        "cd ../first",
    ]
    subprocess.run(render, shell=True, cwd=tmp_path, env=environment, check=True, timeout=60)
    own = {
        "laggard-exporter": f" --web.listen-address 127.0.0.1:{exporter}",
        "prometheus": f" --web.listen-address 127.0.0.1:{prometheus}",
    }
    assert len(background) == 3
    for command in background:
        assert command.endswith(" &")
        words = f"exec {command.removesuffix(' &')}{own.get(command.split()[0], '')}"
        with (tmp_path / f"{len(started)}.log").open("wb") as log:
            started.append(
                subprocess.Popen(
                    words, shell=True, cwd=tmp_path, env=environment, stdout=log, stderr=log, start_new_session=True
                )
            )

    with contextlib.suppress(AssertionError):
        until(lambda: names_a_straggler(prometheus), seconds=150)
    done = subprocess.run(
        here(diagnose), shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    said = done.stdout + done.stderr
    assert "run quickstart  4 of 4 ranks" in said, logs(tmp_path) + said
    assert "TrainingStraggler  warning  rank 2, phase data" in said, logs(tmp_path) + said


def names_a_straggler(port: int) -> bool:
    """Say whether the alert fires on a Prometheus of this machine, which may not answer yet."""
    with contextlib.suppress(httpx.HTTPError):
        answer = direct().get(f"http://127.0.0.1:{port}/api/v1/alerts").raise_for_status()
        alerts = answer.json()["data"]["alerts"]
        return any((each["labels"]["alertname"], each["state"]) == ("TrainingStraggler", "firing") for each in alerts)
    return False


def logs(folder: Path) -> str:
    """Return the ends of what the programs in the background wrote."""
    return "\n".join(path.read_text(encoding="utf-8", errors="replace")[-2000:] for path in folder.glob("*.log"))
