"""The ranks of a run beside each other: who works longer, who waits, on which host."""

from __future__ import annotations

from dashboards.board import CLUSTER, RUN, Board, Row, Variable
from dashboards.boards.verdicts import straggler_score
from dashboards.panels import (
    COARSE,
    MOST_SERIES,
    PHASES,
    STRAGGLER_SCORE,
    Query,
    heat_map,
    listing,
    newest,
    series,
    top,
)

_RUN = 'cluster="$cluster", training_run="$training_run"'
_OWN = f"run_rank:training_step_own_seconds:mean{{{_RUN}}}"
#: The ranks that panels show. A query over time of every rank of thousands would take seconds.
_SLOWEST = Variable(
    "slowest",
    "Ranks",
    f"topk({MOST_SERIES}, run_rank:training_step_own_seconds:compared{{{_RUN}}})",
    label_shown="training_rank",
)
_SHOWN = f'{_RUN}, training_rank=~"$slowest"'
_WAITS = f'{_SHOWN}, training_phase="communication"'
#: What the ranks of the fastest peer group need: a rank that is slow stands out against it, and so does a slow stage.
_PEERS = (
    "/ on (cluster, training_run) group_left () "
    f"min by (cluster, training_run) (run_peer_group:training_step_own_seconds:reference{{{_RUN}}})"
)
#: Colours begin at what peers need and are bright from the alert's threshold on, so that a few per cent stay dark.
_COLOURS = {"least": 1.0, "most": 1 + 1.5 * (STRAGGLER_SCORE - 1)}
#: The rank with the longest own time at the end.
_FIRST = (
    f"and on (cluster, training_run, training_rank) topk(1, "
    f"run_rank:training_step_own_seconds:mean{{{_SHOWN}}} @ end())"
)


def _on_its_host(of: str, shown: str) -> str:
    """Return a query for ranks with the host of each, to name it in a legend."""
    labels = "cluster, training_run, training_rank"
    return f"{of} * on ({labels}) group_left (host_name) {newest(labels, f'run_rank:training_place:info{{{shown}}}')}"


def _rows(of: str) -> Query:
    """Return a row for each of the ranks shown."""
    return Query(_on_its_host(of, _SHOWN), "rank {{training_rank}} {{host_name}}")


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
                    Query(_on_its_host(f"topk({MOST_SERIES}, {_OWN})", _RUN), "Own time"),
                    {"training_rank": "Rank", "host_name": "Host", "training_peer_group": "Peer group"},
                    unit="s",
                ).span(8),
                straggler_score().span(16).height(9),
                heat_map(
                    "Own time by rank, as a multiple of the peers'",
                    "The ranks with the longest own time. 1 is what ranks of the fastest peer group need; green and "
                    "yellow are beyond the threshold of TrainingStraggler. One bright line is a straggler, bright "
                    "lines of one host are a slow node, of one stage a slow stage, spots that roam are unbalanced "
                    "data.",
                    "suffix:\u00d7",
                    _rows(f"run_rank:training_step_own_seconds:compared{{{_SHOWN}}} {_PEERS}"),
                    **_COLOURS,
                ),
                heat_map(
                    "Waiting by rank, as a share of the step",
                    "Time in collectives of the same ranks: the culprit is the dark line among bright ones, since the "
                    "others wait for it. The longest collective belongs to a victim.",
                    "percentunit",
                    _rows(
                        f"run_rank_phase:training_wait_seconds:mean{{{_WAITS}}} / on (cluster, "
                        f"training_run) group_left () "
                        f"run:training_step_seconds:mean{{{_RUN}}}"
                    ),
                    least=0,
                    most=0.5,
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
                        'topk(24, run_rank_phase:training_phase_seconds:mean{cluster="$cluster", '
                        'training_run="$training_run"} '
                        "- on (cluster, training_run, training_peer_group, training_phase) group_left () "
                        'run_peer_group_phase:training_phase_seconds:mean{cluster="$cluster", '
                        'training_run="$training_run"} > 0)',
                        "rank {{training_rank}} {{training_phase}}",
                    ),
                ),
                series(
                    "Phases of the slowest rank",
                    "Mean time of each phase on the rank with the longest own time at the end of the time shown.",
                    "s",
                    Query(
                        "max by (training_phase) (rate(training_phase_duration_seconds_sum"
                        f"{{{_SHOWN}}}[$__rate_interval]) {_FIRST}) / on () group_left () "
                        f"max(rate(training_step_duration_seconds_count{{{_SHOWN}}}[$__rate_interval]) {_FIRST})",
                        "{{training_phase}}",
                    ),
                    stacked=True,
                    colours=PHASES,
                ),
                heat_map(
                    "Own time by host, as a multiple of the peers'",
                    "What most ranks of a host exceed, over what ranks of their peer group need: one bright line is a "
                    "slow node. Colours are those of the ranks.",
                    "suffix:\u00d7",
                    Query(
                        top(
                            "max by (cluster, host_name) (run_peer_group_host:training_step_own_seconds:most"
                            f"{{{{{_RUN}}}}}{{at}} / on (cluster, training_run, training_peer_group) group_left () "
                            f"run_peer_group:training_step_own_seconds:reference{{{{{_RUN}}}}}{{at}})",
                            MOST_SERIES,
                        ),
                        "{{host_name}}",
                    ),
                    **_COLOURS,
                ),
                series(
                    "Own time: the whole distribution",
                    "Over all ranks of the run. A wide band without one rank above it is jitter or unbalanced data.",
                    "s",
                    Query(f"max({_OWN})", "most"),
                    Query(f"quantile(0.5, {_OWN})", "median"),
                    Query(f"min({_OWN})", "least"),
                )
                .max_data_points(COARSE)
                .height(12),
            ],
        ),
    ],
    variables=(CLUSTER, RUN, _SLOWEST),
)
