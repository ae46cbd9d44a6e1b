"""Prometheus' HTTP API, as far as laggard asks it. Works with every server that speaks it."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypedDict, TypeVar, cast

import httpx

from laggard.shared.addresses import http_url, without_password
from laggard_cli.errors import CommandError
from laggard_cli.http_config import client_options
from laggard_cli.labels import CLUSTER, in_ours, in_templates, renamed
from laggard_cli.terminal import printable
from laggard_cli.ways import Ways

#: To an answer's next bytes, and to its last ones.
_TIMEOUT_SECONDS, _WHOLE_SECONDS = 20, 120
#: The largest report over thousands of ranks asks for a tenth of that at once.
_MOST_BYTES = 256 << 20
#: Characters of a server's own words in an error.
_MOST_WORDS = 300
#: An answer has everything, or there is none: so Thanos and VictoriaMetrics are told. Others ignore such parameters, or
#: refuse them, as Google's do.
_WHOLE = {"partial_response": "false", "deny_partial_response": "1"}
#: How a warning begins that is about the question, and not about what the answer lacks.
_ABOUT_THE_QUESTION = "PromQL"
#: What codes mean that a proxy answers with, in words of its own; 503 too while a server starts or ends.
_NOT_NOW: dict[int, str] = {
    HTTPStatus.SERVICE_UNAVAILABLE: "is not ready",
    HTTPStatus.TOO_MANY_REQUESTS: "is asked too often; try again later",
    HTTPStatus.BAD_GATEWAY: "does not answer the proxy before it; try again later",
    HTTPStatus.GATEWAY_TIMEOUT: "does not answer the proxy before it in time; try a shorter time or one run",
}
#: A server may round the times that it is asked for.
_TOLERANCE_SECONDS = 1.0

#: The server of a team, and the one of a machine on which Prometheus runs as it comes.
VARIABLE = "LAGGARD_PROMETHEUS"
DEFAULT = "http://localhost:9090"

#: No time, size or count of a training run is as large, and its square is still a number.
_MOST = 1e30

T = TypeVar("T")


@dataclass(frozen=True)
class Sample:
    """One series of an instant query. The value is a number: a server's NaN or infinity is no sample."""

    labels: dict[str, str]
    value: float


@dataclass(frozen=True)
class Range:
    """One series of a query over a range: numbers by their time in seconds since 1970, at least one."""

    labels: dict[str, str]
    values: dict[float, float]


class Alert(TypedDict):
    """An alert as the API has it; what a server leaves out is empty, and ``value`` is None where it is not finite."""

    labels: dict[str, str]
    annotations: dict[str, str]
    state: str
    activeAt: str
    value: float | None


class Rule(TypedDict):
    """An alerting rule as the API has it; what a server leaves out is empty."""

    name: str
    query: str
    labels: dict[str, str]
    annotations: dict[str, str]


