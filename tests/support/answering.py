"""A server whose every answer a test chooses."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True)
class Answer:
    """What is sent, after ``wait`` seconds."""

    body: bytes
    code: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    wait: float = 0.0


@dataclass
class Answering:
    """A server and what it answers to a path and its parameters."""

    url: str
    answer: Callable[[str, dict[str, str]], Answer]


@contextlib.contextmanager
def answering() -> Generator[Answering]:
    """Serve on loopback."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        #: Headers and body leave in one piece: the kernel holds a second small one back for 40 ms.
        wbufsize = -1

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.do_GET()

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            found = given.answer(url.path, {name: each[0] for name, each in parse_qs(url.query).items()})
            ended.wait(found.wait)
            self.send_response(found.code)
            for name, text in found.headers.items():
                self.send_header(name, text)
            self.send_header("Content-Length", str(len(found.body)))
            self.end_headers()
            with contextlib.suppress(ConnectionError):
                self.wfile.write(found.body)

        def log_message(self, format: str, *args: object) -> None: ...

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """Say nothing: a client may leave in the middle of an answer."""

    ended = threading.Event()
    server = Server(("127.0.0.1", 0), Handler)
    given = Answering(f"http://127.0.0.1:{server.server_port}", lambda _, __: Answer(b""))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield given
    finally:
        ended.set()
        server.shutdown()
        thread.join(20)
        server.server_close()
