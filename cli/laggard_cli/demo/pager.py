"""What Alertmanager calls: keeps the alerts that somebody would be woken for."""

from __future__ import annotations

import http.server
import json
import threading
from typing import Any


class Pager:
    """A webhook on loopback, from its making to :meth:`close`.

    Args:
        pages: gets the alerts as they come, each once, the newest last.
    """

    def __init__(self, pages: list[dict[str, Any]]) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                notification = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                # Alertmanager repeats a group as a whole when one alert of it changes.
                known = {(page["fingerprint"], page["startsAt"]) for page in pages}
                pages.extend(
                    alert
                    for alert in notification["alerts"]
                    if alert["status"] == "firing" and (alert["fingerprint"], alert["startsAt"]) not in known
                )
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
                """Say nothing: the demo's own display is on the terminal."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
