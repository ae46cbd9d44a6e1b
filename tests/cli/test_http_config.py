"""``--http.config.file``: a real Prometheus behind TLS, passwords and client certificates, and files that are wrong."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import bcrypt
import httpx
import pytest

from laggard_cli.errors import CommandError
from laggard_cli.http_config import client_options
from laggard_cli.main import main
from laggard_cli.prometheus import Prometheus
from tests.exporter.web.certificates import Authority
from tests.rules.engine import free_address

PASSWORD = "pass-\u00e9 word"


@contextlib.contextmanager
def guarded(folder: Path, authority: Authority) -> Iterator[str]:
    """Run Prometheus with TLS, which wants a certificate and a password, and yield its URL."""
    own = authority.issue("prometheus")
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
    web = {
        "tls_server_config": {
            "cert_file": str(own.certificate),
            "key_file": str(own.key),
            "client_auth_type": "RequireAndVerifyClientCert",
            "client_ca_file": str(authority.certificate),
        },
        "basic_auth_users": {"reader": hashed},
    }
    (folder / "web.yml").write_text(json.dumps(web))
    (folder / "empty.yml").touch()
    address = free_address()
    command = [
        shutil.which("prometheus") or "prometheus",
        f"--config.file={folder / 'empty.yml'}",
        f"--web.config.file={folder / 'web.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--log.level=error",
    ]
    with subprocess.Popen(command) as process:
        try:
            yield f"https://{address}"
        finally:
            process.kill()


def test_a_guarded_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With authority, certificate and password a query is answered; without one of them a line says what is missing."""
    authority = Authority(tmp_path, "authority")
    pair = authority.issue("reader")
    tls = {"ca_file": "authority.crt", "cert_file": pair.certificate.name, "key_file": pair.key.name}
    basic = {"username": "reader", "password_file": "password"}
    (tmp_path / "password").write_text(PASSWORD + "\n", encoding="utf-8")
    config = tmp_path / "http.yml"

    def answer(url: str, **sections: object) -> str:
        config.write_text(json.dumps(sections))
        with contextlib.closing(Prometheus(url, config)) as server:
            try:
                return str(len(server.query("vector(1)")))
            except CommandError as error:
                return str(error)

    with guarded(tmp_path, authority) as url:
        end = time.monotonic() + 20
        while "cannot be reached" in answer(url, tls_config=tls, basic_auth=basic):
            assert time.monotonic() < end
            time.sleep(0.1)
        assert answer(url, tls_config=tls, basic_auth=basic) == "1"
        wrong = answer(url, tls_config=tls, basic_auth={**basic, "password": "x", "password_file": ""})
        assert wrong == (
            f"Prometheus at {url} wants to know who asks: HTTP 401 at /api/v1/query (Unauthorized); "
            "--http.config.file gives a password, a token or headers"
        )
        assert "cannot be reached" in answer(url, tls_config={"ca_file": "authority.crt"}, basic_auth=basic)
        unknown = answer(url, basic_auth=basic)
        assert "CERTIFICATE_VERIFY_FAILED" in unknown
        assert unknown.endswith("; --http.config.file names the authority to trust")
        trusting = {**tls, "ca_file": "", "insecure_skip_verify": True}
        assert answer(url, tls_config=trusting, basic_auth=basic) == "1"
        # As a user gives it: an empty server has no rules, which is what is said.
        config.write_text(json.dumps({"tls_config": tls, "basic_auth": basic}))
        assert main(["diagnose", "--prometheus", url, "--http.config.file", str(config)]) == 2
        assert "does not run laggard's rules" in capsys.readouterr().err


def test_a_token(tmp_path: Path) -> None:
    """A token goes into the header that says who asks, and to no other server; other headers go to each."""
    seen: list[tuple[str, str | None, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append((self.headers["Host"], self.headers["Authorization"], self.headers["X-Scope-OrgID"]))
            self.send_response(302 if "localhost" not in self.headers["Host"] else 200)
            self.send_header("Location", f"http://localhost:{self.connection.getsockname()[1]}/elsewhere")
            self.end_headers()
            self.wfile.write(b'{"status": "success", "data": {"result": []}}')

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    tenant = "http_headers: {X-Scope-OrgID: {values: [laggard]}}"
    (tmp_path / "http.yml").write_text(f"authorization: {{credentials: abc}}\n{tenant}")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        with contextlib.closing(Prometheus(f"http://127.0.0.1:{server.server_port}", tmp_path / "http.yml")) as asked:
            assert asked.query("up") == []
        server.shutdown()
        port = server.server_port
    assert seen == [(f"127.0.0.1:{port}", "Bearer abc", "laggard"), (f"localhost:{port}", None, "laggard")]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[", "must be YAML, line 1 is not"),
        ("basic_auth: {password: hidden", "must be YAML, line 1 is not"),
        ("1", "the file must have keys, one of basic_auth, authorization, tls_config, http_headers"),
        ("oauth2: {}", "oauth2 is not known; there are basic_auth, authorization, tls_config, http_headers"),
        ("basic_auth: hidden", "basic_auth must have keys, one of username, password, password_file"),
        ("basic_auth: {user: hidden}", "basic_auth.user is not known; there are username, password, password_file"),
        ("basic_auth: {password: 12345}", "password must be a text; put it in quotes"),
        ("basic_auth: {password_file: nowhere}", "cannot be read: No such file or directory"),
        ("basic_auth: {}\nauthorization: {}", "basic_auth and authorization exclude each other"),
        ("tls_config: {ca_file: nowhere}", "nowhere cannot be used: No such file or directory"),
        ("tls_config: {ca_file: http.yml}", "http.yml cannot be used: "),
        ("tls_config: {cert_file: http.yml}", "http.yml cannot be used: "),
        ("tls_config: {insecure_skip_verify: 1}", "insecure_skip_verify must be true or false"),
        ("http_headers: [a]", "http_headers must have names of headers as keys"),
        (
            "http_headers: {A: {secrets: [hidden]}}",
            "http_headers.A must have values, a list of texts, and nothing else",
        ),
        ("http_headers: {A: {values: [1]}}", "http_headers.A must have values, a list of texts, and nothing else"),
    ],
)
def test_a_wrong_file(tmp_path: Path, text: str, line: str) -> None:
    """One line that names the file and what is wrong with it, and no secret."""
    path = tmp_path / "http.yml"
    path.write_text(text)
    with pytest.raises(CommandError) as found:
        client_options(path)
    assert str(found.value).startswith(str(tmp_path))
    assert line in str(found.value)
    assert "\n" not in str(found.value)
    assert "hidden" not in str(found.value)
    assert "12345" not in str(found.value)


def test_no_file_and_an_empty_one(tmp_path: Path) -> None:
    """A file that is not there is one line; an empty one changes nothing."""
    with pytest.raises(CommandError, match=r"nowhere\.yml cannot be read: No such file or directory"):
        client_options(tmp_path / "nowhere.yml")
    (tmp_path / "empty.yml").touch()
    assert client_options(tmp_path / "empty.yml") == {}
    assert isinstance(httpx.Client(**client_options(tmp_path / "empty.yml")), httpx.Client)
    os.close(os.open(tmp_path / "bytes.yml", os.O_CREAT))
    (tmp_path / "bytes.yml").write_bytes(b"\xff")
    with pytest.raises(CommandError, match="cannot be read"):
        client_options(tmp_path / "bytes.yml")
