"""A run that stands still: which rank did not arrive, and who waits for it."""

from __future__ import annotations

from dashboards.board import Board, Row
from dashboards.boards.verdicts import verdict_timeline
from dashboards.panels import GREEN, MOST_SERIES, ORANGE, PURPLE, RED, Query, listing, series, timeline, top

_RUN = 'training_run="$training_run"'

HANG = Board(
    "hang",
    "Hang",
    "Which rank of a stuck run did not arrive, where it is, and who waits for it. All of it comes from state files, "
    "through the node exporter, so it is there while the ranks themselves answer nothing.",
    [
        Row(
            "Who",
            [
                verdict_timeline(f', {_RUN}, alertname=~"TrainingStalled|TrainingRank.*|TrainingRestartLoop"').span(24),
                listing(
                    "Ranks that the others wait for",
                    "Ranks that are not inside of the collective in which the others wait, with where they are.",
                    Query(
                        f"topk({MOST_SERIES}, run_rank:training_process_behind:info{{{_RUN}}} * on (training_run, "
                        "training_rank) group_left (host_name, training_phase) "
                        f"run_rank:training_process_place:last{{{_RUN}}} ^ 0)",
                        "Behind",
                    ),
                    {"training_rank": "Rank", "host_name": "Host", "training_phase": "Phase"},
                ).span(8),
                listing(
                    "Longest without a step",
                    "Ranks by the age of their newest step.",
                    Query(
                        f"topk({MOST_SERIES}, max by (training_rank) "
                        f"(training_process_last_step_age_seconds{{{_RUN}}}))",
                        "Age",
                    ),
                    {"training_rank": "Rank"},
                    unit="s",
                ).span(8),
                listing(
                    "Dead or stopped",
                    "1: the process is gone though its state file says that it runs. 2: the kernel holds it stopped.",
                    Query(
                        f"topk({MOST_SERIES}, 2 * max by (training_rank) (training_process_stopped{{{_RUN}}} == 1) "
                        f"or max by (training_rank) (1 - training_process_up{{{_RUN}}}) == 1)",
                        "State",
                    ),
                    {"training_rank": "Rank"},
                ).span(8),
            ],
        ),
        Row(
            "Where",
            [
                timeline(
                    "In a collective",
                    "Orange: the rank has started a collective that it has not seen finish. While a run hangs, all are "
                    "orange but the culprit.",
                    Query(
                        f"topk({MOST_SERIES}, max by (training_rank) (training_process_in_collective{{{_RUN}}}))",
                        "rank {{training_rank}}",
                    ),
                    {"0": ("outside", GREEN), "1": ("inside", ORANGE)},
                ).height(12),
                series(
                    "Collectives behind the first rank",
                    "How many collectives of a process group a rank has started less than the one that started most.",
                    "none",
                    Query(
                        "topk(12, max by (training_process_group) "
                        f"(training_process_collective_sequence{{{_RUN}}}) - on (training_process_group) "
                        f"group_right () training_process_collective_sequence{{{_RUN}}})",
                        "rank {{training_rank}} {{training_process_group}}",
                    ),
                ).height(12),
                timeline(
                    "State of the processes",
                    "Green runs, red is dead, purple is stopped. The ranks with the worst state at any time.",
                    Query(
                        f"topk({MOST_SERIES}, max by (training_rank) (1 + (training_process_stopped{{{_RUN}}} == 1) "
                        f"or 1 - training_process_up{{{_RUN}}}))",
                        "rank {{training_rank}}",
                    ),
                    {"0": ("lives", GREEN), "1": ("dead", RED), "2": ("stopped", PURPLE)},
                ),
                series(
                    "Age of the newest step and its limit",
                    "TrainingStalled fires above the line, unless the ranks are in a checkpoint or an evaluation.",
                    "s",
                    Query(top(f"training_process_last_step_age_seconds{{{{{_RUN}}}}}{{at}}"), "rank {{training_rank}}"),
                    Query(f"run:training_stall_limit_seconds:max{{{_RUN}}}", "threshold", limit=True),
                ).height(9),
                listing(
                    "First collective that is not done",
                    "By the flight recorder of each stalled rank, where torch has one: the number of the collective in "
                    "its process group, and what the rank calls there. Who is not listed, or calls something else, is "
                    "waited for.",
                    Query(
                        f"topk({MOST_SERIES}, max by (training_rank, training_process_group, "
                        f"training_collective_operation) (training_process_hang_pending{{{_RUN}}}))",
                        "Number",
                    ),
                    {
                        "training_rank": "Rank",
                        "training_process_group": "Process group",
                        "training_collective_operation": "Collective",
                    },
                ).span(24),
            ],
        ),
    ],
    since="now-30m",
)
