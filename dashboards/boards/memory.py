"""Memory of a run's ranks, and Python's garbage collection."""

from __future__ import annotations

from dashboards.board import Board, Row
from dashboards.panels import BLUE, COARSE, ORANGE, RED, Query, listing, series, threshold, top

_RUN = 'cluster="$cluster", training_run="$training_run"'


def _band(kind: str) -> tuple[Query, ...]:
    whose = kind.partition("_")[0]
    selector = f'training_memory_usage_bytes{{{_RUN}, training_memory_kind="{kind}"}}'
    return (
        Query(f"max({selector})", "most"),
        Query(f"quantile(0.5, max by (training_rank) ({selector}))", "median"),
        Query(f"min({selector})", "least"),
        Query(
            f'min(training_memory_limit_bytes{{{_RUN}, training_memory_kind="{whose}"}})',
            "capacity",
            limit=True,
        ),
    )


_LINES = {"most": ORANGE, "median": BLUE}

MEMORY = Board(
    "memory",
    "Memory and garbage collection",
    "Which memory grows, when it ends, and what garbage collection costs.",
    [
        Row(
            "Leaks",
            [
                listing(
                    "Time until memory ends",
                    "Where the least of a window rises window after window: the rank and memory that end first stand "
                    "on top. Empty means that nothing grows steadily.",
                    Query(f"bottomk(50, run_rank_memory:training_memory_left_seconds:estimate{{{_RUN}}})", "Left"),
                    {"training_rank": "Rank", "host_name": "Host", "training_memory_kind": "Memory"},
                    unit="s",
                    least_first=True,
                ),
                series(
                    "Steady growth",
                    "How much the least of a window rises from one to the next. Garbage that comes and goes does not "
                    "show here.",
                    "bytes",
                    Query(
                        top(f"run_rank_memory:training_memory_growth_bytes:min{{{{{_RUN}}}}}{{at}}"),
                        "rank {{training_rank}} {{training_memory_kind}}",
                    ),
                ).height(9),
            ],
        ),
        Row(
            "Device",
            [
                series(
                    "Allocated to tensors",
                    "Over all ranks.",
                    "bytes",
                    *_band("device_allocated")[:3],
                    colours=_LINES,
                ).max_data_points(COARSE),
                series(
                    "Reserved by the allocator",
                    "Over all ranks. Far above what is allocated, while allocations are tried again, is fragmentation.",
                    "bytes",
                    *_band("device_reserved"),
                    colours=_LINES,
                ).max_data_points(COARSE),
                series(
                    "Fragmentation",
                    "Share of the reserved memory that no tensor uses, where allocations had to be tried again.",
                    "percentunit",
                    Query(
                        top(f"run_rank:training_memory_fragmentation:ratio{{{{{_RUN}}}}}{{at}}"),
                        "rank {{training_rank}}",
                    ),
                    threshold("memory_fragmentation_share"),
                    most=0.5,
                ),
                series(
                    "Allocations tried again, and out of memory",
                    "In an hour, over all ranks.",
                    "none",
                    Query(
                        "sum(max by (training_rank) "
                        f"(increase(training_memory_allocation_retries_total{{{_RUN}}}[1h])))",
                        "tried again",
                    ),
                    Query(
                        f"sum(max by (training_rank) (increase(training_memory_out_of_memory_total{{{_RUN}}}[1h])))",
                        "out of memory",
                    ),
                    colours={"tried again": ORANGE, "out of memory": RED},
                ),
            ],
        ),
        Row(
            "Host",
            [
                series(
                    "Processes of the ranks",
                    "Resident memory of a rank's own process, over all ranks.",
                    "bytes",
                    *_band("host_rss"),
                    colours=_LINES,
                ).max_data_points(COARSE),
                series(
                    "Data workers",
                    "Resident memory of a rank's data workers together, over all ranks.",
                    "bytes",
                    *_band("worker_rss")[:3],
                    colours=_LINES,
                ).max_data_points(COARSE),
                series(
                    "Garbage collection",
                    "Share of a step for which Python stood still. TrainingGarbageCollection fires above the line.",
                    "percentunit",
                    Query(f"run:training_gc_share:ratio{{{_RUN}}}", "all ranks"),
                    threshold("gc_share"),
                    most=0.1,
                ),
                series(
                    "Garbage collection by generation",
                    "Seconds a second, all ranks. The oldest generation is what hurts: gc.freeze() after the model is "
                    "built, or collections at a moment of one's own choice.",
                    "percentunit",
                    Query(
                        "sum by (training_gc_generation) (max by (training_rank, training_gc_generation) "
                        f"(rate(training_gc_duration_seconds_total{{{_RUN}}}[$__rate_interval])))",
                        "generation {{training_gc_generation}}",
                    ),
                ),
            ],
        ),
    ],
    since="now-6h",
)
