"""A run of many ranks for measuring cost: every series that rules read, of ranks, exporters and GPUs, made at once.

Values follow straight lines, so that a scrape of a million series takes milliseconds; what the rules make of runs is
measured elsewhere, with a model that steps (model/steps.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
from numpy.typing import NDArray

from lab.evaluation.model.blocks import Array
from lab.evaluation.model.target import EPOCH, Target
from laggard._log import WATCHED
from laggard.shared.environment import PROMETHEUS_PORT
from laggard.shared.metrics import EXCLUSION_REASONS, QUANTILES, SIGNALS
from laggard.shared.phases import OWN_PHASES, QUANTILE_PHASES, Phase, RankState
from laggard_exporter.nvml.table import CLOCK_EVENT_BITS
from laggard_exporter.web.address import PORT

#: Seconds of a step: the rank's own phases, the transfer, and what comes once in a while.
_OWN = dict(zip(sorted(OWN_PHASES), (0.02, 0.02, 0.02, 0.15, 0.27, 0.02), strict=True))
_TRANSFER = 0.03
_PAUSES = {Phase.CHECKPOINT: 0.005, Phase.EVALUATION: 0.002}
_STEP = sum(_OWN.values()) + _TRANSFER + sum(_PAUSES.values())
#: Ranks on a host, moments of an interval at which ranks are scraped, and the last for exporters.
_PER_HOST, _PARTS = 8, 3
_GIB = 2.0**30
#: From then on one rank in a thousand is slow, by half of its own time.
_SLOW_FROM, _SLOW_EACH, _SLOW = 120.0, 1000, 1.5

#: Name, labels, value at the beginning, growth in a second, and its change when slow ranks become slow.
_Row = tuple[str, dict[str, str], Array | float, Array | float, Array | float]


def targets(ranks: int, read_by_rules: Collection[str]) -> list[Target]:
    """Return what is scraped of one run: its ranks in parts, and its hosts' exporters."""
    chance = np.random.default_rng(1)
    numbers = np.arange(ranks)
    own = [*_steps(ranks, chance), *_beside_steps(ranks), *_memory_and_numbers(ranks, chance)]
    kinds = [(own, numbers[part::_PARTS], False) for part in range(_PARTS)]
    kinds.append(([*_exported(ranks, chance), *_devices(ranks, chance), *_device_health()], numbers, True))
    return [
        _target([row for row in rows if row[0] in read_by_rules], ranks, chosen, exported=exported, offset=3.7 * place)
        for place, (rows, chosen, exported) in enumerate(kinds)
    ]


def _target(rows: list[_Row], ranks: int, chosen: NDArray[np.int64], *, exported: bool, offset: float) -> Target:
    def values(columns: list[Array | float]) -> Array:
        return np.array([np.broadcast_to(each, ranks)[chosen] for each in columns]).ravel()

    base = values([row[2] for row in rows])
    growth = values([row[3] for row in rows])
    change = values([row[4] for row in rows])

    def read(time: float) -> Array:
        return base + growth * time + change * max(0.0, time - _SLOW_FROM)

    series = [_line(name, labels, int(rank), exported=exported) for name, labels, *_ in rows for rank in chosen]
    return Target(series=series, read=read, offset=offset, marks=True)


def _line(name: str, labels: dict[str, str], rank: int, *, exported: bool) -> str:
    host = f"node-{rank // _PER_HOST}"
    found = {"instance": f"{host}:{PORT if exported else PROMETHEUS_PORT + rank % _PER_HOST}", "job": "laggard"}
    if not name.startswith("gpu_") or name == "gpu_workload_info":
        found |= {"training_run": "cost", "training_rank": str(rank)}
    for label, value in labels.items():
        found[label] = {"HOST": host, "GPU": f"GPU-{rank:08x}-4d2e-11ef-9d7f-0242ac120002"}.get(value, value)
    return "\t".join([name, *(part for pair in found.items() for part in pair)])


def _rank(
    name: str, amount: Array | float, growth: Array | float = 0.0, change: Array | float = 0.0, /, **labels: str
) -> _Row:
    return f"training_{name}", {f"training_{key}": word for key, word in labels.items()}, amount, growth, change


def _device(name: str, amount: Array | float, growth: float = 0.0, /, **labels: str) -> _Row:
    return f"gpu_{name}", {"uuid": "GPU", **labels}, amount, growth, 0.0


