"""All runs: which lose time, and why."""

from __future__ import annotations

from dashboards.board import Board, Row
from dashboards.boards.verdicts import verdict_list
from dashboards.panels import GREEN, ORANGE, RED, Query, listing, number, series, top

#: Ranks of a run with its workload; of a rank in two places the newer counts.
_WORKLOAD = (
    "topk by (cluster, training_run) (1, max by (cluster, training_run, training_workload) "
    "(last_over_time(training_rank_start_timestamp_seconds[5m]))) ^ 0"
)
#: GPU-hours that a run lost in the time shown, by reason: its share of the time, times its ranks.
_LOST = (
    # What is not known is NaN, and would make the sum so.
    "sum_over_time((run_reason:training_time_lost:ratio >= 0)[$__range:5m]) / 12 "
    "* on (cluster, training_run) group_left () last_over_time(run:training_ranks_expected:max[$__range])"
)

FLEET = Board(
    "fleet",
    "Fleet",
    "Which runs lose time, to which cause, and what needs a person now.",
    [
        Row(
            "Now",
            [
                number(
                    "Runs",
                    "Runs of which at least one rank reports.",
                    "none",
                    Query("count(run:training_ranks_expected:max) or vector(0)", "runs"),
                ),
                number(
                    "Ranks",
                    "Ranks that report, of all runs.",
                    "none",
                    Query("sum(run:training_ranks_live:count) or vector(0)", "ranks"),
                ),
                number(
                    "Goodput, last hour",
                    "Share of the ranks' time since the start of their runs that went into steps that count, over the "
                    "last hour and all runs, weighted by their ranks.",
                    "percentunit",
                    Query(
                        "sum(run:training_goodput:ratio * on (cluster, training_run) run:training_ranks_expected:max) "
                        "/ sum(run:training_ranks_expected:max and on (cluster, training_run) "
                        "run:training_goodput:ratio)",
                        "goodput",
                    ),
                    steps=((None, RED), (0.7, ORANGE), (0.9, GREEN)),
                    decimals=1,
                ),
                number(
                    "Critical verdicts",
                    "Critical alerts that fire.",
                    "none",
                    Query('count(ALERTS{alertstate="firing", severity="critical"}) or vector(0)', "critical"),
                    steps=((None, GREEN), (1, RED)),
                ),
                number(
                    "Warnings",
                    "Warnings that fire.",
                    "none",
                    Query('count(ALERTS{alertstate="firing", severity="warning"}) or vector(0)', "warnings"),
                    steps=((None, GREEN), (1, ORANGE)),
                ),
                number(
                    "GPUs lost",
                    "GPUs for which the driver does not answer.",
                    "none",
                    Query("count(max by (cluster, uuid) (gpu_up) == 0) or vector(0)", "lost"),
                    history=False,
                    steps=((None, GREEN), (1, RED)),
                ),
                # The watchdog always fires, so that its silence is heard.
                verdict_list(', alertname!="LaggardWatchdog"'),
            ],
        ),
        Row(
            "Where the time goes",
            [
                listing(
                    "Lost GPU-hours by workload and cause, in the time shown",
                    "What the runs of a workload lost in the time shown, by cause. Waiting is for stragglers and "
                    "unbalanced data; stall is time without any step; repeated are steps that a restart threw away. A "
                    "run counts as many GPUs as it has ranks.",
                    Query(
                        "topk(50, sum by (training_workload, training_reason) "
                        f"({_LOST} * on (cluster, training_run) group_left (training_workload) {_WORKLOAD}))",
                        "GPU-hours",
                    ),
                    {"training_workload": "Workload", "training_reason": "Cause"},
                    unit="none",
                ),
                series(
                    "Share of the fleet's time by cause, last hour",
                    "What all runs lost in the hour before each time, weighted by their ranks; what is missing to the "
                    "top is goodput.",
                    "percentunit",
                    Query(
                        "sum by (training_reason) ((run_reason:training_time_lost:ratio >= 0) * on "
                        "(cluster, training_run) "
                        "group_left () run:training_ranks_expected:max) / on () group_left () "
                        "sum(run:training_ranks_expected:max and on (cluster, training_run) "
                        "run:training_goodput:ratio)",
                        "{{training_reason}}",
                    ),
                    stacked=True,
                    most=0.2,
                ),
                series(
                    "Goodput of the runs that lose most, last hour",
                    "Share of the ranks' time in the hour before each time that went into steps that count. Below 0.9 "
                    "the alert TrainingGoodputLow says what takes it.",
                    "percentunit",
                    Query(
                        "run:training_goodput:ratio and bottomk(12, run:training_goodput:ratio @ end())",
                        "{{training_run}} {{cluster}}",
                    ),
                    most=1,
                ),
                series(
                    "GPUs that nobody makes use of",
                    "GPUs that runs hold and that compute nothing, on average over five minutes.",
                    "none",
                    Query(top("run:gpu_idle_seconds:rate{at}"), "{{training_run}} {{cluster}}"),
                ),
            ],
        ),
    ],
    variables=(),
    since="now-6h",
)
