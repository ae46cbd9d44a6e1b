"""What values of flags are, for argparse: each function returns that of a text, or raises what argparse prints."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from laggard.shared.addresses import http_url
from laggard_exporter.web.address import Address, parse_address
from laggard_exporter.web.ranks import METRICS_PATH, TARGETS_PATH

#: Paths that are served beside that of the metrics.
RESERVED_PATHS = frozenset({METRICS_PATH, TARGETS_PATH})


def address(text: str) -> Address:
    """Return where to listen."""
    try:
        return parse_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def path(text: str) -> str:
    """Return a path that can be served."""
    if (
        not text.startswith("/")
        or text == "/"
        or text.startswith("/-/")
        or text in RESERVED_PATHS
        or not text.isprintable()
        or set(text) & set(" ?#")
    ):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be served; give a path such as /metrics")
    return text


def host(text: str) -> str:
    """Return the name or the address of a host, without brackets."""
    name = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if not re.fullmatch(r"[A-Za-z0-9.-]+|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]+", name):
        raise argparse.ArgumentTypeError(f"must be a host's name or address, got {text!r}; ranks have their own ports")
    return name


def targets_file(text: str) -> Path:
    """Return a file that Prometheus reads."""
    target = Path(text)
    if target.suffix not in {".json", ".yml", ".yaml"}:
        raise argparse.ArgumentTypeError(f"{text!r}: Prometheus reads only names that end in .json, .yml or .yaml")
    return target


def count(text: str) -> int:
    """Return a whole number."""
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}")
    return int(text)


def directory(text: str) -> Path:
    """Return a folder."""
    if not text:
        raise argparse.ArgumentTypeError("is empty; name the folder that the ranks write to")
    return Path(text)


def file(text: str) -> Path | None:
    """Return a file, or None for an empty text, as every exporter with such a flag does."""
    return Path(text) if text else None


def root(text: str) -> Path:
    """Return a folder that is there."""
    folder = Path(text)
    if not folder.is_dir():
        raise argparse.ArgumentTypeError(
            f"must be a folder, got {text!r}; name the root of the file system as it is mounted here"
        )
    return folder


def expression(text: str) -> str:
    """Return a regular expression."""
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"must be a regular expression, got {text!r}: {error}") from error
    return text


def url(text: str) -> str:
    """Return a URL of HTTP; an empty text is none."""
    try:
        return text and http_url(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}; try http://localhost:4317") from error
