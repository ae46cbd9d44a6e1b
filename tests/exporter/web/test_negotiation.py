"""What a client takes is what it gets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard_exporter.web.negotiation import content_type, takes_gzip
from tests.fuzz.test_parsers import fuzz

_OPEN = "application/openmetrics-text"
#: What a client sends, and the beginning of the type that it gets.
ACCEPTED = {
    "": "text/plain; version=0.0.4",
    "*/*": "text/plain; version=0.0.4",
    _OPEN: f"{_OPEN}; version=1.0.0",
    f"{_OPEN};q=0": "text/plain; version=0.0.4",
    f"{_OPEN};version=1.0.0;q=0,text/plain": "text/plain; version=0.0.4",
    f"{_OPEN};version=1.0.0;q=0.2,text/plain;version=0.0.4;q=0.8": "text/plain; version=0.0.4",
    f"text/plain;version=0.0.4;q=0.3,{_OPEN};version=1.0.0;q=0.5": f"{_OPEN}; version=1.0.0",
    f"{_OPEN};version=2.0.0": "text/plain; version=0.0.4",
    f"{_OPEN};version=2.0.0,{_OPEN};version=1.0.0;q=0.9": f"{_OPEN}; version=1.0.0",
    f"{_OPEN};version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5": "text/plain; version=0.0.4",
    "Application/OpenMetrics-Text; Version=1.0.0": f"{_OPEN}; version=1.0.0",
    # As Prometheus 3 sends it.
    f"{_OPEN};version=1.0.0;escaping=allow-utf-8;q=0.5,{_OPEN};version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping="
    "allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1": f"{_OPEN}; version=1.0.0; charset=utf-8",
}


@pytest.mark.parametrize("accept", ACCEPTED)
def test_the_format_that_is_preferred(accept: str) -> None:
    """Weights decide, 0 refuses, and a version that nobody writes here is not promised."""
    assert content_type(accept).startswith(ACCEPTED[accept])


@pytest.mark.parametrize(
    ("header", "takes"),
    [
        ("", False), ("gzip", True), ("gzip;q=0", False), ("br, gzip;q=0.5", True), ("*", True), ("identity", False),
        ("*;q=0", False), ("gzip;q=0, *", False), ("GZIP ; Q=0.1", True),
    ],
)  # fmt: skip
def test_gzip_is_for_who_takes_it(header: str, *, takes: bool) -> None:
    """A weight of 0 refuses, and a star stands for what is not named."""
    assert takes_gzip(header) is takes


_PIECES = st.sampled_from(
    [_OPEN, "text/plain", "*/*", ";", ",", "q=", "version=", "1.0.0", "9", "nan", "-1", '"', "=", "x"]
)


@fuzz
@given(st.lists(_PIECES | st.text(max_size=3), max_size=12).map("".join))
def test_any_header_gets_a_page(header: str) -> None:
    """Whatever stands in a header, there is a format in a version that is written here."""
    assert content_type(header).startswith(
        ("text/plain; version=0.0.4", "text/plain; version=1.0.0", f"{_OPEN}; version=1.0.0")
    )
    assert takes_gzip(header) in (True, False)
