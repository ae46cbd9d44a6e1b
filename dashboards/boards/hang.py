"""A run that stands still: which rank did not arrive, and who waits for it."""

from __future__ import annotations

from dashboards.board import CLUSTER, RUN, Board, Row, Variable
from dashboards.boards.verdicts import verdict_timeline
from dashboards.panels import (
    FEW,
    GREEN,
    GREY,
    MOST_SERIES,
    ORANGE,
    PURPLE,
    RED,
    Query,
    listing,
    newest,
    series,
    timeline,
)

_RUN = 'cluster="$cluster", training_run="$training_run"'
_RANK = "cluster, training_run, training_rank"
#: What has ended cleanly is gone as well, and nobody's fault.
_ENDED = '(max by (training_rank) (training_process_state{{{}, training_state="finished"}}) == 1)'
#: The ranks that panels show: first those that died, then those that are stopped, did not arrive, or wait for nobody.
#: A query over time of every rank of thousands would take seconds.
_SUSPECTS = Variable(
    "suspects",
    "Ranks",
    f"topk({MOST_SERIES}, "
    f"(max by (training_rank) (training_process_up{{{_RUN}}}) == 0) + 4 unless {_ENDED.format(_RUN)} "
    f"or 3 * max by (training_rank) (training_process_stopped{{{_RUN}}} == 1) "
    f"or 2 * max by (training_rank) (run_rank:training_process_behind:info{{{_RUN}}}) "
    f"or 1 - max by (training_rank) (training_process_in_collective{{{_RUN}}}) "
    # Which of them is outside of collectives is said of ranks that stand still.
    f"or 0 * max by (training_rank) (training_process_up{{{_RUN}}}))",
    label_shown="training_rank",
)
_SHOWN = f'{_RUN}, training_rank=~"$suspects"'
_DEAD = {"1": ("dead", RED), "2": ("stopped", PURPLE)}

HANG = Board(
    "hang",
    "Hang",
    "Which rank of a stuck run did not arrive, where it is, and who waits for it. All of it comes from state files, "
    "through the node exporter, so it is there while the ranks themselves answer nothing.",
    [
        Row(
            "Who",
            [
                verdict_timeline(f', {_RUN}, training_kind="hang"').span(24),
                listing(
                    "Ranks that the others wait for",
                    "Ranks that are not inside of the collective in which the others wait, with where they are.",
                    Query(
                        f"topk({MOST_SERIES}, run_rank:training_process_behind:info{{{_RUN}}} "
                        f"* on ({_RANK}) group_left (host_name, training_phase) "
                        f"{newest(_RANK, f'run_rank:training_process_place:last{{{_RUN}}}')} "
                        f"* on ({_RANK}) group_left () "
                        f"max by ({_RANK}) (training_process_phase_age_seconds{{{_RUN}}}))",
                        "For",
                    ),
                    {"training_rank": "Rank", "host_name": "Host", "training_phase": "Phase"},
                    unit="s",
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
                    "Dead: the process is gone though its state file says that it runs. Stopped: the kernel holds it, "
                    "as after SIGSTOP.",
                    Query(
                        f"topk({MOST_SERIES}, (2 * max by (training_rank) (training_process_stopped{{{_RUN}}} == 1) "
                        f"or max by (training_rank) (1 - training_process_up{{{_RUN}}}) == 1) "
                        f"unless {_ENDED.format(_RUN)})",
                        "State",
                    ),
                    {"training_rank": "Rank"},
                    values=_DEAD,
                ).span(8),
            ],
        ),
        Row(
            "Where",
            [
                timeline(
                    "In a collective",
                    "Waits inside: the rank has started a collective that it has not seen finish. While a run hangs, "
                    "all wait inside but the culprit. Of ranks that stand still.",
                    Query(
                        f"max by (training_rank) (training_process_in_collective{{{_SHOWN}}})",
                        "rank {{training_rank}}",
                    ),
                    {"0": ("outside", GREEN), "1": ("waits inside", ORANGE)},
                ).height(12),
                series(
                    "Collectives behind the first rank",
                    "How many collectives of a process group a rank that stands still has started less than the one "
                    "that started most.",
                    "none",
                    Query(
                        f"topk({FEW}, max by (training_process_group) "
                        f"(training_process_collective_sequence{{{_RUN}}}) - on (training_process_group) "
                        "group_right () max by (training_rank, training_process_group) "
                        f"(training_process_collective_sequence{{{_SHOWN}}}))",
                        "rank {{training_rank}} {{training_process_group}}",
                    ),
                ).height(12),
                timeline(
                    "State of the processes",
                    "As the kernel and the state files say.",
                    Query(
                        f"3 * {_ENDED.format(_SHOWN)} "
                        f"or max by (training_rank) (1 + (training_process_stopped{{{_SHOWN}}} == 1) "
                        f"or 1 - training_process_up{{{_SHOWN}}})",
                        "rank {{training_rank}}",
                    ),
                    {"0": ("lives", GREEN), **_DEAD, "3": ("ended cleanly", GREY)},
                ),
                series(
                    "Age of the newest step and its limit",
                    "TrainingStalled fires above the line, unless the ranks are in a checkpoint or an evaluation.",
                    "s",
                    Query(
                        f"topk({FEW}, max by (training_rank) (training_process_last_step_age_seconds{{{_SHOWN}}}))",
                        "rank {{training_rank}}",
                    ),
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
    variables=(CLUSTER, RUN, _SUSPECTS),
    since="now-30m",
)