def quoted(text: str) -> str:
    """Return a text as a string of PromQL, which is also how the text format writes the value of a label."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


class Prometheus:
    """A server by its URL. Every failure is a :class:`CommandError` that names the server without its password.

    Questions and answers have the pack's own labels, whatever the server calls them.
    """

    def __init__(
        self,
        url: str,
        config: Path | None = None,
        names: Mapping[str, str] | None = None,
        source: str = "--prometheus",
    ) -> None:
        self._names = names or {}
        self._warned: set[str] = set()
        self._date = ""
        self._whole = _WHOLE
        self._source = source
        example = f"try {DEFAULT}"
        try:
            self._url = httpx.URL(http_url(url))
        except ValueError as error:
            raise CommandError(f"{source} {error}; {example}") from error
        except httpx.InvalidURL as error:
            raise CommandError(f"{source} must be a URL, got {without_password(url)!r} ({error}); {example}") from error
        if self._url.query or self._url.fragment:
            raise CommandError(f"{source} must be a URL without a query, got {self._public(self._url)}; {example}")
        options = client_options(config) if config else {}
        ways = Ways(options.pop("verify", None))
        self._client = httpx.Client(
            base_url=self._url, timeout=_TIMEOUT_SECONDS, follow_redirects=True, transport=ways, **options
        )

    @property
    def name(self) -> str:
        """The server's address, without user and password."""
        return self._public(self._url)

    @property
    def clock(self) -> float | None:
        """What the server's clock said at its last answer, in whole seconds since 1970; None where it does not say."""
        try:
            return parsedate_to_datetime(self._date).timestamp()
        except (OverflowError, ValueError):
            return None

    @property
    def arguments(self) -> str:
        """What names it to another command: nothing where that asks it by itself."""
        return "" if self._source == VARIABLE else f" --prometheus {self.name}"

    def query(self, expression: str, at: float | None = None, by: tuple[str, ...] = ()) -> list[Sample]:
        """Return the result of an instant query, as a vector.

        Args:
            expression: in PromQL.
            at: a time in seconds since 1970; now by default.
            by: labels that every sample has: those that lack one are somebody else's, and left out.
        """
        time = {} if at is None else {"time": f"{at:.3f}"}
        query = {"query": renamed(expression, self._names), **time}
        found = [
            Sample(in_ours(sample.labels, self._names), sample.value)
            for sample in self._get("api/v1/query", query, lambda data: list(_vector(data)))
        ]
        return [sample for sample in found if all(sample.labels.get(label) for label in by)]

    def ranges(self, expression: str, begin: float, end: float, step: float) -> list[Range]:
        """Return the result of a query over a range of time, in seconds since 1970: one value each ``step`` seconds.

        VictoriaMetrics and the query frontends of Thanos and Mimir may round begin and end down to multiples of
        ``step``. Whoever needs the last values asks for such times.
        """
        times = {"start": f"{begin:.3f}", "end": f"{end:.3f}", "step": f"{step:.3f}"}
        parameters = {"query": renamed(expression, self._names), **times}
        found = self._get("api/v1/query_range", parameters, lambda data: list(_matrix(data, begin, end)))
        return [Range(in_ours(series.labels, self._names), series.values) for series in found]

    def alerts(self) -> list[Alert]:
        """Return the alerts that are pending or firing."""
        found = self._get("api/v1/alerts", {}, lambda data: [_alert(each) for each in _list(data, "alerts")])
        return [{**alert, "labels": in_ours(alert["labels"], self._names)} for alert in found]

    def alerts_in_clusters(self) -> list[Alert]:
        """Return the alerts, each with the cluster of the server that evaluates it.

        Thanos query says of a rule which server evaluates it, and leaves that out of its alerts.
        """

        def read(data: Any) -> Iterator[Alert]:
            for group in _list(data, "groups"):
                for rule in _list(group, "rules"):
                    of_rule = in_ours(_texts(rule.get("labels")), self._names)
                    cluster = {name: text for name, text in of_rule.items() if name == CLUSTER}
                    for found in rule.get("alerts") or ():
                        alert = _alert(found)
                        yield {**alert, "labels": {**cluster, **in_ours(alert["labels"], self._names)}}

        return self._get("api/v1/rules", {"type": "alert"}, lambda data: list(read(data)))

    def rules(self) -> list[Rule]:
        """Return the alerting rules that the server evaluates."""
        found = self._get("api/v1/rules", {"type": "alert"}, lambda data: list(_rules(data)))
        ours = {new: old for old, new in self._names.items()}
        for rule in found:
            rule["query"] = renamed(rule["query"], ours)
            rule["labels"] = in_ours(rule["labels"], self._names)
            rule["annotations"] = in_templates(rule["annotations"], ours)
        return found

    def recorded(self, name: str) -> list[tuple[dict[str, str], str]]:
        """Return the labels and the expression of each rule that records a series of this name."""

        def read(data: Any) -> Iterator[tuple[dict[str, str], str]]:
            for group in _list(data, "groups"):
                for rule in _list(group, "rules"):
                    if rule.get("name") == name:
                        yield in_ours(_texts(rule.get("labels")), self._names), str(rule.get("query", ""))

        return self._get("api/v1/rules", {"type": "record"}, lambda data: list(read(data)))

    def data(self, path: str, parameters: dict[str, str], read: Callable[[Any], T]) -> T:
        """Return what ``read`` makes of the data of an answer, for what no method here asks."""
        return self._get(path, parameters, read)

    def close(self) -> None:
        """End the connections."""
        self._client.close()

    def _get(self, path: str, parameters: dict[str, str], read: Callable[[Any], T]) -> T:
        """Return what ``read`` makes of an answer's data, which may be anything."""
        code, kind, body = self._request(path, parameters)
        if code == HTTPStatus.BAD_REQUEST and any(name.encode() in body for name in self._whole):
            self._whole = {}
            code, kind, body = self._request(path, parameters)
        try:
            answer = json.loads(body)
            fault = None
        except (ValueError, RecursionError) as error:
            answer, fault = None, error
        known = cast("dict[str, Any]", answer) if isinstance(answer, dict) else {}
        if code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            # Mimir and Cortex say which header they miss.
            plain = body.decode("utf-8", "replace").strip()[:_MOST_WORDS] if kind.startswith("text/plain") else ""
            words = _words(known) or plain
            raise CommandError(
                f"Prometheus at {self.name} wants to know who asks: HTTP {code} at /{path}"
                f"{f' ({words})' if words else ''}; --http.config.file gives a password, a token or headers"
            )
        if fault:
            if code in _NOT_NOW:
                raise CommandError(f"Prometheus at {self.name} {_NOT_NOW[code]}: HTTP {code} at /{path}") from fault
            reason = f"HTTP {code}" if httpx.codes.is_error(code) else "no JSON"
            # A page with the code of an error is a proxy's own.
            asks = "html" in kind and not httpx.codes.is_error(code)
            login = "; a login page needs a token by --http.config.file" if asks else ""
            raise CommandError(f"{self.name} does not answer as Prometheus: {reason} at /{path}{login}") from fault
        if httpx.codes.is_error(code) or (known and known.get("status") != "success"):
            raise CommandError(f"Prometheus at {self.name} refuses /{path}: {_words(known) or f'HTTP {code}'}")
        if known.get("isPartial") is True:
            raise CommandError(f"{self.name} answers /{path} without a part of its stores; try again once all are back")
        self._warn(known.get("warnings"))
        try:
            return read(known["data"])
        except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise CommandError(
                f"{self.name} does not answer as Prometheus: JSON of another form at /{path}; try an API of version 1"
            ) from error

    def _warn(self, warnings: Any) -> None:
        """Say once what an answer lacks: a store behind Prometheus, by remote read, may not have answered."""
        for each in cast("list[Any]", warnings) if isinstance(warnings, list) else []:
            text = str(each)[:_MOST_WORDS]
            if not text.startswith(_ABOUT_THE_QUESTION) and text not in self._warned:
                self._warned.add(text)
                print(printable(f"laggard: Prometheus at {self.name} warns: {text}"), file=sys.stderr, flush=True)

    def _request(self, path: str, parameters: dict[str, str]) -> tuple[int, str, bytes]:
        """Return the code, the type and the bytes of an answer."""
        body, until = bytearray(), time.monotonic() + _WHOLE_SECONDS
        try:
            with self._client.stream("GET", path, params={**parameters, **self._whole}) as response:
                self._date = response.headers.get("date", "")
                for part in response.iter_bytes():
                    body += part
                    if len(body) > _MOST_BYTES:
                        raise CommandError(
                            f"Prometheus at {self.name} answers /{path} with more than {_MOST_BYTES >> 20} MiB; "
                            "try a shorter time or one run"
                        )
                    if time.monotonic() > until:
                        raise CommandError(
                            f"Prometheus at {self.name} did not end its answer within {_WHOLE_SECONDS} s"
                        )
                return response.status_code, response.headers.get("content-type", ""), bytes(body)
        except httpx.TimeoutException as error:
            raise CommandError(f"Prometheus at {self.name} did not answer within {_TIMEOUT_SECONDS} s") from error
        except httpx.LocalProtocolError as error:
            # Its text quotes the header, and with it perhaps a token.
            raise CommandError(f"Prometheus at {self.name} cannot be asked: a header has characters of none") from error
        except (httpx.RequestError, httpx.InvalidURL, UnicodeError) as error:
            hint = "; --http.config.file names the authority to trust" if "CERTIFICATE_VERIFY" in str(error) else ""
            if self._source == VARIABLE and not os.environ.get(VARIABLE):
                hint = f"; --prometheus or {VARIABLE} names another"
            reason = re.sub(r"^\[Errno -?\d+\] ", "", str(error))
            raise CommandError(f"Prometheus at {self.name} cannot be reached: {reason}{hint}") from error

    @staticmethod
    def _public(url: httpx.URL) -> str:
        return str(url.copy_with(username=None, password=None))


