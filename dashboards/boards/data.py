"""The data pipeline of a run: whether steps wait for batches, and whether for workers or for storage."""

from __future__ import annotations

from dashboards.board import Board, Row
from dashboards.panels import BLUE, COARSE, ORANGE, Query, series, threshold, top

_RUN = 'cluster="$cluster", training_run="$training_run"'

DATA = Board(
    "data",
    "Data pipeline",
    "Whether steps wait for batches; and if so, whether workers are too few, processors are busy or storage is slow.",
    [
        Row(
            "Do steps wait for data?",
            [
                series(
                    "Share of a step that waits for data",
                    "Mean over the ranks. TrainingInputBound fires above the line.",
                    "percentunit",
                    Query(f"run:training_data_share:ratio{{{_RUN}}}", "waiting for data"),
                    threshold("input_bound_share"),
                    most=0.3,
                ),
                series(
                    "Batches that are ready",
                    "Batches that workers have finished and that wait to be fetched. At 0 the rank waits for its "
                    "workers; always full means that data is no problem.",
                    "none",
                    Query(f"min(training_dataloader_queue_length{{{_RUN}}})", "fewest of all ranks"),
                    Query(
                        f"quantile(0.5, max by (training_rank) (training_dataloader_queue_length{{{_RUN}}}))",
                        "median rank",
                    ),
                    colours={"fewest of all ranks": ORANGE, "median rank": BLUE},
                ),
                series(
                    "Time for a batch: needed and available",
                    "A worker's time for one batch over the number of workers is what they supply; the own time of a "
                    "step is what there is. Supply above it means input-bound.",
                    "s",
                    Query(f"max(run_rank:training_data_supply_seconds:mean{{{_RUN}}})", "supply, slowest rank"),
                    Query(f"quantile(0.5, run_rank:training_data_supply_seconds:mean{{{_RUN}}})", "supply, median"),
                    Query(f"run:training_step_seconds:mean{{{_RUN}}}", "step"),
                ).max_data_points(COARSE),
                series(
                    "Waiting for data, tail",
                    "Quantiles over the last 256 steps, of the rank where they are largest.",
                    "s",
                    Query(
                        "max by (training_quantile) "
                        f'(training_phase_duration_quantile_seconds{{{_RUN}, training_phase="data"}})',
                        "{{training_quantile}}",
                    ),
                ),
            ],
        ),
        Row(
            "Why?",
            [
                series(
                    "What workers do",
                    "Share of the workers' time on a processor, and share in which a worker was occupied at all. Busy "
                    "on processors: more workers, or cheaper decoding. Occupied without processors: storage.",
                    "percentunit",
                    Query(f"run:training_data_worker_occupied:ratio{{{_RUN}}}", "occupied"),
                    Query(f"run:training_data_worker_cpu:ratio{{{_RUN}}}", "on a processor"),
                    most=1,
                ),
                series(
                    "Workers by state",
                    "As the kernel sees them; disk is a wait that nothing interrupts.",
                    "none",
                    Query(
                        f"sum by (state) (max by (training_rank, state) (training_process_workers{{{_RUN}}}))",
                        "{{state}}",
                    ),
                    stacked=True,
                ),
                series(
                    "Pressure on the hosts",
                    "Share of the time in which tasks of a host waited for a resource, on the host where it is most.",
                    "percentunit",
                    Query(f"run:host_pressure:max{{{_RUN}}}", "{{resource}}"),
                    threshold("host_pressure_share"),
                    most=0.5,
                ),
                series(
                    "Latency of disks",
                    "Mean time of an operation, waiting included, on the disks of the run's hosts where it is longest.",
                    "s",
                    Query(
                        top(
                            "max by (cluster, host_name, device, direction) "
                            "(rate(host_disk_operation_seconds_total[5m]{at}) "
                            "/ (rate(host_disk_operations_total[5m]{at}) > 0) "
                            f"and on (cluster, host_name) run_rank:training_place:info{{{{{_RUN}}}}}{{at}})"
                        ),
                        "{{host_name}} {{device}} {{direction}}",
                    ),
                ),
                series(
                    "Time of a worker for a batch",
                    "Mean of the ranks where it is longest.",
                    "s",
                    Query(
                        top(
                            "max by (training_rank) "
                            f"(rate(training_dataloader_fetch_duration_seconds_sum{{{{{_RUN}}}}}[5m]{{at}}) / "
                            f"(rate(training_dataloader_fetch_duration_seconds_count{{{{{_RUN}}}}}[5m]{{at}}) > 0))"
                        ),
                        "rank {{training_rank}}",
                    ),
                ).max_data_points(COARSE),
                series(
                    "Start of an epoch",
                    "Share of the time that goes into first batches: workers that are started anew. "
                    "persistent_workers=True keeps them.",
                    "percentunit",
                    Query(f"run:training_epoch_start_share:ratio{{{_RUN}}}", "epoch start"),
                    threshold("epoch_start_share"),
                    most=0.1,
                ),
            ],
        ),
    ],
)