def _steps(ranks: int, chance: np.random.Generator) -> Iterator[_Row]:
    """Yield what each rank says of its steps."""
    slow = (np.arange(ranks) % _SLOW_EACH == 1) * 1.0
    later = _STEP + (_SLOW - 1) * sum(_OWN.values())
    before, after = 1 / _STEP, 1 / later

    def counted(name: str, each: Array | float, then: Array | float | None = None, /, **labels: str) -> _Row:
        """Grow by so much in a step, and by another amount in the steps behind the change."""
        then = each if then is None else then
        growth = np.asarray(each) * before
        return _rank(name, 0.0, growth, np.asarray(then) * after - growth, **labels)

    spread = 1 + 0.01 * np.array(chance.standard_normal(ranks))
    usual = {phase: seconds * spread for phase, seconds in _OWN.items()}
    own = sum(usual.values())
    then = {**usual, Phase.FORWARD: usual[Phase.FORWARD] + slow * (_SLOW - 1) * own}
    own_then = sum(then.values())
    wait, wait_then = _STEP - sum(_PAUSES.values()) - own, later - sum(_PAUSES.values()) - own_then
    phases: list[tuple[Phase, Array | float, Array | float]] = [(phase, usual[phase], then[phase]) for phase in usual]
    phases += [(phase, seconds, seconds) for phase, seconds in _PAUSES.items()]
    phases.append((Phase.COMMUNICATION, wait, wait_then))

    for name in ("step_duration_seconds_count", "step_own_duration_seconds_count"):
        yield counted(name, 1.0)
    yield counted("step_duration_seconds_sum", _STEP, later)
    yield counted("step_own_duration_seconds_sum", own, own_then)
    for phase, seconds, seconds_then in phases:
        yield counted("phase_duration_seconds_sum", seconds, seconds_then, phase=phase.label)
        yield counted("phase_duration_seconds_count", 1.0, phase=phase.label)
        for place, quantile in enumerate(QUANTILES):
            if phase in QUANTILE_PHASES:
                yield _rank(
                    "phase_duration_quantile_seconds",
                    seconds * (1 + 0.05 * place),
                    phase=phase.label,
                    quantile=quantile,
                )
    for name in ("steps_total", "dataloader_fetch_duration_seconds_count"):
        yield counted(name, 1.0)
    yield counted("dataloader_fetch_duration_seconds_sum", 0.5)
    yield _rank("communication_floor_seconds", np.minimum(wait, _TRANSFER))


def _beside_steps(ranks: int) -> Iterator[_Row]:
    """Yield what each rank says beside."""
    yield _rank("dataloader_worker_cpu_time_seconds_total", 0.0, 1.2)
    yield _rank("dataloader_workers", 4.0)
    for name in ("last_step_timestamp_seconds", "checkpoint_last_save_timestamp_seconds"):
        yield _rank(name, float(EPOCH), 1.0)
    yield _rank("ranks_expected", float(ranks))
    for state in (RankState.STARTING, RankState.RUNNING, RankState.FINISHED):
        yield _rank("rank_state", float(state is RankState.RUNNING), state=state.label)
    for signal in SIGNALS:
        yield _rank("signal_available", 1.0, signal=signal)
    start = _rank("rank_start_timestamp_seconds", EPOCH - 60.0, workload="model", local_rank="0")
    yield start[0], {**start[1], "host_name": "HOST", "hw_id": "GPU", "process_pid": "1"}, *start[2:]
    for generation in range(3):
        yield _rank("gc_duration_seconds_total", 0.0, 0.001, gc_generation=str(generation))
    for reason in EXCLUSION_REASONS:
        yield _rank("steps_excluded_total", 3.0, reason=reason)
        yield _rank("steps_excluded_duration_seconds_total", 2.0, reason=reason)