def _words(answer: dict[str, Any]) -> str:
    """Return what an error says: of Prometheus, of Google's and Azure's APIs, or of a gateway such as Amazon's."""
    for found in (answer.get("error"), answer.get("message"), answer.get("Message")):
        text: Any = cast("dict[str, Any]", found).get("message") if isinstance(found, dict) else found
        if isinstance(text, str) and text:
            return text[:_MOST_WORDS]
    return ""


def _list(data: Any, name: str) -> list[Any]:
    """Return a list of an answer. Thanos says null where there is nothing."""
    found: Any = data[name]
    if found is not None and not isinstance(found, list):
        raise TypeError(name)
    return cast("list[Any]", found or [])


def _texts(found: Any) -> dict[str, str]:
    """Return labels or annotations."""
    pairs = cast("dict[str, Any]", found or {})
    if not all(isinstance(text, str) for text in pairs.values()):
        raise TypeError("labels")
    return pairs


def _number(found: Any) -> float | None:
    """Return a finite value; None for NaN, infinity and what is beyond all measures."""
    value = float(found)
    if not abs(value) < _MOST:
        return None
    return value if abs(value) > 1 / _MOST else 0.0


def _vector(data: Any) -> Iterator[Sample]:
    for series in _list(data, "result"):
        labels, value = _texts(series["metric"]), _number(series["value"][1]) if "value" in series else None
        # A native histogram has no value.
        if value is not None:
            yield Sample(labels, value)


def _matrix(data: Any, begin: float, end: float) -> Iterator[Range]:
    for series in _list(data, "result"):
        numbers = ((float(time), _number(value)) for time, value in series.get("values") or ())
        asked = {
            time: value
            for time, value in numbers
            if value is not None and begin - _TOLERANCE_SECONDS <= time <= end + _TOLERANCE_SECONDS
        }
        labels = _texts(series["metric"])
        if asked:
            yield Range(labels, asked)


def _alert(found: Any) -> Alert:
    value: Any = found.get("value")
    return {
        "labels": _texts(found.get("labels")),
        "annotations": _texts(found.get("annotations")),
        "state": str(found.get("state", "")),
        "activeAt": str(found.get("activeAt", "")),
        "value": None if value in (None, "") else _number(value),
    }


def _rules(data: Any) -> Iterator[Rule]:
    for group in _list(data, "groups"):
        for rule in _list(group, "rules"):
            if rule.get("type") == "alerting":
                yield {
                    "name": str(rule["name"]),
                    "query": str(rule["query"]),
                    "labels": _texts(rule.get("labels")),
                    "annotations": _texts(rule.get("annotations")),
                }
