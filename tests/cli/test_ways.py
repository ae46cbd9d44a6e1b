"""The way to a server: proxies, exceptions and certificates as the environment names them."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard_cli.main import main
from laggard_cli.ways import direct, proxy_of
from tests.fuzz.test_parsers import fuzz
from tests.support.answering import Answer, answering

PROXY = "http://proxy.corp.example:3128"
_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin without any of the variables."""
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


#: An entry of NO_PROXY, a server, and whether the entry is about it.
EXEMPT = [
    ("*", "http://a.example", True),
    ("a.example", "http://a.example:9090", True),
    ("a.example", "http://b.a.example", True),
    ("a.example", "http://ba.example", False),
    (".a.example", "http://b.a.example", True),
    (".a.example", "http://a.example", False),
    ("*.a.example", "http://b.a.example", True),
    ("A.Example", "http://a.EXAMPLE", True),
    ("a.example:9090", "http://a.example:9090", True),
    ("a.example:9090", "http://a.example", False),
    ("a.example:80", "http://a.example", True),
    ("10.0.0.0/8", "http://10.1.2.3:9090", True),
    ("10.0.0.0/8", "http://11.1.2.3:9090", False),
    ("10.1.2.3", "http://10.1.2.3:9090", True),
    ("fd00::/8", "http://[fd00::1]:9090", True),
    ("fd00::1", "http://[fd00::1]:9090", True),
    ("[fd00::1]", "http://[fd00::1]:9090", True),
    ("[fd00::1]:9090", "http://[fd00::1]:9090", True),
    ("[fd00::1]:80", "http://[fd00::1]:9090", False),
    ("localhost, ::1 ,a.example", "http://a.example", True),
    ("", "http://127.0.0.1:9090", True),
    ("", "http://[::1]:9090", True),
    ("", "http://localhost:9090", True),
    ("", "http://a.example", False),
    (f"a.example:{'9' * 5000}", "http://a.example", False),
]


@pytest.mark.parametrize(("entry", "server", "exempt"), EXEMPT)
def test_who_is_not_behind_the_proxy(monkeypatch: pytest.MonkeyPatch, entry: str, server: str, *, exempt: bool) -> None:
    """Hosts, domains, addresses, networks and ports are exempt, in brackets or not, and so is this machine."""
    monkeypatch.setenv("HTTP_PROXY", PROXY)
    monkeypatch.setenv("NO_PROXY", entry)
    assert proxy_of(httpx.URL(server)) == ("" if exempt else PROXY)


@pytest.mark.parametrize(
    ("name", "proxy", "server", "used"),
    [
        ("HTTP_PROXY", "proxy:3128", "http://a.example", "http://proxy:3128"),
        ("HTTP_PROXY", PROXY, "https://a.example", ""),
        ("https_proxy", PROXY, "https://a.example", PROXY),
        ("ALL_PROXY", "socks5h://proxy:1080", "http://a.example", "socks5://proxy:1080"),
    ],
)
def test_which_proxy(monkeypatch: pytest.MonkeyPatch, name: str, proxy: str, server: str, used: str) -> None:
    """The proxy of the scheme counts, then the one for all; a scheme may be left out."""
    monkeypatch.setenv(name, proxy)
    assert proxy_of(httpx.URL(server)) == used


@fuzz
@given(st.text("[]:./*,-%a1f@ \u0663", max_size=12))
def test_any_exception_is_one(entries: str) -> None:
    """Whatever stands in NO_PROXY, there is a way."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HTTP_PROXY", PROXY)
        patch.setenv("NO_PROXY", entries)
        for server in ("http://a.example:9090", "http://10.1.2.3", "http://[fd00::1]:1"):
            assert proxy_of(httpx.URL(server)) in ("", PROXY)


def test_a_server_behind_a_proxy(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A server that only the proxy knows answers through it."""
    with answering() as proxy:
        seen: list[str] = []

        def answer(path: str, _: dict[str, str]) -> Answer:
            seen.append(path)
            metric = {"training_run": "r"}
            data = {"alerts": []} if path.endswith("alerts") else {"result": [{"metric": metric, "value": [0, "1"]}]}
            return Answer(json.dumps({"status": "success", "data": data}).encode())

        proxy.answer = answer
        monkeypatch.setenv("HTTP_PROXY", proxy.url.removeprefix("http://"))
        monkeypatch.setenv("NO_PROXY", "localhost,127.0.0.1,[::1],10.0.0.0/8")
        # Every query has an answer, so the watchdog seems to be away: what counts is that the proxy was asked.
        main(["diagnose", "--prometheus", "http://prometheus.corp.example:9090"])
    assert "/api/v1/query" in seen
    assert "cannot be reached" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variables", "server", "line"),
    [
        (
            {"SSL_CERT_FILE": "/nonexistent/ca.pem"},
            "https://a.example",
            "certificates of authorities cannot be read: SSL_CERT_FILE=/nonexistent/ca.pem: No such file or directory",
        ),
        (
            {"ALL_PROXY": "socks4://u:secret@proxy:1"},
            "http://a.example",
            "proxy of the environment must be a URL, got 'socks4://proxy:1'; try http://proxy:3128, or NO_PROXY",
        ),
        (
            {"ALL_PROXY": "http://u:secret@[::1"},
            "http://a.example",
            "proxy of the environment must be a URL, got 'http://[::1'; try http://proxy:3128, or NO_PROXY",
        ),
        (
            {"HTTP_PROXY": "http://u:secret@127.0.0.1:1"},
            "http://a.example",
            "Prometheus at http://a.example cannot be reached: Connection refused",
        ),
    ],
)
def test_a_way_that_there_is_not_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variables: dict[str, str],
    server: str,
    line: str,
) -> None:
    """The line names the variable's value without a password."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(["diagnose", "--prometheus", server]) == 2
    assert capsys.readouterr().err == f"laggard diagnose: error: {line}\n"


def test_a_lost_certificate_file_does_not_matter_without_encryption(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A plain server is asked, whatever SSL_CERT_FILE names."""
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "lost.pem"))
    with answering() as server:
        server.answer = lambda _, __: Answer(b'{"status":"success","data":{"result":[]}}')
        assert main(["diagnose", "--prometheus", server.url]) == 2
    assert "does not run laggard's rules" in capsys.readouterr().err


def test_a_server_of_our_own_is_behind_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo, a local run and a replay reach their servers where the environment sends all else to a proxy."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with answering() as server:
        server.answer = lambda *_: Answer(b"{}")
        assert direct().get(server.url).json() == {}