def _memory_and_numbers(ranks: int, chance: np.random.Generator) -> Iterator[_Row]:
    """Yield what each rank says of its memory, its loss and its telemetry."""
    spread = 1 + 0.02 * np.array(chance.standard_normal(ranks))
    for kind, gigabytes in (("device_allocated", 40), ("device_reserved", 50), ("device_peak", 48), ("host_rss", 20),
                            ("worker_rss", 8)):  # fmt: skip
        yield _rank("memory_usage_bytes", gigabytes * _GIB * spread, memory_kind=kind)
    for kind, gigabytes in (("device", 80), ("host", 2000)):
        yield _rank("memory_limit_bytes", gigabytes * _GIB, memory_kind=kind)
    yield _rank("loss", 2.0 * spread, -0.0001)
    yield _rank("gradient_norm", 1.0 * spread)
    yield _rank("samples_total", 0.0, 64.0)
    yield _rank("flops_total", 0.0, 4e14)
    for value in WATCHED.values():
        yield _rank("nonfinite_total", 0.0, value=value)
    for reason in ("buffer_full", "device_edge", "no_run", "hook_failed", "report_failed"):
        yield _rank("telemetry_dropped_total", 0.0, reason=reason)
    for name in ("steps_skipped_total", "memory_allocation_retries_total", "memory_out_of_memory_total",
                 "compile_recompilations_total"):  # fmt: skip
        yield _rank(name, 0.0)


def _exported(ranks: int, chance: np.random.Generator) -> Iterator[_Row]:
    """Yield what exporters read in state files, of ranks of which none stands still."""
    yield _rank("process_up", 1.0)
    for state in RankState:
        yield _rank("process_state", float(state is RankState.RUNNING), state=state.label)
    yield _rank("process_steps_total", 0.0, 1 / _STEP)
    age = _STEP * np.asarray(chance.random(ranks), dtype=float)
    yield _rank("process_phase_age_seconds", 0.1 * age)
    yield _rank("process_last_step_age_seconds", age)
    yield _rank("process_world_size", float(ranks))
    yield _rank("process_start_timestamp_seconds", EPOCH - 60.0)
    info = _rank("process_info", 1.0, workload="model", local_rank="0", metrics_port=str(PROMETHEUS_PORT), restarts="0")
    yield info[0], {**info[1], "host_name": "HOST", "uuid": "GPU", "process_pid": "1"}, *info[2:]


def _devices(ranks: int, chance: np.random.Generator) -> Iterator[_Row]:
    """Yield what exporters read of GPUs, one for each rank."""
    spread = 1 + 0.01 * chance.standard_normal(ranks)

    yield _device("up", 1.0)
    yield _device(
        "info", 1.0, name="NVIDIA H100 80GB HBM3", index="0", arch="hopper", pci_bus_id="0000:01:00.0", serial="1",
        vbios="96.00", numa_node="0",
    )  # fmt: skip
    yield _device("workload_info", 1.0, slurm_job_id="1", slurm_user="user")
    for name in ("utilization_ratio", "sm_activity_ratio", "tensor_activity_ratio"):
        yield _device(name, 0.9 * spread)
    for clock in ("sm", "memory", "graphics", "video"):
        yield _device("clock_hertz", 1.8e9 * spread, clock=clock)
        yield _device("clock_max_hertz", 1.98e9, clock=clock)
    for reason in ("sw_power_cap", "sync_boost", "board_limit", "low_utilization", "reliability", "sw_thermal",
                   "hw_thermal", "hw_power_brake"):  # fmt: skip
        yield _device("clock_event_seconds_total", 0.0, 0.5 if reason == "sw_power_cap" else 0.0, reason=reason)
        if reason in CLOCK_EVENT_BITS:
            yield _device("clock_event_active", float(reason == "sw_power_cap"), reason=reason)
    for sensor in ("gpu", "memory"):
        yield _device("temperature_celsius", 60.0 * spread, sensor=sensor)
    yield _device("energy_joules_total", 0.0, 600.0)


def _device_health() -> Iterator[_Row]:
    """Yield what exporters read of the health of GPUs."""
    for severity in ("corrected", "uncorrected"):
        yield _device("ecc_volatile_errors_total", 0.0, severity=severity)
    for name in ("ecc_sram_threshold_exceeded", "row_remap_failed", "row_remap_pending", "retired_pages_pending"):
        yield _device(name, 0.0)
    for name, value in (("link_generation", 5.0), ("link_width", 16.0)):
        yield _device(f"pcie_{name}", value)
        yield _device(f"pcie_{name}_max", value)
    yield _device("pcie_replays_total", 0.0)
    for state, links in (("active", 18.0), ("inactive", 0.0)):
        yield _device("nvlink_links", links, state=state)
    for error in ("crc_flit", "crc_data", "replay", "recovery"):
        yield _device("nvlink_errors_total", 0.0, error=error)
    for action in ("none", "reset", "reboot", "drain_p2p", "drain_reset", "unknown"):
        yield _device("recovery_action", float(action == "none"), action=action)
    yield _device("fabric_health", 0.0, condition="bandwidth_degraded")
