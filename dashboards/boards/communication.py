"""Communication of a run: transfer that no balance removes, and waiting that balance would."""

from __future__ import annotations

from dashboards.board import Board, Row
from dashboards.panels import BLUE, COARSE, GREEN, ORANGE, Query, series, threshold, top

_RUN = 'cluster="$cluster", training_run="$training_run"'
_OPERATION = "training_collective_operation"
_WAITS = f'{_RUN}, training_phase="communication"'

COMMUNICATION = Board(
    "communication",
    "Communication",
    "How much of a step is transfer, how much is waiting for others, and whether a network is at fault.",
    [
        Row(
            "Transfer or waiting?",
            [
                series(
                    "Shares of a step, last minutes",
                    "Transfer is the least that any rank waits: overlap, bucket size or compression shorten it. In a "
                    "pipeline it is bubble too, and TrainingCommunicationBound abstains. Imbalance is waiting for "
                    "slower ranks.",
                    "percentunit",
                    Query(f"run:training_communication_floor_share:ratio{{{_RUN}}}", "transfer"),
                    Query(f"run:training_imbalance_share:ratio{{{_RUN}}}", "imbalance"),
                    threshold("communication_bound_share", "threshold of transfer"),
                    most=0.4,
                    colours={"transfer": BLUE, "imbalance": ORANGE},
                ),
                series(
                    "Time in collectives by rank",
                    "Over all ranks. A wide band is imbalance: the rank with the least is the slow one.",
                    "s",
                    Query(f"max(run_rank_phase:training_wait_seconds:mean{{{_WAITS}}})", "most"),
                    Query(f"quantile(0.5, run_rank_phase:training_wait_seconds:mean{{{_WAITS}}})", "median"),
                    Query(f"min(run_rank_phase:training_wait_seconds:mean{{{_WAITS}}})", "least"),
                    colours={"most": ORANGE, "median": BLUE, "least": GREEN},
                ).max_data_points(COARSE),
                series(
                    "Imbalance of a step",
                    "How long ranks of a peer group wait for one another in the usual step, and how much window means "
                    "of own time differ. Imbalance without a difference of means roams: TrainingDataImbalance.",
                    "s",
                    Query(f"run:training_imbalance_seconds:median{{{_RUN}}}", "of a step"),
                    Query(f"max(run_peer_group:training_step_own_seconds:spread{{{_RUN}}})", "of means"),
                ),
                series(
                    "Bursts",
                    "Variation of the time in collectives, as a share. Bursty with equal own times points at the "
                    "network.",
                    "percentunit",
                    Query(f"run:training_communication_seconds:spread{{{_RUN}}}", "communication"),
                    threshold("network_share"),
                    most=0.5,
                ),
            ],
        ),
        Row(
            "Collectives",
            [
                series(
                    "Time by operation",
                    "Mean time for which a training thread was blocked by one collective.",
                    "s",
                    Query(
                        f"sum by ({_OPERATION}) (max by (training_rank, {_OPERATION}) "
                        f"(rate(training_collective_duration_seconds_sum{{{_RUN}}}[$__rate_interval]))) / "
                        f"sum by ({_OPERATION}) (max by (training_rank, {_OPERATION}) "
                        f"(rate(training_collective_duration_seconds_count{{{_RUN}}}[$__rate_interval])) > 0)",
                        "{{training_collective_operation}}",
                    ),
                ),
                series(
                    "Volume by operation",
                    "Input that all ranks handed to collectives.",
                    "binBps",
                    Query(
                        f"sum by ({_OPERATION}) (max by (training_rank, {_OPERATION}) "
                        f"(rate(training_collective_io_bytes_total{{{_RUN}}}[$__rate_interval])))",
                        "{{training_collective_operation}}",
                    ),
                ),
            ],
        ),
        Row(
            "Network",
            [
                series(
                    "Errors of links",
                    "Errors a second of the InfiniBand or RoCE ports of the run's hosts.",
                    "none",
                    Query(top(f"run_host:host_link_errors:rate{{{{{_RUN}}}}}{{at}}"), "{{host_name}}"),
                    threshold("link_errors_per_second"),
                ),
                series(
                    "Congestion",
                    "Share of packets that carry a mark of congestion.",
                    "percentunit",
                    Query(top(f"run_host:host_congestion_packets:ratio{{{{{_RUN}}}}}{{at}}"), "{{host_name}}"),
                    threshold("congestion_share"),
                    most=0.01,
                ),
                series(
                    "Sent by host",
                    "Ports of the run's hosts with the most traffic.",
                    "binBps",
                    Query(
                        top(
                            "max by (cluster, host_name, device, port) "
                            "(rate(host_infiniband_transmit_bytes_total[5m]{at}) "
                            f"and on (cluster, host_name) run_rank:training_place:info{{{{{_RUN}}}}}{{at}})"
                        ),
                        "{{host_name}} {{device}}:{{port}}",
                    ),
                ),
                series(
                    "NVLink",
                    "GPUs of the run with the most traffic over NVLink.",
                    "binBps",
                    Query(
                        top(
                            "max by (cluster, uuid) (rate(gpu_nvlink_transmit_bytes_total[5m]{at}) "
                            f"and on (cluster, uuid) gpu:training_place:info{{{{{_RUN}}}}}{{at}})"
                        ),
                        "{{uuid}}",
                    ),
                ),
            ],
        ),
    ],
)
