"""``POST /-/profile``: who may ask for what, and that a caller gets nothing else by it."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import ssl
import subprocess
import threading
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from laggard.shared import control
from laggard.shared.control import Reply, Request
from laggard_exporter import profiling
from laggard_exporter.collection import Collection
from laggard_exporter.profiling import Profiling
from laggard_exporter.web import configuration
from laggard_exporter.web.address import Address
from laggard_exporter.web.application import Application
from laggard_exporter.web.profile import PATH, ProfilePage
from laggard_exporter.web.server import Server
from laggard_exporter.web.watch import ConfigurationSource
from tests.exporter.support import EXPORTER, TIMEOUT, fresh, live_rank
from tests.exporter.web.certificates import Authority
from tests.exporter.web.support import SECRET_HASH

ASK = {"run": "run-1", "rank": 3, "steps": 5}


@dataclass
class Node:
    """A node's exporter and its state folder."""

    server: Server
    state: Path
    tls: ssl.SSLContext | None

    def send(
        self, body: object, *, method: str = "POST", password: str = "secret", **headers: str
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Send a request; return status, headers and body of the answer."""
        given = {
            "Content-Type": "application/json",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        given["Authorization"] = "Basic " + base64.b64encode(f"me:{password}".encode()).decode()
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        host, port = self.server.address
        connection = (
            http.client.HTTPSConnection(host, port, timeout=TIMEOUT, context=self.tls)
            if self.tls
            else http.client.HTTPConnection(host, port, timeout=TIMEOUT)
        )
        with contextlib.closing(connection):
            connection.request(method, PATH, data, given)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()

    def said(self, body: object, **more: Any) -> tuple[int, str]:
        """Send a request; return status and text."""
        status, _, text = self.send(body, **more)
        return status, text.decode().strip()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Return the authority that all trust."""
    return Authority(tmp_path_factory.mktemp("certificates"), "authority")


@contextlib.contextmanager
def serving(folder: Path, web: str, tls: ssl.SSLContext | None) -> Generator[Node]:
    """Serve the page for a state folder under a web configuration."""
    state = folder / "state"
    state.mkdir(exist_ok=True)
    (folder / "web.yml").write_text(web)
    application = Application(Collection([]), "/metrics", actions={PATH: ProfilePage(Profiling(state))})
    source = ConfigurationSource(configuration.load(folder / "web.yml"))
    server = Server(Address("127.0.0.1", 0), application, source)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield Node(server, state, tls)
    finally:
        server.shutdown()
        thread.join(TIMEOUT)
        server.server_close()


@pytest.fixture
def node(tmp_path: Path, authority: Authority) -> Iterator[Node]:
    """A node with TLS and a password."""
    pair = authority.issue("localhost", file="server")
    web = (
        f"tls_server_config: {{cert_file: {pair.certificate}, key_file: {pair.key}}}\n"
        f"basic_auth_users: {{me: {SECRET_HASH}}}\n"
    )
    with serving(tmp_path, web, ssl.create_default_context(cafile=str(authority.certificate))) as node:
        yield node


def test_a_profile_from_request_to_file(node: Node) -> None:
    """The rank gets a request without a path; its replies and its file are handed out; the request goes."""
    with live_rank(node.state, fresh()):
        status, text = node.said(ASK)
        assert status == 202
        id_ = json.loads(text)["id"]
        request = control.read_request(node.state / "run-1-3.control")
        assert request == Request(id_, "profile", path="", steps=5)
        assert node.said({"id": id_}) == (200, '{"status": "asked", "reason": ""}')
        assert node.said({"id": id_, "trace": True}) == (409, "the profile is asked, not done")
        assert node.said(ASK) == (409, "rank 3 of run-1 is asked for a profile already")
        control.write(node.state / "run-1-3.reply", Reply(id_, "accepted"))
        assert node.said({"id": id_}) == (200, '{"status": "accepted", "reason": ""}')
        old = node.state / "run-1-3.20200101T000000.profile.json"
        old.write_text("an older one")
        os.utime(old, (1, 1))
        control.write(node.state / "run-1-3.reply", Reply(id_, "done"))
        assert node.said({"id": id_, "trace": True}) == (404, "the file is not in the state folder any more")
        content = b"x" * 1_000_000
        (node.state / "run-1-3.20260101T000000.profile.json").write_bytes(content)
        for other in ("run-1-30", "run-1-3.5-0"):
            (node.state / f"{other}.20260101T000000.profile.json").write_text("another rank's")
        status, headers, body = node.send({"id": id_, "trace": True})
        assert (status, headers["Content-Length"], body) == (200, "1000000", content)
        assert not (node.state / "run-1-3.control").exists()
        status, text = node.said(ASK)
        assert status == 202
        control.write(node.state / "run-1-3.reply", Reply(json.loads(text)["id"], "failed", "busy"))
        assert node.said({"id": json.loads(text)["id"]}) == (200, '{"status": "failed", "reason": "busy"}')


def test_a_profile_is_withdrawn(node: Node) -> None:
    """The request goes, by which the rank drops it, the next one is taken, and functions are asked for by name."""
    with live_rank(node.state, fresh()):
        id_ = json.loads(node.said(ASK)[1])["id"]
        withdrawn = (200, '{"status": "failed", "reason": "profile withdrawn"}')
        assert node.said({"id": id_, "withdraw": True}) == withdrawn
        assert node.said({"id": id_}) == withdrawn
        assert list(node.state.glob("*.control")) == []
        assert node.said({**ASK, "stacks": True})[0] == 202
        assert control.read_request(node.state / "run-1-3.control").stacks


def test_no_link_and_no_file_of_another_user_is_handed_out(node: Node) -> None:
    """What lies under the name of a rank's profile is a file of the rank's user, or nothing is given."""
    secret = node.state.parent / "secret"
    secret.write_text("secret")
    with live_rank(node.state, fresh()):
        id_ = json.loads(node.said(ASK)[1])["id"]
        control.write(node.state / "run-1-3.reply", Reply(id_, "done"))
        (node.state / "run-1-3.20260101T000001.profile.json").symlink_to(secret)
        os.mkfifo(node.state / "run-1-3.20260101T000002.profile.json")
        if os.geteuid() == 0:
            foreign = node.state / "run-1-3.20260101T000003.profile.json"
            foreign.write_text("another user's")
            os.chown(foreign, 4711, -1)
        assert node.said({"id": id_, "trace": True}) == (404, "the file is not in the state folder any more")


def test_a_rank_that_does_not_answer_is_given_up(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said, the request goes, and the next one is taken; so where the rank has ended."""
    monkeypatch.setattr(profiling, "ACCEPT_SECONDS", 0.0)
    with live_rank(node.state, fresh()) as process:
        id_ = json.loads(node.said(ASK)[1])["id"]
        status, text = node.said({"id": id_})
        assert status == 200
        assert json.loads(text)["status"] == "failed"
        assert "does the rank obey this user (LAGGARD_CONTROL_USER)" in text
        assert not (node.state / "run-1-3.control").exists()
        monkeypatch.undo()
        id_ = json.loads(node.said(ASK)[1])["id"]
        process.kill()
        process.wait()
        assert json.loads(node.said({"id": id_})[1])["reason"] == (
            "ended before its profile was there: rank 3 of 'run-1' does not live on this node"
        )


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b"", 400, "no JSON object"),
        (b"[" * 4096, 400, "no JSON object"),
        (b"5", 400, "no JSON object"),
        ({}, 400, "give run, rank, steps"),
        ({**ASK, "path": "/etc/passwd"}, 400, "no field 'path'; there are run, rank, steps, stacks"),
        ({**ASK, "rank": True}, 400, "rank must be of type int"),
        ({**ASK, "run": 5}, 400, "run must be of type str"),
        ({**ASK, "steps": 0}, 400, "steps 0 is not 1 to 100"),
        ({**ASK, "steps": 101}, 400, "steps 101 is not 1 to 100"),
        ({**ASK, "run": "../run-1"}, 404, "rank 3 of '../run-1' does not live on this node"),
        (ASK, 404, "rank 3 of 'run-1' does not live on this node"),
        ({"id": "../../etc/passwd", "trace": True}, 404, "no request '../../etc/passwd'"),
        ({"id": "x", "run": "run-1"}, 400, "no field 'run'; there are id, trace, withdraw"),
        (b" " * 4097, 413, ""),
    ],
)
def test_a_bad_request(node: Node, body: object, status: int, text: str) -> None:
    """It is one line, and nothing is written."""
    assert node.said(body) == (status, text)
    assert list(node.state.iterdir()) == []


def test_who_may_ask(node: Node, tmp_path: Path) -> None:
    """Nobody without the password, nor by a method or a type that a browser sends unasked, nor without TLS."""
    with live_rank(node.state, fresh()):
        assert node.said(ASK, password="wrong")[0] == 401
        status, headers, _ = node.send(b"", method="GET")
        assert (status, headers["Allow"]) == (405, "POST")
        assert node.said(ASK, Content_Type="text/plain") == (415, "send application/json")
        assert node.said(ASK, Content_Length="-1")[0] == 413
        with serving(tmp_path, f"basic_auth_users: {{me: {SECRET_HASH}}}\n", None) as plain:
            assert plain.said(ASK)[0] == 405
            assert plain.said("", method="GET")[0] == 404
        assert not list(node.state.glob("*.control"))


@pytest.mark.parametrize("web", [None, f"basic_auth_users: {{me: {SECRET_HASH}}}"], ids=["nothing", "no TLS"])
def test_without_authentication_the_exporter_does_not_start(web: str | None, tmp_path: Path) -> None:
    """The flag without TLS and passwords is one line, and exit code 2."""
    flags = []
    if web is not None:
        (tmp_path / "web.yml").write_text(web)
        flags = [f"--web.config.file={tmp_path / 'web.yml'}"]
    done = subprocess.run(
        [
            EXPORTER,
            "--web.enable-profiling",
            "--web.listen-address=127.0.0.1:0",
            "--collector.disable-defaults",
            *flags,
        ],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == (
        "laggard-exporter: error: --web.enable-profiling needs a --web.config.file with TLS and passwords or client "
        "certificates: who may connect may slow training down\n"
    )
