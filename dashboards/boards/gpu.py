"""GPUs and their nodes: what is lost, broken, hot, slow or idle, and which rank it hurts."""

from __future__ import annotations

from dashboards.board import GPU, Board, Row, Variable
from dashboards.boards.verdicts import verdict_list
from dashboards.panels import COARSE, GREEN, GREY, ORANGE, RED, Query, listing, newest, number, series

_GPU = 'uuid=~"$uuid"'
#: What stands out, of the GPUs that are chosen: the same in all plots. A query over time of thousands takes seconds.
_STANDS_OUT = (
    f'topk(2, max by (cluster, uuid) (gpu_temperature_celsius{{{_GPU}, sensor="gpu"}}))',
    f"topk(2, max by (cluster, uuid) (gpu_power_watts{{{_GPU}}}))",
    f"topk(2, max by (cluster, uuid) (gpu_memory_used_bytes{{{_GPU}}}))",
    f'bottomk(2, max by (cluster, uuid) (gpu_clock_hertz{{{_GPU}, clock="sm"}}))',
    f"bottomk(2, max by (cluster, uuid) (gpu_utilization_ratio{{{_GPU}}}))",
    f"topk(2, max by (cluster, uuid) (increase(gpu_pcie_replays_total{{{_GPU}}}[15m])) > 0)",
    f"topk(2, max by (cluster, uuid) (increase(gpu_nvlink_errors_total{{{_GPU}}}[15m])) > 0)",
    f"topk(2, max by (cluster, uuid) (increase(gpu_ecc_volatile_errors_total{{{_GPU}}}[15m])) > 0)",
    f'topk(8, max by (cluster, uuid) (ALERTS{{alertstate="firing", uuid!="", {_GPU}}}))',
)
_SHOWN = Variable("shown", "Shown", " or ".join(_STANDS_OUT), label_shown="uuid")
_MEDIAN = {"median of all": GREY}
_PLACE = "on (cluster, uuid) group_left (host_name, training_run, training_rank) " + newest(
    "cluster, uuid", "gpu:training_place:info"
)


def _lines(metric: str, labels: str = "") -> Query:
    """Return the GPUs that stand out."""
    return Query(f'max by (cluster, uuid) ({metric}{{uuid=~"$shown"{labels}}})', "{{uuid}}")


def _and_all(metric: str) -> tuple[Query, Query]:
    """Return the GPUs that stand out, and the median of all."""
    return _lines(metric), Query(f"quantile(0.5, max by (cluster, uuid) ({metric}{{{_GPU}}}))", "median of all")


