"""What is wrong with an address is said without its password."""

from __future__ import annotations

import pytest

from laggard.shared.addresses import http_url, without_password


@pytest.mark.parametrize(
    "text",
    ["http://localhost:9090", "https://user:secret@[::1]:65535/prometheus", " HTTP://host ", "http://a.b:80?x=1"],
)
def test_a_url_stays_as_it_is(text: str) -> None:
    """Spaces around it go."""
    assert http_url(text) == text.strip()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("host:9090", "'host:9090'"),
        ("", "''"),
        ("http://", "'http://'"),
        ("ftp://user:secret@host", "'ftp://host'"),
        ("http://user:secret@host:99999", "'http://host:99999' (Port out of range 0-65535)"),
        ("http://user:sec@ret@host:0", "'http://host:0'"),
        ("http://user:secret@host:-1", "'http://host:-1' (Port"),
        ("http://user:secret@[::1", "'http://[::1' (Invalid IPv6 URL)"),
    ],
)
def test_what_it_is_not(text: str, said: str) -> None:
    """The system takes a port modulo 65536, so that a number with a digit too many would lead to somebody else."""
    with pytest.raises(ValueError, match=r"^must be a URL, got ") as raised:
        http_url(text)
    assert str(raised.value).startswith(f"must be a URL, got {said}")
    assert "sec" not in str(raised.value)


def test_without_password() -> None:
    """What stands behind the host is none."""
    assert without_password("socks5://u:p@proxy:1") == "socks5://proxy:1"
    assert without_password("user:p@proxy:1") == "proxy:1"
    assert without_password("http://host/a@b") == "http://host/a@b"
