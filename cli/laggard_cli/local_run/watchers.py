"""The servers that watch a local run: a node exporter, and a Prometheus with the rules, on loopback.

Where one of them ends, both are restarted on other ports, over the same data.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import yaml
from promql_parser import display_duration

from laggard_cli.local_servers import programs
from laggard_cli.local_servers.ports import free_ports
from laggard_cli.local_servers.processes import end, how_it_ended, last_line, launch
from laggard_cli.rules import rules_folder
from laggard_cli.rules.formats import merged
from laggard_cli.rules.profiles import load_profile
from laggard_cli.rules.render import render_pack

#: How Go runs Prometheus: on one processor, of which it needs a hundredth: more of them look for work of one another;
#: and with garbage of four times what it needs: for 40 MB more it takes a sixth less of a processor.
_GO = {"GOMAXPROCS": "1", "GOGC": "400"}
_RULES = "rules.yml"
#: Rules that give what other exporters say our names: none of them is scraped here.
_FOREIGN = "adapter"
#: A file system with less than this is full.
_LEAST_BYTES = 1 << 20
#: Over which a verdict on a whole run asks for persistence, in production.
_WHOLE_RUN = timedelta(minutes=10)
#: Starts that fail one after the other before it is given up, and how long one must live to have been none of those.
_TRIES, _SETTLED_SECONDS = 5, 60.0


class Watchers:
    """The two servers.

    Args:
        folder: gets configuration, rules, data and logs.
        state_directory: of the ranks.
        profile: of the rules.
        program: path of Prometheus.
    """

    def __init__(self, folder: Path, state_directory: Path, profile: str, program: str) -> None:
        self._folder = folder
        self._state_directory = state_directory
        self._program = program
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._profile = load_profile(rules_folder(), profile)
        self.interval = self._profile.evaluation_interval.total_seconds()
        """Seconds between two evaluations; scrapes are no fewer."""
        self.verdict_seconds = self._profile.duration(_WHOLE_RUN, "local run").total_seconds()
        """For which ranks must be compared before a verdict on all of them together; one on a rank is sooner."""
        self._started = 0.0
        self._failures = 0
        self.address = ""
        """Of Prometheus."""

    def write_rules(self) -> None:
        """Write the rules, but for those about exporters of others. Raises :class:`OSError`."""
        pack = render_pack(self._profile)
        ours = {name: content for name, content in pack.items() if not name.startswith(_FOREIGN)}
        (self._folder / _RULES).write_text(merged(ours, self._profile.name), encoding="utf-8")

    def start(self) -> None:
        """Start both. Raises :class:`OSError` and :class:`CommandError`."""
        exporter, prometheus = (f"127.0.0.1:{port}" for port in free_ports(2))
        interval = display_duration(self._profile.scrape_interval)
        evaluation = display_duration(self._profile.evaluation_interval)
        configuration = {
            "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": evaluation},
            "rule_files": [str(self._folder / _RULES)],
            "scrape_configs": [
                {"job_name": "laggard-exporter", "static_configs": [{"targets": [exporter]}]},
                # Each rank by itself: to put their pages together takes more of a processor than to scrape them.
                {
                    "job_name": "laggard-ranks",
                    "http_sd_configs": [{"url": f"http://{exporter}/sd", "refresh_interval": evaluation}],
                },
            ],
        }
        (self._folder / "prometheus.yml").write_text(yaml.safe_dump(configuration), encoding="utf-8")
        self._launch("exporter", programs.exporter(exporter, self._state_directory, "--log.level=warning"))
        command = programs.prometheus(self._program, self._folder, prometheus, "--log.level=warn")
        self._launch("prometheus", command, {name: os.environ.get(name, value) for name, value in _GO.items()})
        self._started = time.monotonic()
        self.address = f"http://{prometheus}"

    def ended(self) -> str:
        """Return how the first server that is found to have ended did so; empty while both run."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                return f"{name} ended {how_it_ended(process.returncode)}: {self._last_words(name)}"
        return ""

    def start_again(self) -> bool:
        """End what is left and start both again; return False where that has failed too often. Raises as ``start``."""
        settled = time.monotonic() - self._started >= _SETTLED_SECONDS
        self._failures = 1 if settled else self._failures + 1
        self.end()
        if self._failures >= _TRIES:
            return False
        self.start()
        return True

    def end(self) -> None:
        """End both."""
        for process in reversed(list(self._processes.values())):
            end(process)
        self._processes.clear()

    def last_words(self) -> str:
        """Return what keeps Prometheus from recording, as far as that is known."""
        return self._last_words("prometheus")

    def _last_words(self, name: str) -> str:
        # Where nothing can be written, its log is of no use.
        if shutil.disk_usage(self._folder).free < _LEAST_BYTES:
            return f"no space is left in {self._folder}"
        return last_line(self._folder / f"{name}.log")

    def _launch(self, name: str, command: list[str], environment: Mapping[str, str] | None = None) -> None:
        # In the folder, so that no module of the user's is taken for one of the exporter's.
        log = self._folder / f"{name}.log"
        self._processes[name] = launch(command, log, environment, folder=self._folder)
