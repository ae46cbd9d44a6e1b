"""A dashboard: which host runs out of files."""

from __future__ import annotations

from dashboards.board import Board, Row
from dashboards.panels import Query, series, top

# {at}: which hosts are shown is decided at the end of the time that is shown.
_BY_HOST = "max by (cluster, host_name)"
_SHARE = f"{_BY_HOST} (host_file_descriptors{{at}}) / {_BY_HOST} (host_file_descriptors_limit{{at}})"

DESCRIPTORS = Board(
    "descriptors",
    "Open files",
    "Which host can hardly open more files?",
    [
        Row(
            "Hosts",
            [
                series(
                    "Open files",
                    "Share of the files that may be open, and the threshold of the alert.",
                    "percentunit",
                    Query(top(_SHARE), "{{host_name}} {{cluster}}"),
                    Query('max(laggard_threshold{name="descriptors_share"})', "threshold", limit=True),
                    most=1,
                ).span(24),
            ],
        ),
    ],
    variables=(),
)
