"""One run: what is wrong with it, since when, and what it costs."""

from __future__ import annotations

from dashboards.board import Board, Row
from dashboards.boards.verdicts import straggler_score, verdict_timeline
from dashboards.panels import BLUE, COARSE, GREEN, ORANGE, PHASES, RED, Query, number, series, threshold

RUN_BOARD = Board(
    "run",
    "Run",
    "What is wrong with one run, since when, who is the culprit, and what it costs.",
    [
        Row(
            "Now",
            [
                number(
                    "Ranks that report",
                    "Ranks of this run that report, as a share of those that it was started with.",
                    "percentunit",
                    Query(
                        'run:training_ranks_live:count{cluster="$cluster", training_run="$training_run"} '
                        '/ run:training_ranks_expected:max{cluster="$cluster", training_run="$training_run"}',
                        "ranks",
                    ),
                    steps=((None, RED), (1, GREEN)),
                ),
                number(
                    "Step, last minutes",
                    "Mean duration of a step without checkpoint and evaluation, over the last minute; over up to 30 "
                    "where steps are so long that a minute has fewer than 16.",
                    "s",
                    Query('run:training_step_seconds:mean{cluster="$cluster", training_run="$training_run"}', "step"),
                ),
                number(
                    "Goodput, last hour",
                    "Share of the ranks' time over the last hour that went into steps that count.",
                    "percentunit",
                    Query('run:training_goodput:ratio{cluster="$cluster", training_run="$training_run"}', "goodput"),
                    steps=((None, RED), (0.7, ORANGE), (0.9, GREEN)),
                    decimals=1,
                ),
                number(
                    "Slow-down, last minutes",
                    "How many times longer a step is than it would be if no rank waited for another: 1 / (1 - "
                    "imbalance), with the imbalance of Shares of a step.",
                    "suffix:\u00d7",
                    Query('run:training_slowdown:ratio{cluster="$cluster", training_run="$training_run"}', "slow-down"),
                    steps=((None, GREEN), (1.05, ORANGE), (1.2, RED)),
                    decimals=2,
                ),
                number(
                    "Since the newest step",
                    "Time since any rank finished a step, as the node exporter sees it.",
                    "s",
                    Query(
                        'min(training_process_last_step_age_seconds{cluster="$cluster", training_run="$training_run"})',
                        "age",
                    ),
                    steps=((None, GREEN), (60, ORANGE), (300, RED)),
                    history=False,
                ),
                number(
                    "Cost of an hour",
                    "What the run costs now, from the price of a GPU-hour that was configured.",
                    "currencyUSD",
                    Query('run:training_cost:rate{cluster="$cluster", training_run="$training_run"} * 3600', "an hour"),
                    decimals=2,
                ),
                verdict_timeline(', cluster="$cluster", training_run="$training_run"').span(24),
            ],
        ),
        Row(
            "Steps",
            [
                series(
                    "What a step consists of",
                    "Mean time of each phase over all ranks; they add up to the step. Communication is mostly waiting "
                    "for the slowest rank: laggard / Ranks tells which.",
                    "s",
                    Query(
                        "sum by (training_phase) (max by (training_rank, training_phase) "
                        '(rate(training_phase_duration_seconds_sum{cluster="$cluster", '
                        'training_run="$training_run"}[$__rate_interval]))) '
                        "/ on () group_left () sum(max by (training_rank) "
                        '(rate(training_step_duration_seconds_count{cluster="$cluster", training_run="$training_run"}'
                        "[$__rate_interval])))",
                        "{{training_phase}}",
                    ),
                    stacked=True,
                    colours=PHASES,
                ).max_data_points(COARSE),
                series(
                    "Step and own time",
                    "The step is the same on all ranks, so it names nobody. Own time is what a rank does itself: one "
                    "that stands out holds the others up.",
                    "s",
                    Query('run:training_step_seconds:mean{cluster="$cluster", training_run="$training_run"}', "step"),
                    Query(
                        'max(run_rank:training_step_own_seconds:mean{cluster="$cluster", '
                        'training_run="$training_run"})',
                        "most own",
                    ),
                    Query(
                        'quantile(0.5, run_rank:training_step_own_seconds:mean{cluster="$cluster", '
                        'training_run="$training_run"})',
                        "median own",
                    ),
                    colours={"step": BLUE, "most own": ORANGE, "median own": GREEN},
                ).max_data_points(COARSE),
                straggler_score(),
                series(
                    "Against the past",
                    "Own time as a multiple of what it was earlier in this run, and in earlier runs of the workload.",
                    "none",
                    Query(
                        'run:training_step_own_regression:ratio{cluster="$cluster", training_run="$training_run"}',
                        "{{training_reference}}",
                    ),
                    threshold("regression_ratio"),
                    most=1.2,
                ),
            ],
        ),
        Row(
            "Lost time and results",
            [
                series(
                    "Lost time by cause, last hour",
                    "Share of the ranks' time, at each time over the hour before it, by cause; what is missing to the "
                    "top is goodput. Waiting is the imbalance of Shares of a step, over that hour and with its "
                    "start-up.",
                    "percentunit",
                    Query(
                        'run_reason:training_time_lost:ratio{cluster="$cluster", training_run="$training_run"} >= 0',
                        "{{training_reason}}",
                    ),
                    stacked=True,
                    most=0.2,
                ),
                series(
                    "Shares of a step, last minutes",
                    "Patterns of the whole run, each as a share of the step. Each has an alert of its own. Over a "
                    "minute, or up to 30 where steps are long; garbage collection and recompilation over five, "
                    "checkpoints over an hour.",
                    "percentunit",
                    Query(
                        'run:training_data_share:ratio{cluster="$cluster", training_run="$training_run"}',
                        "waiting for data",
                    ),
                    Query(
                        'run:training_communication_floor_share:ratio{cluster="$cluster", '
                        'training_run="$training_run"}',
                        "transfer",
                    ),
                    Query(
                        'run:training_imbalance_share:ratio{cluster="$cluster", training_run="$training_run"}',
                        "imbalance",
                    ),
                    Query(
                        'run:training_gc_share:ratio{cluster="$cluster", training_run="$training_run"}',
                        "garbage collection",
                    ),
                    Query(
                        'run:training_checkpoint_share:ratio{cluster="$cluster", training_run="$training_run"}',
                        "checkpoints",
                    ),
                    Query(
                        'run:training_recompiled_share:ratio{cluster="$cluster", training_run="$training_run"}',
                        "recompilation",
                    ),
                    most=0.2,
                ),
                series(
                    "Loss",
                    "As the training script gave it to laggard.log, the mean over the ranks.",
                    "none",
                    Query('run:training_loss:mean{cluster="$cluster", training_run="$training_run"}', "loss"),
                    colours={"loss": BLUE},
                ),
                series(
                    "Samples",
                    "Samples a second, of all ranks, as given to laggard.log.",
                    "none",
                    Query(
                        'run:training_samples:rate{cluster="$cluster", training_run="$training_run"}',
                        "samples a second",
                    ),
                    colours={"samples a second": BLUE},
                ),
            ],
        ),
    ],
)
