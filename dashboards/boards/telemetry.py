"""Whether laggard itself works: what watches the runs, and what that costs."""

from __future__ import annotations

from dashboards.board import Board, Row
from dashboards.panels import COARSE, GREEN, ORANGE, RED, Query, listing, number, series, top


def _of_each_library(counter: str, label: str) -> tuple[Query, ...]:
    return tuple(
        Query(
            f"topk(12, sum by ({label}) (max by (cluster, instance, {label}) "
            f"(rate(laggard_exporter_{library}_{counter}[5m]))))",
            f"{{{{{label}}}}} {suffix}".rstrip(),
        )
        for library, suffix in (("nvml", ""), ("amd_smi", "(AMD)"))
    )


TELEMETRY = Board(
    "telemetry",
    "Telemetry",
    "Whether what watches the runs works itself: rules, exporters, ranks that report, and what it costs them.",
    [
        Row(
            "Now",
            [
                number(
                    "Rules",
                    "1 while a version of the rule pack runs; 2 means that two do, with different names.",
                    "none",
                    Query("count(group by (version) (laggard_rules_info)) or vector(0)", "packs"),
                    steps=((None, RED), (1, GREEN), (2, ORANGE)),
                ),
                number(
                    "Exporters",
                    "Node exporters that answer.",
                    "none",
                    Query(
                        "count(group by (cluster, instance) (laggard_exporter_build_info)) or vector(0)", "exporters"
                    ),
                ),
                number(
                    "Failed collectors",
                    "Collectors of a node exporter whose newest run failed.",
                    "none",
                    Query(
                        "count(group by (cluster, instance, collector) "
                        "(laggard_exporter_collector_success == 0)) or vector(0)",
                        "failed",
                    ),
                    steps=((None, GREEN), (1, ORANGE)),
                ),
                number(
                    "Silent ranks",
                    "Ranks of a run of which no metrics arrive.",
                    "none",
                    Query(
                        "sum(clamp_min(run:training_ranks_expected:max - on (cluster, training_run) "
                        "run:training_ranks_live:count, 0)) or vector(0)",
                        "silent",
                    ),
                    steps=((None, GREEN), (1, ORANGE)),
                ),
            ],
        ),
        Row(
            "Whom verdicts do not reach",
            [
                series(
                    "Ranks that are not compared",
                    "Live ranks that no verdict reaches, by reason: none of their metrics arrives, no step of theirs "
                    "counts, the run has too few steps, they are scraped too rarely, or they cannot tell waiting from "
                    "work.",
                    "none",
                    Query(
                        "topk(12, run_reason:training_ranks_uncompared:count)",
                        "{{training_run}} {{training_reason}} {{cluster}}",
                    ),
                ),
                listing(
                    "Which these are",
                    "Ranks that no verdict reaches, of runs that have at most 16 of them.",
                    Query("topk(50, run_rank_reason:training_rank_uncompared:info)", "Ranks"),
                    {"training_run": "Run", "cluster": "Cluster", "training_rank": "Rank", "training_reason": "Reason"},
                ).height(8),
            ],
        ),
        Row(
            "Cost in the training process",
            [
                series(
                    "Time of hooks",
                    "Share of a training thread's time, the ranks with the most. The budget is 0.5 %, unless "
                    "LAGGARD_BUDGET sets another.",
                    "percentunit",
                    Query(
                        top(
                            "max by (cluster, training_run, training_rank) "
                            "(rate(training_telemetry_self_time_seconds_total[5m]{at}))"
                        ),
                        "{{training_run}} rank {{training_rank}} {{cluster}}",
                    ),
                    most=0.005,
                ).max_data_points(COARSE),
                series(
                    "Events that were dropped",
                    "A second, by reason, all runs. What is dropped is counted and never guessed.",
                    "none",
                    Query(
                        "sum by (training_reason) (max by (cluster, training_run, training_rank, training_reason) "
                        "(rate(training_telemetry_dropped_total[5m])))",
                        "{{training_reason}}",
                    ),
                ),
                series(
                    "Ranks that gave something up for the budget",
                    "Ranks by what they gave up: 0 is nothing.",
                    "none",
                    Query(
                        'count_values("level", max by (cluster, training_run, training_rank) '
                        "(training_telemetry_level))",
                        "level {{level}}",
                    ),
                    stacked=True,
                ).max_data_points(COARSE),
                listing(
                    "Signals that cannot be measured",
                    "Ranks that say so themselves, by run and signal; rules that need the signal abstain.",
                    Query(
                        "topk(50, count by (cluster, training_run, training_signal) "
                        "(group by (cluster, training_run, training_rank, training_signal) "
                        "(training_signal_available == 0)))",
                        "Ranks",
                    ),
                    {"training_run": "Run", "cluster": "Cluster", "training_signal": "Signal"},
                ).height(8),
            ],
        ),
        Row(
            "Node exporters",
            [
                series(
                    "Time of a collector",
                    "Of its newest run, the slowest on any node.",
                    "s",
                    Query(
                        "topk(12, max by (collector) (laggard_exporter_collector_duration_seconds))", "{{collector}}"
                    ),
                ),
                series(
                    "State files",
                    "By what became of them, all nodes.",
                    "none",
                    Query(
                        "sum by (result) (max by (cluster, instance, result) (laggard_exporter_state_files))",
                        "{{result}}",
                    ),
                    stacked=True,
                ),
                series(
                    "Failed calls of GPU libraries",
                    "A second, by function, all nodes.",
                    "none",
                    *_of_each_library("errors_total", "function"),
                ),
                series(
                    "Values that cannot be true",
                    "A second: what a GPU library said and was not believed.",
                    "none",
                    *_of_each_library("values_rejected_total", "metric"),
                ),
            ],
        ),
    ],
    variables=(),
)
