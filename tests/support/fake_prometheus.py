"""A server that answers as Prometheus does, with what a test says: quicker than rules that have to fire."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Generator, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

Series = Sequence[tuple[Mapping[str, str], float]]


def firing(name: str, run: str, rank: str = "", severity: str = "warning") -> dict[str, Any]:
    """Return an alert that fires."""
    annotations = dict.fromkeys(("summary", "description", "recommendation", "runbook_url"), "text")
    labels = {"alertname": name, "severity": severity, "training_run": run, "training_rank": rank}
    since = "2026-01-01T00:00:00Z"
    return {"labels": labels, "annotations": annotations, "state": "firing", "activeAt": since, "value": "1.5"}


def _rule(alert: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rule of an alert as Thanos query has it: the labels of its server are those of the rule alone."""
    labels = alert["labels"]
    given = {name: text for name, text in labels.items() if name in ("cluster", "site")}
    own = {name: text for name, text in labels.items() if name not in given}
    rule = {"type": "alerting", "name": labels["alertname"], "query": "", "labels": given, "annotations": {}}
    return {**rule, "alerts": [{**alert, "labels": own}]}


@contextlib.contextmanager
def fake_prometheus(
    series: Mapping[str, Series | str], alerts: Sequence[Mapping[str, Any]], failing: Sequence[str] = ()
) -> Generator[str]:
    """Serve; a query gets the series of the first key that it contains, or is refused by a text. Yield the address.

    The rules of ``failing`` are in a group of the pack's, and fail.
    """
    failed = [{"name": name, "type": "recording", "health": "err", "lastError": "limit"} for name in failing]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url, refused = urlsplit(self.path), ""
            if url.path.endswith("/alerts"):
                data: dict[str, Any] = {"alerts": list(alerts)}
            elif url.path.endswith("/rules"):
                group = {"name": "laggard-scores", "rules": failed}
                data = {"groups": [group if failed else {"rules": [_rule(alert) for alert in alerts]}]}
            elif not url.path.endswith("/query"):
                self.send_response(404)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            else:
                query = parse_qs(url.query)["query"][0]
                found = next((each for key, each in series.items() if key in query), ())
                if isinstance(found, str):
                    found, refused = (), found
                data = {"result": [{"metric": dict(labels), "value": [0, str(value)]} for labels, value in found]}
            status = {"status": "error", "error": refused} if refused else {"status": "success", "data": data}
            body = json.dumps(status).encode()
            self.send_response(422 if refused else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join(20)
        server.server_close()
