"""A real Prometheus with the whole rule pack, and what servers say of themselves."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml
from prometheus_client.parser import text_string_to_metric_families

from lab.scale.pages import EXPORTER, RANKS
from lab.scale.programs import Programs
from laggard_cli.errors import CommandError
from laggard_cli.ways import direct
from laggard_exporter.web.address import PORT

_ANSWER_SECONDS = 60
_GROUP_SECONDS, _GROUP_INTERVAL = (
    "prometheus_rule_group_last_duration_seconds",
    "prometheus_rule_group_interval_seconds",
)


@dataclass(frozen=True)
class Reading:
    """What has been done so far."""

    time: float
    series: float
    samples: float
    missed: float
    failed: float
    #: The newest evaluation of each group, and how often there is one. Seconds.
    groups: dict[str, float]
    intervals: dict[str, float]


class Server:
    """Who answers queries, who stores, and who evaluates rules: one Prometheus is all three.

    Args:
        query: its address.
        write: where samples are written to.
        stores: addresses of all that store, each of which has everything.
        ruler: the address of who evaluates.
    """

    def __init__(self, query: str, write: str, *, stores: Sequence[str] = (), ruler: str = "") -> None:
        self.write = write
        self._client = httpx.Client(base_url=query, timeout=_ANSWER_SECONDS)
        self._stores = stores or [query]
        self._ruler = ruler or query

    def read(self) -> Reading:
        """Ask them about themselves. Raises :class:`CommandError` where nobody answers, as all that ask do."""
        stored = [found for store in self._stores if (found := metrics(store))]
        ruler = metrics(self._ruler)
        if not stored or not ruler:
            raise CommandError("who stores, or who evaluates rules, does not answer")
        return Reading(
            time=time.time(),
            series=max(total(each, "prometheus_tsdb_head_series") for each in stored),
            samples=max(total(each, "prometheus_tsdb_head_samples_appended_total") for each in stored),
            missed=total(ruler, "prometheus_rule_group_iterations_missed_total"),
            failed=total(ruler, "prometheus_rule_evaluation_failures_total"),
            groups=_by_group(ruler, _GROUP_SECONDS),
            intervals=_by_group(ruler, _GROUP_INTERVAL),
        )

    def firing(self) -> list[dict[str, str]]:
        """Return the labels of the alerts that fire."""
        # Thanos says null of none.
        alerts = self._get("/api/v1/alerts")["alerts"] or []
        return [alert["labels"] for alert in alerts if alert["state"] == "firing"]

    def value(self, expression: str) -> float:
        """Return the only value of a query's result; not a number where there is none."""
        result = self.ask(expression)
        return float(result[0]["value"][1]) if result else float("nan")

    def times(self, selector: str, seconds: float) -> dict[tuple[str, str], set[int]]:
        """Return the times of a metric's samples of the last seconds, in milliseconds, by run and rank."""
        found: dict[tuple[str, str], set[int]] = {}
        for series in self.ask(f"{selector}[{seconds:.0f}s]"):
            who = series["metric"]["training_run"], series["metric"]["training_rank"]
            found.setdefault(who, set()).update(round(at * 1000) for at, _ in series["values"])
        return found

    def close(self) -> None:
        """End the connections."""
        self._client.close()

    def ask(self, expression: str, **span: float) -> list[dict[str, Any]]:
        """Return the series of a query, now or in a span: ``start``, ``end`` and ``step`` in seconds."""
        given = {name: f"{value:.3f}" for name, value in span.items()}
        return self._get("/api/v1/query_range" if span else "/api/v1/query", query=expression, **given)["result"]

    def _get(self, path: str, **asked: str) -> dict[str, Any]:
        try:
            answer = self._client.get(path, params=asked)
        except httpx.TransportError as error:
            raise CommandError(f"{path}: no answer ({error})") from error
        if not answer.is_success:
            raise CommandError(f"{path} {asked}: {answer.text[:200]}")
        return answer.json()["data"]


def start(
    started: Programs, program: str, *, address: str, scraped: list[dict[str, object]], rules: Path, interval: float
) -> Server:
    """Start it, with what it scrapes and a folder of rules, which may be empty, and wait until it answers."""
    found = shutil.which(program)
    if found is None:
        raise CommandError(f"there is no {program}; scripts/tools/build_rule_engine.sh builds the newest one")
    config = started.folder / "prometheus.yml"
    configuration: dict[str, object] = {
        "global": {
            "scrape_interval": f"{interval:g}s",
            "scrape_timeout": f"{interval * 2000 / 3:.0f}ms",
            "evaluation_interval": f"{interval:g}s",
        },
        "rule_files": [str(rules / "*.yml")],
        "scrape_configs": scraped,
    }
    if not scraped:
        # What an agent sends again after a pause may be older than what came meanwhile.
        configuration["storage"] = {"tsdb": {"out_of_order_time_window": "10m"}}
    config.write_text(yaml.safe_dump(configuration), encoding="utf-8")
    flags = [
        f"--config.file={config}",
        f"--storage.tsdb.path={started.folder / 'data'}",
        f"--web.listen-address={address}",
        "--web.enable-remote-write-receiver",
        "--log.level=warn",
    ]
    started.start("prometheus", [Path(found).absolute(), *flags], f"http://{address}/-/ready")
    started.wait("prometheus")
    return Server(f"http://{address}", f"http://{address}/api/v1/write")


def targets(port: int, paths: list[str]) -> list[dict[str, object]]:
    """Return what scrapes the pages of a port, as deploy/prometheus/prometheus.yml has it."""

    def job(name: str, end: str) -> dict[str, object]:
        return {
            "job_name": name,
            "static_configs": [
                {
                    "targets": [f"127.0.0.1:{port}"],
                    "labels": {"__metrics_path__": path, "instance": f"{path.split('/')[1]}:{PORT}"},
                }
                for path in paths
                if path.endswith(RANKS) == (end == RANKS)
            ],
        }

    jobs = [job("laggard-exporter", EXPORTER), job("laggard-ranks", RANKS)]
    return [each for each in jobs if each["static_configs"]]


Metrics = dict[tuple[str, frozenset[tuple[str, str]]], float]


def metrics(address: str) -> Metrics:
    """Return what a program says of itself, by name and labels; nothing if it does not answer."""
    try:
        text = direct().get(f"{address}/metrics", timeout=_ANSWER_SECONDS).text
    except httpx.TransportError:
        return {}
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def total(known: Metrics, name: str) -> float:
    """Return the sum over a metric's series; 0 where there is none."""
    return sum(value for (found, _), value in known.items() if found == name)


def _by_group(known: Metrics, name: str) -> dict[str, float]:
    """Return a metric of each group of rules."""
    return {dict(labels)["rule_group"]: value for (found, labels), value in known.items() if found == name}
