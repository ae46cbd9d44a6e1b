"""Ranks that serve a page of metrics, in the test's own process: each has a state file that names its port."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from laggard.shared.statefile import Facts, StateWriter
from tests.exporter.support import fresh

#: What each of these ranks serves: every kind of family, and a series that does not say whose it is.
PAGE = """\
# HELP training_steps_total Steps.
# TYPE training_steps_total counter
training_steps_total{{training_rank="{rank}",training_run="{run}"}} {steps}
# HELP training_step_duration_seconds Step \\\\ time.
# TYPE training_step_duration_seconds histogram
training_step_duration_seconds_bucket{{le="1.0",training_rank="{rank}",training_run="{run}"}} 3.0
training_step_duration_seconds_bucket{{le="+Inf",training_rank="{rank}",training_run="{run}"}} 4.0
training_step_duration_seconds_sum{{training_rank="{rank}",training_run="{run}"}} 4.5
training_step_duration_seconds_count{{training_rank="{rank}",training_run="{run}"}} 4.0
# HELP training_gc_duration_seconds Without bounds.
# TYPE training_gc_duration_seconds summary
training_gc_duration_seconds_sum{{training_rank="{rank}",training_run="{run}"}} 1e-05
training_gc_duration_seconds_count{{training_rank="{rank}",training_run="{run}"}} 1.0
# HELP target_info Target metadata
# TYPE target_info gauge
target_info{{service_name="train"}} 1.0
"""


@dataclass
class ServingRank:
    """A rank and what it answers."""

    facts: Facts
    writer: StateWriter
    page: str
    seconds: float = 0
    """How long it takes to answer."""

    @property
    def port(self) -> int:
        return self.facts.metrics_port


@contextlib.contextmanager
def serving_rank(folder: Path, rank: int, run: str = "run-1", page: str = PAGE) -> Generator[ServingRank, None, None]:
    """Serve a page as a rank of a run; the state file is gone at the end."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            time.sleep(serving.seconds)
            body = serving.page.encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    facts = replace(fresh(), run=run, rank=rank, local_rank=rank, metrics_port=server.server_port)
    writer = StateWriter(folder, facts)
    serving = ServingRank(facts, writer, page.format(rank=rank, run=run, steps=10 + rank))
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield serving
    finally:
        writer.close(unlink=True)
        server.shutdown()
        server.server_close()
