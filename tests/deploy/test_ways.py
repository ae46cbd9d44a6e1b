"""The commands of docs/deploy.md, in their order, lead to a first verdict, by each way to one Prometheus."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from laggard_cli.demo.servers import free_ports
from laggard_cli.rules import render
from tests.collector.support import COLLECTOR, ROOT, TIMEOUT, collector, newest_prometheus
from tests.support.cases import usual
from tests.support.waiting import until

PAGE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
QUICK_START = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
#: By the title of their part of the page: what it needs that a machine may not have.
WAYS: dict[str, Callable[[], object]] = {
    "Scrape": lambda: None,
    "OTLP to Prometheus": newest_prometheus,
    "Agent and gateway": collector,
}
#: The longest of them; tests/collector/test_paths.py compares all three, and test_quickstart.py goes that of a scrape.
GONE = usual(WAYS, "Agent and gateway")
RANKS = 2

pytestmark = pytest.mark.xdist_group("ways")


def commands(title: str) -> list[str]:
    """Return the commands of a part of the page, each on one line and without its remark."""
    _, _, part = PAGE.partition(f"\n## {title}\n")
    found = re.search(r"^```sh\n(.*?)^```$", part.partition("\n## ")[0], re.MULTILINE | re.DOTALL)
    assert found, title
    return [line.partition("  # ")[0].strip() for line in found[1].replace("\\\n", " ").splitlines()]


class Way:
    """The commands of one way, with folders and ports of its own and the intervals of the fast profile."""

    def __init__(self, title: str, folder: Path) -> None:
        self._folder = folder / "checkout"
        self._processes: list[subprocess.Popen[bytes]] = []
        exporter, prometheus, agent, rest = (f"127.0.0.1:{port}" for port in free_ports(4))
        ours, *health = free_ports(5)
        self._places = {
            "localhost:9495": exporter,
            "localhost:9090": prometheus,
            "localhost:4318": agent,
            "localhost:14317": rest,
        }
        addresses = f"OTLP_GRPC=127.0.0.1:{ours} OTLP_HTTP={agent} NODE_EXPORTER={exporter}"
        #: What a command gets in front and at its end, by what it names.
        self._own = {
            "laggard-exporter": ("", f"--web.listen-address={exporter}"),
            "prometheus": ("", f"--web.listen-address={prometheus}"),
            "gateway.yaml": (f"OTLP_GRPC={rest} HEALTH=127.0.0.1:{health[0]} SELF_PORT={health[1]}", ""),
            "agent.yaml": (
                f"{addresses} HEALTH=127.0.0.1:{health[2]} SELF_PORT={health[3]} INTERVAL=1s SCRAPE_TIMEOUT=1s",
                "",
            ),
        }
        programs = folder / "programs"
        programs.mkdir()
        if title == "OTLP to Prometheus":
            (programs / "prometheus").symlink_to(newest_prometheus())
        foreign = ("LAGGARD_", "OTEL_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_")
        path = [programs, Path(sys.executable).parent, os.environ["PATH"], COLLECTOR.parent]
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(foreign)},
            "PATH": os.pathsep.join(map(str, path)),
            "LAGGARD_STATE_DIR": str(self._folder / "state"),
            "OTEL_METRIC_EXPORT_INTERVAL": "1000",
        }
        *started, self._diagnose = [command for command in commands(title) if not command.startswith("scripts/")]
        self._lay_out()
        for command in started:
            self._begin(command)

    def _here(self, text: str) -> str:
        for place, own in self._places.items():
            text = text.replace(place, own)
        return text

    def _lay_out(self) -> None:
        """Make what a checkout has, and the reader's script, of two ranks instead of four."""
        script = self._folder.with_name("first") / "train.py"
        for made in (script.parent, self._folder / "state", self._folder / "rules"):
            made.mkdir(parents=True)
        for name, text in render(profile="fast").items():
            (self._folder / "rules" / name).write_text(text, encoding="utf-8")
        shutil.copytree(ROOT / "otel-collector", self._folder / "otel-collector")
        shutil.copytree(ROOT / "deploy" / "prometheus", self._folder / "deploy" / "prometheus")
        for file in (self._folder / "deploy" / "prometheus").iterdir():
            text = re.sub(r"_interval: 15s", "_interval: 1s", self._here(file.read_text(encoding="utf-8")))
            file.write_text(text.replace("scrape_timeout: 10s", "scrape_timeout: 1s"), encoding="utf-8")
        (text,) = re.findall(r'^```python title="train.py"\n(.*?)^```$', QUICK_START, re.MULTILINE | re.DOTALL)
        assert "dist.get_rank() == 2" in text
        script.write_text(text.replace("dist.get_rank() == 2", "dist.get_rank() == 1"), encoding="utf-8")

    def _begin(self, command: str) -> None:
        if command.startswith("export "):
            for pair in shlex.split(self._here(command))[1:]:
                name, _, value = pair.partition("=")
                self._environment[name] = value
            return
        assert command.endswith(" &")
        words = self._here(command.removesuffix(" &")).replace("--nproc-per-node 4", f"--nproc-per-node {RANKS}")
        for name, (variables, flags) in self._own.items():
            if re.search(rf"(^|/){name}\b", words):
                words = f"{variables} {words} {flags}"
        with (self._folder / f"{len(self._processes)}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    f"exec env {words}",
                    shell=True,
                    cwd=self._folder,
                    env=self._environment,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def diagnosis(self) -> str:
        """Return what the last command says."""
        done = subprocess.run(
            self._here(self._diagnose),
            shell=True,
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
        return done.stdout + done.stderr

    def logs(self) -> str:
        """Return the ends of what the programs wrote."""
        return "\n".join(
            path.read_text(encoding="utf-8", errors="replace")[-1500:] for path in self._folder.glob("*.log")
        )

    def end(self) -> None:
        """End all; torchrun ends its ranks, which are in sessions of their own."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(TIMEOUT)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Generator[dict[str, Way], None, None]:
    """Go all ways at once, for each of them is mostly waiting."""
    with contextlib.ExitStack() as stack:
        found: dict[str, Way] = {}
        for title in GONE:
            try:
                WAYS[title]()
            except pytest.skip.Exception:
                continue
            found[title] = Way(title, tmp_path_factory.mktemp(title.split()[0]))
            stack.callback(found[title].end)
        yield found


def test_each_way_begins_in_a_checkout() -> None:
    """What all ways begin with, and a way, are fewer than ten commands."""
    begin = commands("Begin")
    assert begin == [
        "python3 -m venv ../first && . ../first/bin/activate",
        "pip install '.[otel,exporter,cli]' torch",
        "scripts/tools/fetch_servers.sh && export PATH=$PATH:$PWD/.cache/tools/bin",
    ]
    assert {title: len(begin) + len(commands(title)) < 10 for title in WAYS} == dict.fromkeys(WAYS, True)


@pytest.mark.parametrize("title", GONE)
def test_a_way_leads_to_a_verdict(title: str, started: dict[str, Way]) -> None:
    """The last command names the rank that is slow in the script, and its phase."""
    WAYS[title]()
    way = started[title]
    said = ""

    def named() -> bool:
        nonlocal said
        said = way.diagnosis()
        return "TrainingStraggler" in said

    with contextlib.suppress(AssertionError):
        until(named, "no verdict", 150)
    assert f"run first  {RANKS} of {RANKS} ranks" in said, way.logs() + said
    assert "TrainingStraggler  warning  rank 1, phase data" in said, way.logs() + said
