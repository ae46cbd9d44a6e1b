"""Tells Prometheus which ranks of this node serve metrics, and where: http_sd and file_sd.

https://prometheus.io/docs/prometheus/latest/http_sd/ has the format. Labels are meta labels only, which are gone after
relabelling: the series are those of a target that is written down by hand.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

from laggard_exporter.logs import LogOnce
from laggard_exporter.ranks.endpoints import Endpoint, Endpoints
from laggard_exporter.web.address import Address

#: A file of targets is brought up to date once in so many seconds.
SECONDS = 5.0

_PREFIX = "__meta_laggard_"

_logger = logging.getLogger(__name__)


class Targets:
    """The ranks of this node as targets."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints
        self._log = LogOnce(_logger)

    def document(self, host: str) -> str:
        """Return the targets for who reaches this node by the name or address ``host``.

        Raises :class:`OSError` for a folder of state files that cannot be listed.
        """
        here = _is_here(host)
        groups: list[dict[str, object]] = []
        for endpoint in self._endpoints.find():
            if not endpoint.address:
                continue
            if endpoint.local and not here:
                self._log(
                    logging.WARNING,
                    f"ranks listen on this node only, so they are no targets for who calls it {host!r}: scrape "
                    "/ranks/metrics, or set OTEL_EXPORTER_PROMETHEUS_HOST where ranks start",
                )
                continue
            target = str(Address(endpoint.address if endpoint.local else host, endpoint.facts.metrics_port))
            groups.append({"targets": [target], "labels": _labels(endpoint)})
        return json.dumps(groups, indent=1) + "\n"


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _labels(endpoint: Endpoint) -> dict[str, str]:
    facts = endpoint.facts
    labels = {
        "run": facts.run,
        "rank": str(facts.rank),
        "local_rank": str(facts.local_rank),
        "host": facts.host,
        "workload": facts.workload,
    }
    return {f"{_PREFIX}{name}": value for name, value in labels.items()}


class TargetFile:
    """Keeps a file of targets up to date; readers see the old or the new one, never half of it."""

    def __init__(self, path: Path, targets: Targets, host: str) -> None:
        self._path = path
        self._targets = targets
        self._host = host
        self._written = ""
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._log = LogOnce(_logger)

    def start(self) -> None:
        """Write the file now, and then whenever it changes. Raises :class:`OSError` where it cannot be written."""
        self._update()
        threading.Thread(target=self._work, name="targets", daemon=True).start()

    def close(self) -> None:
        """Leave a file without targets: one that is gone does not tell a Prometheus that reads it by another way."""
        self._closed.set()
        with self._lock:
            self._try("it keeps its targets", lambda: self._write("[]\n"))

    def _try(self, otherwise: str, act: Callable[[], None]) -> None:
        try:
            act()
        except OSError as error:
            self._log(logging.ERROR, f"--sd.file {self._path}: {error.strerror}; {otherwise}")

    def _work(self) -> None:
        while not self._closed.wait(SECONDS):
            self._try("it is tried again", self._update)

    def _update(self) -> None:
        content = self._targets.document(self._host)
        with self._lock:
            if content != self._written and not self._closed.is_set():
                self._write(content)

    def _write(self, content: str) -> None:
        new = self._path.with_name(f".{self._path.name}.new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(new, flags, 0o644), "w", encoding="utf-8") as file:
            # Whoever scrapes is another user, whatever the umask of a service is.
            os.fchmod(file.fileno(), 0o644)
            file.write(content)
        new.replace(self._path)
        self._written = content
