"""``/ranks/metrics``: the metrics of all ranks of this node on one page, and ``/sd``: where each serves its own."""

from __future__ import annotations

import logging
from collections import Counter
from http import HTTPStatus
from urllib.parse import urlsplit

from laggard_exporter.exposition import Encoder
from laggard_exporter.logs import LogOnce
from laggard_exporter.ranks.discovery import Targets
from laggard_exporter.ranks.endpoints import Endpoints
from laggard_exporter.ranks.merge import InvalidPageError, Merged
from laggard_exporter.ranks.pages import PageError, read_pages
from laggard_exporter.samples import Family, Sample, grouped
from laggard_exporter.web.application import TIMEOUT_HEADER, Request, Response, compressed, scrape_timeout, text

RANK_PAGES = Family(
    "laggard_exporter_rank_pages",
    "gauge",
    "Only at /ranks/metrics: live ranks that serve metrics, by what became of them in this scrape: merged, no_answer, "
    "rejected (the page is invalid, the log says why), not_listening (nothing of the rank's user listens on its port "
    "in the exporter's network), stopped (its process is).",
    ("result",),
)

#: Where the pages are.
METRICS_PATH, TARGETS_PATH = "/ranks/metrics", "/sd"

#: A rank has so many seconds, and never more than most of the scrape: who does not answer must not keep the others.
RANK_SECONDS = 5.0
_SHARE = 0.8

RESULTS: tuple[str, ...] = ("merged", "no_answer", "rejected", "not_listening", "stopped")
_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_logger = logging.getLogger(__name__)


class RanksPage:
    """Fetches the pages of all ranks and merges them. A rank that does not answer is absent, and counted."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints
        self._encoder = Encoder()
        self._log = LogOnce(_logger)

    def __call__(self, request: Request) -> Response:
        """Return the answer to a GET."""
        try:
            endpoints = self._endpoints.find()
        except OSError as error:
            return text(HTTPStatus.SERVICE_UNAVAILABLE, f"the state folder: {error.strerror}")
        results: Counter[str] = Counter(dict.fromkeys(RESULTS, 0))
        results["not_listening"] = sum(not endpoint.address for endpoint in endpoints)
        # A process that is stopped takes a connection and says nothing.
        results["stopped"] = sum(bool(endpoint.address) and endpoint.stopped for endpoint in endpoints)
        asked = [endpoint for endpoint in endpoints if endpoint.address and not endpoint.stopped]
        seconds = min(RANK_SECONDS, _SHARE * scrape_timeout(request.headers.get(TIMEOUT_HEADER)))
        pages = read_pages([(endpoint.address, endpoint.facts.metrics_port) for endpoint in asked], seconds)
        merged = Merged()
        for endpoint, page in zip(asked, pages, strict=True):
            results[self._add(merged, page, endpoint.facts.run, endpoint.facts.rank)] += 1
        own = grouped(Sample(RANK_PAGES, (result,), count) for result, count in results.items())
        body = merged.text().encode() + self._encoder.encode([own], open_metrics=False)
        return compressed(request, body, _CONTENT_TYPE)

    def _add(self, merged: Merged, page: str | PageError, run: str, rank: int) -> str:
        who = f"the metrics of rank {rank} of {run!r}:"
        if isinstance(page, PageError):
            self._log(logging.INFO, f"{who} {page}")
            return "no_answer"
        try:
            left_out = merged.add(page, run, rank)
        except InvalidPageError as error:
            self._log(logging.WARNING, f"{who} the page {error}")
            return "rejected"
        if left_out:
            self._log(logging.WARNING, f"{who} {left_out} is left out, its run or rank is another")
        return "merged"


class TargetsPage:
    """Says where each rank serves, as Prometheus' http_sd reads it."""

    def __init__(self, targets: Targets, host: str) -> None:
        self._targets = targets
        self._host = host

    def __call__(self, request: Request) -> Response:
        """Return the answer to a GET."""
        try:
            host = self._host or urlsplit(f"//{request.headers.get('Host', '')}").hostname or "localhost"
        except ValueError:
            return text(HTTPStatus.BAD_REQUEST, "the header Host must name a host; --sd.address gives one")
        try:
            body = self._targets.document(host)
        except OSError as error:
            return text(HTTPStatus.SERVICE_UNAVAILABLE, f"the state folder: {error.strerror}")
        return compressed(request, body.encode(), "application/json")
