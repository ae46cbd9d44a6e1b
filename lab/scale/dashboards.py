"""How long the queries of each dashboard take on a server under load."""

from __future__ import annotations

import time

from dashboards.queries import CHOSEN, PANELS, concrete
from lab.scale.prometheus import Server

#: A plot has a point in so many seconds at most.
_STEP = 15.0


def dashboard_seconds(server: Server, run: str, shown: float) -> dict[str, float]:
    """Return how long all queries of each dashboard take, one after the other, as Grafana asks for the last seconds.

    Raises:
        CommandError: the server refuses a query, or takes longer than a minute.
    """
    found: dict[str, float] = {}
    end = time.time()
    for panel in PANELS:
        step = max(_STEP, shown / panel.json.get("maxDataPoints", shown / _STEP))
        for target in panel.targets:
            began = time.perf_counter()
            chosen = {name: _chosen(server, name, run) for name in CHOSEN if f"${name}" in target["expr"]}
            query = concrete(target["expr"], training_run=run, __range=f"{shown:.0f}s", **chosen)
            if target.get("instant"):
                server.ask(query)
            else:
                server.ask(query, start=end - shown, end=end, step=step)
            found[panel.uid] = found.get(panel.uid, 0.0) + time.perf_counter() - began
    return found


def _chosen(server: Server, name: str, run: str) -> str:
    """Return what Grafana puts in a variable's place: each value that its query finds."""
    query, label = CHOSEN[name]
    values = dict.fromkeys(each["metric"][label] for each in server.ask(concrete(query, training_run=run)))
    return f"({'|'.join(values)})"
