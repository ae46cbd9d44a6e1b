"""The ranks of a run beside each other: who works longer, who waits, on which host."""

from __future__ import annotations

from dashboards.board import Board, Row
from dashboards.panels import MOST_SERIES, PHASES, Query, heat_map, listing, series, threshold, top

#: The host of each rank, to name it in a legend.
_HOST = (
    'on (training_run, training_rank) group_left (host_name) run_rank:training_place:info{training_run="$training_run"}'
)
_OWN = 'run_rank:training_step_own_seconds:mean{{training_run="$training_run"}}{at}'
_SCORE = 'run_rank:training_straggler_score:ratio{training_run="$training_run"}'


def _most(of: str, shown: str) -> str:
    """Return a query for what is shown of the ranks with the highest score at the end."""
    return f"({of} and on (training_run, training_rank) topk({MOST_SERIES}, {shown} @ end()))"


RANKS = Board(
    "ranks",
    "Ranks",
    "Which rank works longer than its peers, in which phase, on which host, and who waits for it.",
    [
        Row(
            "Culprit first",
            [
                listing(
                    "Straggler score",
                    "Own time of a rank as a multiple of its peers', the highest first. A culprit is above the "
                    "threshold of TrainingStraggler and waits less than the others.",
                    Query(f"topk({MOST_SERIES}, {_SCORE} * {_HOST})", "Score"),
                    {"training_rank": "Rank", "host_name": "Host", "training_peer_group": "Peer group"},
                ).span(8),
                series(
                    "Straggler score over time",
                    "The ranks with the highest score at the end of the time shown.",
                    "none",
                    Query(
                        top('run_rank:training_straggler_score:ratio{{training_run="$training_run"}}{at}'),
                        "rank {{training_rank}}",
                    ),
                    threshold("straggler_score"),
                    most=1.5,
                )
                .span(16)
                .height(9),
                heat_map(
                    "Own time by rank",
                    "The ranks with the highest score: one bright line is a straggler, bright lines of one host are a "
                    "slow node, spots that roam are unbalanced data.",
                    "s",
                    Query(
                        _most('run_rank:training_step_own_seconds:mean{training_run="$training_run"}', _SCORE)
                        + f" * {_HOST}",
                        "rank {{training_rank}} {{host_name}}",
                    ),
                ),
                heat_map(
                    "Waiting by rank",
                    "Time in collectives: the culprit is the dark line, since the others wait for it. The longest "
                    "collective belongs to a victim.",
                    "s",
                    Query(
                        _most('run_rank:training_idle_seconds:mean{training_run="$training_run"}', _SCORE)
                        + f" * {_HOST}",
                        "rank {{training_rank}} {{host_name}}",
                    ),
                ),
            ],
        ),
        Row(
            "By phase and by host",
            [
                series(
                    "Excess over the peers by phase",
                    "How much longer than its peers' median a suspected rank takes for each phase.",
                    "s",
                    Query(
                        top('run_rank_phase:training_straggler_phase:margin{{training_run="$training_run"}}{at}', 24),
                        "rank {{training_rank}} {{training_phase}}",
                    ),
                ),
                series(
                    "Phases of the slowest rank",
                    "Mean time of each phase on the rank with the highest score at the end of the time shown.",
                    "s",
                    Query(
                        "sum by (training_phase) (rate(training_phase_duration_seconds_sum"
                        '{training_run="$training_run"}[$__rate_interval]) and on (training_run, training_rank) '
                        f"topk(1, {_SCORE} @ end())) / on () group_left () "
                        "sum(rate(training_step_duration_seconds_count"
                        '{training_run="$training_run"}[$__rate_interval]) and on (training_run, training_rank) '
                        f"topk(1, {_SCORE} @ end()))",
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
                    Query(f"max({_OWN.format(at='')})", "most"),
                    Query(f"quantile(0.95, {_OWN.format(at='')})", "p95"),
                    Query(f"quantile(0.5, {_OWN.format(at='')})", "median"),
                    Query(f"min({_OWN.format(at='')})", "least"),
                ).height(12),
            ],
        ),
    ],
)
