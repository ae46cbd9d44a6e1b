"""``laggard report``: what cannot be made is one line and loses nothing."""

from __future__ import annotations

import http.server
import json
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from laggard_cli.main import main


class _Fake(http.server.BaseHTTPRequestHandler):
    """A Prometheus without any series, but for the names of two runs; under /private it wants a password."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = parse_qs(url.query).get("query", [""])[0]
        known = "group by (cluster, training_run)" in query
        result = [{"metric": {"training_run": name}, "value": [0, "1"]} for name in ("one", "two") if known]
        kind = "matrix" if url.path.endswith("query_range") else "vector"
        body: dict[str, Any] = {"status": "success", "data": {"resultType": kind, "result": result}}
        content = json.dumps(body).encode()
        allowed = "private" not in url.path or self.headers["Authorization"] == "Basic dTpyaWdodA=="  # u:right
        self.send_response(200 if allowed else 401)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Serve it, once in the open and once with a certificate that nobody trusts."""
    folder = tmp_path_factory.mktemp("certificate")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", folder / "key", "-out", folder / "crt",
         "-days", "1", "-subj", "/CN=localhost"], check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "crt", folder / "key")
    servers = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Fake) for _ in range(2)]
    servers[1].socket = context.wrap_socket(servers[1].socket, server_side=True)
    threads = [Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}) for server in servers]
    for thread in threads:
        thread.start()
    plain, secure = (f"127.0.0.1:{server.server_port}" for server in servers)
    yield {
        "http": f"http://{plain}",
        "private": f"http://u:secret@{plain}/private",
        "allowed": f"http://u:right@{plain}/private",
        "https": f"https://{secure}",
        "down": "http://127.0.0.1:1",
    }
    for server, thread in zip(servers, threads, strict=True):
        server.shutdown()
        thread.join()
        server.server_close()


#: A server, arguments, and what is said of them.
REFUSED = {
    ("down",): "cannot be reached: Connection refused",
    ("private",): "wants to know who asks: HTTP 401 at /api/v1/query; --http.config.file gives a password",
    ("https",): "; --http.config.file names the authority to trust",
    ("allowed",): "--run 'r' is not in Prometheus at",
    ("http", "--from", "2026-01-02", "--to", "2026-01-01"): (
        "--from 2026-01-02 is not before --to 2026-01-01: the range is empty"
    ),
    ("http", "--from", "2026-01-01", "--to", "2026-01-02"): (
        "from 2026-01-01 00:00:00 UTC to 2026-01-02 00:00:00 UTC; runs there: one, two"
    ),
    (
        "http",
        "--from",
        "yesterday",
    ): "--from must be a time, got 'yesterday'; try 2026-01-31T08:00:00Z",
    ("http", "--last", "2x"): "--last must be a duration, got '2x'; try 90m, 1h or 2d",
    ("http", "--last", "1h", "--from", "2026-01-01"): "--from and --last exclude each other",
}


@pytest.mark.parametrize("given", REFUSED, ids=" ".join)
def test_what_can_not_be_done_is_one_line_and_loses_nothing(
    fake: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], given: tuple[str, ...]
) -> None:
    """The line names the thing; an earlier report stays as it was, and nothing lies beside it."""
    server, *arguments = given
    output = tmp_path / "report.html"
    output.write_text("earlier")
    code = main(["report", "--prometheus", fake[server], "--run", "r", "-o", str(output), *arguments])
    captured = capsys.readouterr()
    assert (code, captured.out) == (2, "")
    (line,) = captured.err.splitlines()
    assert line.startswith("laggard report: error: ")
    assert REFUSED[given] in line
    assert "secret" not in line
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("report.html", "earlier")]


def test_an_output_that_can_not_be_written_is_said_before_anything_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither a folder that is not there nor one in place of the file costs a query."""
    for output, reason in ((tmp_path / "no" / "r.html", "No such file or directory"), (tmp_path, "is a directory")):
        assert main(["report", "--prometheus", "http://127.0.0.1:1", "--run", "r", "-o", str(output)]) == 2
        assert capsys.readouterr().err == f"laggard report: error: --output {output}: {reason}\n"
    assert list(tmp_path.iterdir()) == []
