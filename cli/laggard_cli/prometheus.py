"""Prometheus' HTTP API, as far as laggard asks it. Works with every server that speaks it."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from laggard_cli.errors import CommandError
from laggard_cli.http_config import client_options

_TIMEOUT_SECONDS = 20


@dataclass(frozen=True)
class Sample:
    """One series of an instant query."""

    labels: dict[str, str]
    value: float


@dataclass(frozen=True)
class Range:
    """One series of a query over a range: values by their time in seconds since 1970."""

    labels: dict[str, str]
    values: dict[float, float]


def quoted(text: str) -> str:
    """Return a text as a string of PromQL, which is also how the text format writes the value of a label."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def add_server(parser: argparse.ArgumentParser, text: str, *, required: bool = True) -> None:
    """Add the arguments that say which server is asked, and how it is reached."""
    parser.add_argument("--prometheus", required=required, metavar="URL", help=text)
    parser.add_argument(
        "--http.config.file",
        dest="http_config",
        type=Path,
        metavar="FILE",
        help="password, token, certificates or headers for the server, in the form that promtool takes",
    )


class Prometheus:
    """A server by its URL. Every failure is a :class:`CommandError` that names the server without its password."""

    def __init__(self, url: str, config: Path | None = None) -> None:
        try:
            self._url = httpx.URL(url)
        except httpx.InvalidURL as error:
            raise CommandError(f"--prometheus {url!r} is no URL: {error}") from error
        if self._url.scheme not in ("http", "https") or not self._url.host:
            raise CommandError(f"--prometheus {url!r} is no URL; example: http://localhost:9090")
        more = client_options(config) if config else {}
        self._client = httpx.Client(base_url=self._url, timeout=_TIMEOUT_SECONDS, follow_redirects=True, **more)

    @property
    def name(self) -> str:
        """The server's address, without user and password."""
        return str(self._url.copy_with(username=None, password=None))

    def query(self, expression: str, at: float | None = None) -> list[Sample]:
        """Return the result of an instant query, as a vector; now, or at a time in seconds since 1970."""
        time = {} if at is None else {"time": f"{at:.3f}"}
        result: list[dict[str, Any]] = self._get("api/v1/query", {"query": expression, **time})["result"]
        return [Sample(series["metric"], float(series["value"][1])) for series in result]

    def ranges(self, expression: str, begin: float, end: float, step: float) -> list[Range]:
        """Return the result of a query over a range of time, in seconds since 1970: one value each ``step`` seconds."""
        times = {"start": f"{begin:.3f}", "end": f"{end:.3f}", "step": f"{step:.3f}"}
        result: list[dict[str, Any]] = self._get("api/v1/query_range", {"query": expression, **times})["result"]
        return [
            Range(series["metric"], {float(time): float(value) for time, value in series["values"]})
            for series in result
        ]

    def alerts(self) -> list[dict[str, Any]]:
        """Return the alerts that are pending or firing, as the API gives them."""
        # Thanos says null where there is none.
        return self._get("api/v1/alerts", {})["alerts"] or []

    def rules(self) -> list[dict[str, Any]]:
        """Return the alerting rules that the server evaluates, as the API gives them."""
        groups: list[dict[str, Any]] = self._get("api/v1/rules", {"type": "alert"})["groups"]
        return [rule for group in groups for rule in group["rules"] if rule.get("type") == "alerting"]

    def close(self) -> None:
        """End the connections."""
        self._client.close()

    def _get(self, path: str, parameters: dict[str, str]) -> Any:
        try:
            # Thanos would leave out what a part of it has that does not answer. Others know no such parameter.
            response = self._client.get(path, params={**parameters, "partial_response": "false"})
        except httpx.TimeoutException as error:
            raise CommandError(f"Prometheus at {self.name} did not answer within {_TIMEOUT_SECONDS} s") from error
        except httpx.TransportError as error:
            hint = "; --http.config.file names the authority to trust" if "CERTIFICATE_VERIFY" in str(error) else ""
            raise CommandError(f"Prometheus at {self.name} can not be reached: {error}{hint}") from error
        if response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise CommandError(
                f"Prometheus at {self.name} wants to know who asks: HTTP {response.status_code} at /{path}; "
                "--http.config.file gives a password or a token"
            )
        try:
            answer = response.json()
        except ValueError as error:
            reason = f"HTTP {response.status_code}" if response.is_error else "no JSON"
            raise CommandError(f"{self.name} does not answer as Prometheus: {reason} at /{path}") from error
        if response.is_error or answer.get("status") != "success":
            reason = answer.get("error", f"HTTP {response.status_code}")
            raise CommandError(f"Prometheus at {self.name} refuses /{path}: {reason}")
        return answer["data"]
