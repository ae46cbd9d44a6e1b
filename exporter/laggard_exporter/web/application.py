"""What is served at which path."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import BinaryIO
from urllib.parse import parse_qs, urlsplit

from laggard.version import __version__
from laggard_exporter.collection import DEFAULT_TIMEOUT, Collection
from laggard_exporter.exposition import Encoder, is_open_metrics
from laggard_exporter.web.negotiation import content_type, takes_gzip

#: Prometheus says how long it waits; the answer must be there a little earlier, in seconds.
TIMEOUT_OFFSET = 0.5

#: The header in which Prometheus says it, in seconds.
TIMEOUT_HEADER = "X-Prometheus-Scrape-Timeout-Seconds"

#: No client makes a scrape wait longer than this, in seconds.
LONGEST_TIMEOUT = 120.0

_PLAIN = "text/plain; charset=utf-8"

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><title>laggard-exporter</title></head>
<body><h1>laggard-exporter {version}</h1>
<p>A node's GPUs and training ranks for Prometheus.</p>
<ul><li><a href="{path}">Metrics</a></li>
{pages}<li><a href="/-/healthy">Healthy</a>: the process answers</li>
<li><a href="/-/ready">Ready</a>: what each collector says</li></ul>
<p>Collectors: {collectors}</p></body></html>
"""


@dataclass(frozen=True)
class Request:
    """What a client asks for."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes = b""
    closed: bool = False
    """Whether the connection is encrypted and strangers get nothing."""


@dataclass(frozen=True)
class Response:
    """What it gets."""

    status: HTTPStatus
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": _PLAIN})
    file: BinaryIO | None = None
    """Sent in place of the body, and closed; it has ``size`` bytes."""
    size: int = 0


def text(status: HTTPStatus, line: str) -> Response:
    """Return an answer of one line."""
    return Response(status, f"{line}\n".encode())


def compressed(request: Request, body: bytes, content_type: str) -> Response:
    """Return an answer, with gzip for who takes it."""
    headers = {"Content-Type": content_type}
    if takes_gzip(request.headers.get("Accept-Encoding", "")):
        # The default level takes several times as long and saves little: the text is repetitive.
        headers["Content-Encoding"], body = "gzip", gzip.compress(body, 1)
    return Response(HTTPStatus.OK, body, headers)


class Application:
    """The pages. ``max_requests`` scrapes may run at the same time; 0 is any number.

    ``actions`` are pages by their path that do something: for POST alone, and where the connection keeps strangers out.
    ``pages`` are further ones that are read, each request a scrape.
    """

    def __init__(
        self,
        collection: Collection,
        telemetry_path: str,
        max_requests: int = 0,
        actions: Mapping[str, Callable[[Request], Response]] | None = None,
        pages: Mapping[str, Callable[[Request], Response]] | None = None,
    ) -> None:
        self._collection = collection
        self._path = telemetry_path
        self._max_requests = max_requests
        self._encoder = Encoder()
        self._running = 0
        self._lock = threading.Lock()
        self._actions = dict(actions or {})
        self._scrapes = {**(pages or {}), telemetry_path: self._metrics}
        self._pages = {
            "/": self._landing_page,
            "/-/healthy": self._healthy,
            "/-/ready": self._ready,
        }

    def respond(self, request: Request) -> Response:
        """Return the answer to a request."""
        action = self.action(request)
        if action is not None:
            if request.method != "POST":
                return Response(HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": "POST"})
            return action(request)
        if request.method not in {"GET", "HEAD"}:
            return Response(HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": "GET, HEAD"})
        path = urlsplit(request.target).path
        if scrape := self._scrapes.get(path):
            return self._limited(request, scrape)
        page = self._pages.get(path)
        if page is None:
            return text(HTTPStatus.NOT_FOUND, f"nothing here; metrics are at {self._path}")
        return page(request)

    def action(self, request: Request) -> Callable[[Request], Response] | None:
        """Return what a request would do, if anything; only then its body is read."""
        return self._actions.get(urlsplit(request.target).path) if request.closed else None

    def _landing_page(self, _: Request) -> Response:
        import html  # noqa: PLC0415 - its table of entities takes memory, and Prometheus does not read this page

        names = html.escape(", ".join(self._collection.names) or "none")
        further = "".join(f'<li><a href="{path}">{path}</a></li>\n' for path in self._scrapes if path != self._path)
        page = _PAGE.format(
            version=html.escape(__version__), path=html.escape(self._path), pages=further, collectors=names
        )
        return Response(HTTPStatus.OK, page.encode(), {"Content-Type": "text/html; charset=utf-8"})

    def _healthy(self, _: Request) -> Response:
        # Nothing of the node: who restarts an exporter because a driver hangs makes things worse.
        return text(HTTPStatus.OK, "laggard-exporter is healthy.")

    def _ready(self, _: Request) -> Response:
        problems = self._collection.problems()
        works = not problems or not all(problems.values())
        lines = [f"laggard-exporter is {'ready' if works else 'not ready: every collector fails'}."]
        lines += [f"{name}: {problem or 'ok'}" for name, problem in problems.items()]
        return text(HTTPStatus.OK if works else HTTPStatus.SERVICE_UNAVAILABLE, "\n".join(lines))

    def _limited(self, request: Request, scrape: Callable[[Request], Response]) -> Response:
        with self._lock:
            if self._max_requests and self._running >= self._max_requests:
                return text(HTTPStatus.SERVICE_UNAVAILABLE, f"{self._running} scrapes run already (--web.max-requests)")
            self._running += 1
        try:
            return scrape(request)
        finally:
            with self._lock:
                self._running -= 1

    def _metrics(self, request: Request) -> Response:
        started = time.monotonic()
        try:
            names = self._selected(request)
        except ValueError as error:
            return text(HTTPStatus.BAD_REQUEST, str(error))
        timeout = scrape_timeout(request.headers.get(TIMEOUT_HEADER)) - (time.monotonic() - started)
        return self._exposition(request, names, timeout)

    def _exposition(self, request: Request, names: frozenset[str] | None, timeout: float) -> Response:
        # No registry: nothing is served but what the collectors yield, nothing about the Python process.
        wanted = content_type(request.headers.get("Accept", ""))
        samples = self._collection.samples(names, timeout)
        return compressed(request, self._encoder.encode(samples, open_metrics=is_open_metrics(wanted)), wanted)

    def _selected(self, request: Request) -> frozenset[str] | None:
        """Return the collectors that ``collect[]`` and ``exclude[]`` leave, None for all."""
        query = parse_qs(urlsplit(request.target).query, keep_blank_values=True, max_num_fields=100)
        collect, exclude = frozenset(query.get("collect[]", ())), frozenset(query.get("exclude[]", ()))
        if collect and exclude:
            raise ValueError("collect[] and exclude[] exclude each other; give one of them")
        known = self._collection.names
        for name in sorted(collect | exclude):
            if name not in known:
                raise ValueError(f"no collector {name!r} is switched on; there are {', '.join(known) or 'none'}")
        return collect or (frozenset(known) - exclude if exclude else None)


def scrape_timeout(header: str | None) -> float:
    """Return the seconds that collectors have for a client that waits as long as the header says."""
    try:
        seconds = float(header or DEFAULT_TIMEOUT)
    except ValueError:
        seconds = DEFAULT_TIMEOUT
    # Written so that it also refuses what is not a number.
    if not 0 < seconds <= LONGEST_TIMEOUT:
        seconds = DEFAULT_TIMEOUT
    return max(seconds - TIMEOUT_OFFSET, seconds / 2)
