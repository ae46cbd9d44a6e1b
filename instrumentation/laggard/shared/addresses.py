"""Addresses of servers, as a flag or a variable gives them."""

from __future__ import annotations

import re
from urllib.parse import urlsplit


def http_url(text: str) -> str:
    """Return a URL of HTTP. Raises :class:`ValueError`, which says what it is not, without user and password."""
    reason = ""
    try:
        parts = urlsplit(text.strip())
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return text.strip()
    except ValueError as error:  # such as a port that is too large
        reason = f" ({error})"
    raise ValueError(f"must be a URL, got {without_password(text)!r}{reason}")


def without_password(text: str) -> str:
    """Return an address without user and password, whatever else is wrong with it."""
    return re.sub(r"^([^/@]*//)?[^/]*@", r"\1", text)
