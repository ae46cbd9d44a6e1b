"""The ranks of a run beside each other: who works longer, who waits, on which host."""

from __future__ import annotations

from dashboards.board import Board, Row
from dashboards.boards.verdicts import straggler_score
from dashboards.panels import MOST_SERIES, PHASES, Query, heat_map, listing, series

#: The host of each rank, to name it in a legend.
_HOST = (
    'on (training_run, training_rank) group_left (host_name) run_rank:training_place:info{training_run="$training_run"}'
)
_OWN = 'run_rank:training_step_own_seconds:mean{training_run="$training_run"}'
_IDLE = 'run_rank:training_idle_seconds:mean{training_run="$training_run"}'
#: The rank with the longest own time at the end.
_SLOWEST = f"and on (training_run, training_rank) topk(1, {_OWN} @ end())"


def _rows(of: str) -> Query:
    """Return a row for each of the ranks with the longest own time at the end: the culprit is among them."""
    chosen = f"topk({MOST_SERIES}, {_OWN} @ end())"
    return Query(
        f"({of} and on (training_run, training_rank) {chosen}) * {_HOST}",
        "rank {{training_rank}} {{host_name}}",
    )


RANKS = Board(
    "ranks",
    "Ranks",
    "Which rank works longer than its peers, in which phase, on which host, and who waits for it.",
    [
        Row(
            "Culprit first",
            [
                listing(
                    "Own time now",
                    "What a rank does itself in a step, the longest first: data, copies, forward, backward, optimizer "
                    "and other. The others wait for the rank on top.",
                    Query(f"topk({MOST_SERIES}, {_OWN} * {_HOST})", "Own time"),
                    {"training_rank": "Rank", "host_name": "Host", "training_peer_group": "Peer group"},
                    unit="s",
                ).span(8),
                straggler_score().span(16).height(9),
                heat_map(
                    "Own time by rank",
                    "The ranks with the longest own time: one bright line is a straggler, bright lines of one host are "
                    "a slow node, spots that roam are unbalanced data.",
                    "s",
                    _rows(_OWN),
                ),
                heat_map(
                    "Waiting by rank",
                    "Time in collectives of the same ranks: the culprit is the dark line, since the others wait for "
                    "it. The longest collective belongs to a victim.",
                    "s",
                    _rows(_IDLE),
                ),
            ],
        ),
        Row(
            "By phase and by host",
            [
                series(
                    "Excess over the peers by phase",
                    "How much longer a suspected rank takes for a phase than its peers on average.",
                    "s",
                    Query(
                        'topk(24, run_rank_phase:training_phase_seconds:mean{training_run="$training_run"} '
                        "- on (training_run, training_peer_group, training_phase) group_left () "
                        'run_peer_group_phase:training_phase_seconds:mean{training_run="$training_run"} > 0)',
                        "rank {{training_rank}} {{training_phase}}",
                    ),
                ),
                series(
                    "Phases of the slowest rank",
                    "Mean time of each phase on the rank with the longest own time at the end of the time shown.",
                    "s",
                    Query(
                        "sum by (training_phase) (rate(training_phase_duration_seconds_sum"
                        f'{{training_run="$training_run"}}[$__rate_interval]) {_SLOWEST}) / on () group_left () '
                        "sum(rate(training_step_duration_seconds_count"
                        f'{{training_run="$training_run"}}[$__rate_interval]) {_SLOWEST})',
                        "{{training_phase}}",
                    ),
                    stacked=True,
                    colours=PHASES,
                ),
                heat_map(
                    "Own time by host",
                    "The longest own time that most ranks of a host exceed: one bright line is a slow node.",
                    "s",
                    Query(
                        f"topk({MOST_SERIES}, max by (host_name) "
                        '(run_peer_group_host:training_step_own_seconds:most{training_run="$training_run"}))',
                        "{{host_name}}",
                    ),
                ),
                series(
                    "Own time: the whole distribution",
                    "Over all ranks of the run. A wide band without one rank above it is jitter or unbalanced data.",
                    "s",
                    Query(f"max({_OWN})", "most"),
                    Query(f"quantile(0.95, {_OWN})", "p95"),
                    Query(f"quantile(0.5, {_OWN})", "median"),
                    Query(f"min({_OWN})", "least"),
                ).height(12),
            ],
        ),
    ],
)