GPUS = Board(
    "gpu",
    "GPUs and nodes",
    "Which GPU is lost, broken, hot, slow or idle, and which rank it hurts. Plots show the GPUs that stand out, in "
    "heat, power, memory, clock, idleness, errors or by a verdict: the same ones everywhere.",
    [
        Row(
            "Health",
            [
                number(
                    "GPUs",
                    "GPUs that the node exporters know.",
                    "none",
                    Query(f"count(group by (cluster, uuid) (gpu_up{{{_GPU}}}))", "GPUs"),
                    history=False,
                ),
                number(
                    "Lost",
                    "GPUs for which the driver does not answer.",
                    "none",
                    Query(f"count(max by (cluster, uuid) (gpu_up{{{_GPU}}}) == 0) or vector(0)", "lost"),
                    history=False,
                    steps=((None, GREEN), (1, RED)),
                ),
                number(
                    "Need a reset",
                    "GPUs of which the driver says that something must be done before they work again.",
                    "none",
                    Query(
                        "count(group by (cluster, uuid) "
                        f'(gpu_recovery_action{{{_GPU}, action!~"none|unknown"}} == 1)) or vector(0)',
                        "recovery",
                    ),
                    history=False,
                    steps=((None, GREEN), (1, RED)),
                ),
                number(
                    "XID errors, 1 day",
                    "Errors that the driver reported, without those that an application causes.",
                    "none",
                    Query(
                        "sum(max by (cluster, uuid, xid, tier) "
                        f'(increase(gpu_xid_errors_total{{{_GPU}, tier!="application"}}[1d]))) or vector(0)',
                        "XID",
                    ),
                    history=False,
                    steps=((None, GREEN), (1, RED)),
                    decimals=0,
                ),
                number(
                    "Memory errors, 1 day",
                    "Memory errors that could not be corrected.",
                    "none",
                    Query(
                        "sum(max by (cluster, uuid) "
                        f'(increase(gpu_ecc_volatile_errors_total{{{_GPU}, severity="uncorrected"}}[1d]))) '
                        "or vector(0)",
                        "errors",
                    ),
                    history=False,
                    steps=((None, GREEN), (1, RED)),
                    decimals=0,
                ),
                number(
                    "Clocks held down",
                    "GPUs that lost more than 5 % of the last five minutes to heat or power.",
                    "none",
                    Query(
                        f"count(gpu:gpu_clock_event_thermal:ratio{{{_GPU}}} > 0.05 or "
                        f"gpu:gpu_clock_event_power:ratio{{{_GPU}}} > 0.05) or vector(0)",
                        "held down",
                    ),
                    history=False,
                    steps=((None, GREEN), (1, ORANGE)),
                ),
                verdict_list(f', uuid!="", {_GPU}', "Verdicts on GPUs").height(6),
                listing(
                    "Slowest against their peers",
                    "Clock as a share of the median of the GPUs of the same run.",
                    Query(f"bottomk(50, gpu:gpu_clock_peers:ratio{{{_GPU}}} * {_PLACE})", "Clock"),
                    {
                        "uuid": "GPU",
                        "host_name": "Host",
                        "training_run": "Run",
                        "training_rank": "Rank",
                        "cluster": "Cluster",
                    },
                    unit="percentunit",
                    least_first=True,
                )
                .span(24)
                .height(6),
            ],
        ),
        Row(
            "Work",
            [
                series(
                    "Utilization",
                    "Share of the time in which any kernel ran. Waiting in a collective counts as a kernel.",
                    "percentunit",
                    _lines("gpu_utilization_ratio"),
                    most=1,
                ),
                series(
                    "Streaming multiprocessors",
                    "Share that was busy: unlike utilization it tells work from waiting.",
                    "percentunit",
                    *_and_all("gpu_sm_activity_ratio"),
                    colours=_MEDIAN,
                    most=1,
                ).max_data_points(COARSE),
                series(
                    "Tensor cores",
                    "Share of the time in which tensor cores worked.",
                    "percentunit",
                    *_and_all("gpu_tensor_activity_ratio"),
                    colours=_MEDIAN,
                    most=1,
                ).max_data_points(COARSE),
                series("Memory in use", "By all processes on it.", "bytes", _lines("gpu_memory_used_bytes")),
            ],
        ),
        Row(
            "Heat and power",
            [
                series("Temperature", "Of the chip.", "celsius", _lines("gpu_temperature_celsius", ', sensor="gpu"')),
                series("Power", "What a GPU draws.", "watt", _lines("gpu_power_watts")),
                series(
                    "Clock of the multiprocessors",
                    "One far below its peers makes a straggler.",
                    "hertz",
                    _lines("gpu_clock_hertz", ', clock="sm"'),
                ),
                series(
                    "Time lost to heat and power",
                    "Share of the time for which a reason held the clocks down, on the GPU of those shown where it is "
                    "most.",
                    "percentunit",
                    Query(
                        'max by (reason) (rate(gpu_clock_event_seconds_total{uuid=~"$shown"}[$__rate_interval]))',
                        "{{reason}}",
                    ),
                    most=0.1,
                ),
            ],
        ),
        Row(
            "Links and errors",
            [
                series(
                    "PCIe packets sent again",
                    "In five minutes.",
                    "none",
                    Query('max by (cluster, uuid) (increase(gpu_pcie_replays_total{uuid=~"$shown"}[5m]))', "{{uuid}}"),
                ),
                series(
                    "Errors of NVLink",
                    "In five minutes, of all links and kinds.",
                    "none",
                    Query(
                        "sum by (cluster, uuid) (max by (cluster, uuid, error) "
                        '(increase(gpu_nvlink_errors_total{uuid=~"$shown"}[5m])))',
                        "{{uuid}}",
                    ),
                ),
                series(
                    "Memory errors",
                    "In five minutes, the GPUs shown together.",
                    "none",
                    Query(
                        "sum by (severity) (max by (cluster, uuid, severity) "
                        '(increase(gpu_ecc_volatile_errors_total{uuid=~"$shown"}[5m])))',
                        "{{severity}}",
                    ),
                ),
                series(
                    "XID errors",
                    "In five minutes, by code, of all GPUs. Tiers are critical, warning and application.",
                    "none",
                    Query(
                        "topk(50, sum by (xid, tier) (max by (cluster, uuid, xid, tier) "
                        f"(increase(gpu_xid_errors_total{{{_GPU}}}[5m]))))",
                        "XID {{xid}} ({{tier}})",
                    ),
                ),
            ],
        ),
    ],
    variables=(GPU, _SHOWN),
)
