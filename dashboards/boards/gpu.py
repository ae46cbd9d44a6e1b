"""GPUs and their nodes: what is lost, broken, hot, slow or idle, and which rank it hurts."""

from __future__ import annotations

from dashboards.board import GPU, Board, Row
from dashboards.panels import GREEN, ORANGE, RED, Query, listing, number, series, top

_GPU = 'uuid=~"$uuid"'
_PLACE = "on (uuid) group_left (host_name, training_run, training_rank) topk by (uuid) (1, gpu:training_place:info)"


def _lines(metric: str, labels: str = "") -> Query:
    """Return the GPUs with the highest values."""
    return Query(top(f"{metric}{{{{{_GPU}{labels}}}}}{{at}}"), "{{uuid}}")


GPUS = Board(
    "gpu",
    "GPUs and nodes",
    "Which GPU is lost, broken, hot, slow or idle, and which rank it hurts.",
    [
        Row(
            "Health",
            [
                number(
                    "GPUs",
                    "GPUs that the node exporters know.",
                    "none",
                    Query(f"count(gpu_up{{{_GPU}}})", "GPUs"),
                ),
                number(
                    "Lost",
                    "GPUs for which the driver does not answer.",
                    "none",
                    Query(f"count(gpu_up{{{_GPU}}} == 0) or vector(0)", "lost"),
                    steps=((None, GREEN), (1, RED)),
                ),
                number(
                    "Need a reset",
                    "GPUs of which the driver says that something must be done before they work again.",
                    "none",
                    Query(
                        "count(max by (uuid) "
                        f'(gpu_recovery_action{{{_GPU}, action!~"none|unknown"}}) == 1) or vector(0)',
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
                        f'sum(increase(gpu_xid_errors_total{{{_GPU}, tier!="application"}}[1d])) or vector(0)', "XID"
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
                        f'sum(increase(gpu_ecc_volatile_errors_total{{{_GPU}, severity="uncorrected"}}[1d])) '
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
                    steps=((None, GREEN), (1, ORANGE)),
                ),
                listing(
                    "Verdicts on GPUs",
                    "Alerts that name a GPU, with the rank and run that it hurts.",
                    Query(
                        "topk(50, max by (alertname, uuid, host_name, training_run, training_rank) "
                        f'(ALERTS{{alertstate="firing", uuid!="", {_GPU}}} * 0 + 1))',
                        "Fires",
                    ),
                    {
                        "alertname": "Verdict",
                        "uuid": "GPU",
                        "host_name": "Host",
                        "training_run": "Run",
                        "training_rank": "Rank",
                    },
                ),
                listing(
                    "Slowest against their peers",
                    "Clock as a share of the median of the GPUs of the same run.",
                    Query(f"bottomk(50, gpu:gpu_clock_peers:ratio{{{_GPU}}} * {_PLACE})", "Clock"),
                    {"uuid": "GPU", "host_name": "Host", "training_run": "Run", "training_rank": "Rank"},
                    unit="percentunit",
                    least_first=True,
                ),
            ],
        ),
        Row(
            "Work",
            [
                series(
                    "Utilization",
                    "Share of the time in which any kernel ran: the least used GPUs. Waiting in a collective counts "
                    "as a kernel.",
                    "percentunit",
                    Query(
                        f"gpu_utilization_ratio{{{_GPU}}} and bottomk(12, gpu_utilization_ratio{{{_GPU}}} @ end())",
                        "{{uuid}}",
                    ),
                    most=1,
                ),
                series(
                    "Streaming multiprocessors",
                    "Share that was busy, by quantile over the GPUs: unlike utilization it tells work from waiting.",
                    "percentunit",
                    Query(f"max(gpu_sm_activity_ratio{{{_GPU}}})", "most"),
                    Query(f"quantile(0.5, gpu_sm_activity_ratio{{{_GPU}}})", "median"),
                    Query(f"min(gpu_sm_activity_ratio{{{_GPU}}})", "least"),
                    most=1,
                ),
                series(
                    "Tensor cores",
                    "Share of the time in which tensor cores worked, over the GPUs.",
                    "percentunit",
                    Query(f"max(gpu_tensor_activity_ratio{{{_GPU}}})", "most"),
                    Query(f"quantile(0.5, gpu_tensor_activity_ratio{{{_GPU}}})", "median"),
                    Query(f"min(gpu_tensor_activity_ratio{{{_GPU}}})", "least"),
                    most=1,
                ),
                series("Memory in use", "The fullest GPUs.", "bytes", _lines("gpu_memory_used_bytes")),
            ],
        ),
        Row(
            "Heat and power",
            [
                series(
                    "Temperature", "The hottest GPUs.", "celsius", _lines("gpu_temperature_celsius", ', sensor="gpu"')
                ),
                series("Power", "The GPUs that draw most.", "watt", _lines("gpu_power_watts")),
                series(
                    "Clock of the multiprocessors",
                    "The slowest GPUs.",
                    "hertz",
                    Query(
                        f'gpu_clock_hertz{{{_GPU}, clock="sm"}} and '
                        f'bottomk(12, gpu_clock_hertz{{{_GPU}, clock="sm"}} @ end())',
                        "{{uuid}}",
                    ),
                ),
                series(
                    "Time lost to heat and power",
                    "Share of the time for which a reason held the clocks down, mean over the GPUs.",
                    "percentunit",
                    Query(
                        f"avg by (reason) (rate(gpu_clock_event_seconds_total{{{_GPU}}}[$__rate_interval]))",
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
                    "In five minutes, the worst GPUs.",
                    "none",
                    Query(top(f"increase(gpu_pcie_replays_total{{{{{_GPU}}}}}[5m]{{at}})"), "{{uuid}}"),
                ),
                series(
                    "Errors of NVLink",
                    "In five minutes, the worst GPUs.",
                    "none",
                    Query(top(f"increase(gpu_nvlink_errors_total{{{{{_GPU}}}}}[5m]{{at}})"), "{{uuid}} {{error}}"),
                ),
                series(
                    "Memory errors",
                    "In five minutes, over all GPUs.",
                    "none",
                    Query(
                        f"sum by (severity) (increase(gpu_ecc_volatile_errors_total{{{_GPU}}}[5m]))",
                        "{{severity}}",
                    ),
                ),
                series(
                    "XID errors",
                    "In five minutes, by code. Tiers are critical, warning and application.",
                    "none",
                    Query(
                        f"topk(50, sum by (xid, tier) (increase(gpu_xid_errors_total{{{_GPU}}}[5m])))",
                        "XID {{xid}} ({{tier}})",
                    ),
                ),
            ],
        ),
    ],
    variables=(GPU,),
)
