"""What a client takes, from the headers ``Accept`` and ``Accept-Encoding`` (RFC 9110, section 12)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

#: Formats that the page is written in, with their versions; without one the first.
_OLDEST = "0.0.4"
_FORMATS = {"application/openmetrics-text": ("1.0.0",), "text/plain": (_OLDEST, "1.0.0")}
#: How names are spelled, which is the same for ours; without a wish the first. Dots and values would change
#: ours, and Prometheus keeps a name as it was sent.
_ESCAPINGS = ("underscores", "allow-utf-8")
_ANY = ("*/*", "text/*")


class _Offer(NamedTuple):
    name: str
    parameters: dict[str, str]
    weight: float


def content_type(accept: str) -> str:
    """Return the type of the page that a client prefers of those that there are."""
    for name, parameters, _ in _preferred(accept):
        version = parameters.get("version", "")
        if name in _ANY:
            break
        if name in _FORMATS and version in ("", *_FORMATS[name]):
            escaping = parameters.get("escaping", _ESCAPINGS[0])
            return _typed(name, version or _FORMATS[name][0], escaping if escaping in _ESCAPINGS else _ESCAPINGS[0])
    return _typed("text/plain", _OLDEST)


def takes_gzip(accept_encoding: str) -> bool:
    """Return whether a client takes an answer with gzip."""
    weights = {name: weight for name, _, weight in _offers(accept_encoding)}
    return weights.get("gzip", weights.get("x-gzip", weights.get("*", 0.0))) > 0


def _typed(name: str, version: str, escaping: str = "") -> str:
    # The oldest format has one way to spell names, and does not say so.
    ending = f"; escaping={escaping}" if version != _OLDEST else ""
    return f"{name}; version={version}; charset=utf-8{ending}"


def _preferred(header: str) -> list[_Offer]:
    """Return what a client takes, the best first; what it refuses has weight 0."""
    return sorted((each for each in _offers(header) if each.weight > 0), key=lambda each: -each.weight)


def _offers(header: str) -> Iterator[_Offer]:
    for part in header.split(","):
        name, *further = (text.strip() for text in part.split(";"))
        pairs = (text.partition("=") for text in further)
        parameters = {each.strip().lower(): text.strip().strip('"') for each, _, text in pairs}
        if name:
            yield _Offer(name.lower(), parameters, _weight(parameters.pop("q", "1")))


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        return 1.0
    return min(max(weight, 0.0), 1.0) if math.isfinite(weight) else 1.0
