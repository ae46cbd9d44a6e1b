"""The rule pack as data, and which labels its expressions have."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import promql_parser as promql
import yaml

from laggard.shared.attributes import IDENTITY, Attribute
from laggard.shared.metrics import TRAINING_METRICS
from laggard.shared.names import prometheus_label, prometheus_name
from laggard.shared.process_metrics import PROCESS_METRICS
from laggard_cli.rules.render import rule_files
from laggard_exporter.collectors import FAMILIES
from laggard_exporter.web.ranks import RANK_PAGES

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "rules"

#: What a site may name each of its clusters by, on every series.
CLUSTER = "cluster"

#: What a user may record beside the pack.
INPUTS = {"laggard_threshold_override": frozenset({"name", "training_run"})}

_DCGM = frozenset({"UUID", "modelName", "gpu", "laggard_adapter"})
_SMI = frozenset({"uuid"})
_AMD = frozenset({"hostname", "gpu_id", "gpu_uuid", "card_model", "serial_number", "laggard_adapter"})
_NODE = frozenset({"job", "instance"})
#: What the page of all ranks says of itself: whoever looks for a host finds it by the target.
_PAGES = {RANK_PAGES.name: frozenset({*RANK_PAGES.labels, "instance"})}
_PORT = _NODE | {"device", "port"}

#: What adapters read of other exporters, by their own documentation.
FOREIGN = {
    **{f"DCGM_FI_DEV_{name}": _DCGM for name in (
        "GPU_UTIL", "FB_USED", "FB_FREE", "POWER_USAGE", "POWER_MGMT_LIMIT",
        "TOTAL_ENERGY_CONSUMPTION", "GPU_TEMP", "SM_CLOCK", "MAX_SM_CLOCK",
        "POWER_VIOLATION", "THERMAL_VIOLATION", "CORRECTABLE_REMAPPED_ROWS", "UNCORRECTABLE_REMAPPED_ROWS",
        "ROW_REMAP_FAILURE", "PCIE_REPLAY_COUNTER", "XID_ERRORS", "CLOCK_THROTTLE_REASONS", "THRESHOLD_SRM",
        "RETIRED_PENDING", "NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "GET_GPU_RECOVERY_ACTION",
        # The same by their newer names, with DCGM 4.6 and 4.7.
        "GPU_UTIL_RATIO", "FB_USED_BYTES", "FB_FREE_BYTES",
        "BOARD_POWER_WATTS", "BOARD_POWER_LIMIT_REQUESTED_WATTS", "GPU_ENERGY_JOULES_TOTAL",
        "GPU_TEMP_CELSIUS", "SM_CLOCK_HERTZ", "SM_MAX_CLOCK_HERTZ",
        "GPU_POWER_THROTTLE_SECONDS_TOTAL", "GPU_THERMAL_THROTTLE_SECONDS_TOTAL", "ROW_REMAP_CORRECTABLE_TOTAL",
        "ROW_REMAP_UNCORRECTABLE_TOTAL", "ROW_REMAP_FAILED", "PCIE_REPLAY_TOTAL", "XID_ERROR", "CLOCKS_EVENT_REASONS",
        "SRAM_EXCEEDED", "PAGE_RETIRED_PENDING", "NVLINK_RECOVERY_ERROR_TOTAL", "GPU_RECOVERY_ACTION",
        # And those that have one name.
        "ECC_SBE_VOL_TOTAL", "ECC_DBE_VOL_TOTAL", "ROW_REMAP_PENDING", "PCIE_LINK_GEN", "PCIE_MAX_LINK_GEN",
        "PCIE_LINK_WIDTH", "PCIE_MAX_LINK_WIDTH", "CLOCKS_EVENT_REASON_SW_POWER_CAP_NS",
        "CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS", "CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS",
        "CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS",
    )},
    **{f"DCGM_FI_PROF_{name}": _DCGM for name in (
        "SM_ACTIVE", "SM_OCCUPANCY", "PIPE_TENSOR_ACTIVE",
        "SM_UTIL_RATIO", "SM_OCCUPANCY_RATIO", "TENSOR_UTIL_RATIO",
    )},
    "DCGM_EXP_XID_ERRORS_TOTAL": _DCGM | {"xid"},
    **{f"nvidia_smi_{name}": _SMI for name in (
        "utilization_gpu_ratio", "memory_used_bytes", "memory_free_bytes", "power_draw_watts", "energy_joules_total",
        "temperature_gpu", "clocks_current_sm_clock_hz", "clocks_max_sm_clock_hz",
        "ecc_errors_uncorrected_volatile_total", "ecc_errors_uncorrected_aggregate_sram_threshold_exceeded",
        "remapped_rows_failure", "remapped_rows_pending", "pcie_link_gen_current", "pcie_link_gen_max",
        "pcie_link_width_current", "pcie_link_width_max", "gpu_recovery_action",
    )},
    "nvidia_smi_gpu_info": _SMI | {"name"},
    "nvidia_smi_xid_last_timestamp_seconds": _SMI | {"xid"},
    **dict.fromkeys((
        "gpu_gfx_activity", "gpu_used_vram", "gpu_free_vram", "gpu_package_power",
        "gpu_average_package_power", "gpu_power_usage", "gpu_energy_consumed", "gpu_junction_temperature",
        "gpu_edge_temperature", "gpu_violation_ppt_residency_percentage",
        "gpu_violation_processor_hot_residency_percentage", "gpu_violation_socket_thermal_residency_percentage",
        "gpu_violation_vr_thermal_residency_percentage", "gpu_violation_hbm_thermal_residency_percentage",
        "gpu_ecc_correct_total", "gpu_ecc_uncorrect_total", "pcie_replay_count", "pcie_speed", "pcie_max_speed",
        "gpu_nodes_total",
    ), _AMD),
    **{f"nvidia_smi_clocks_event_reasons_counters_{reason}_seconds": _SMI for reason in (
        "sw_power_cap", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown",
    )},
    "gpu_clock": _AMD | {"clock_type"},
    "gpu_max_clock": _AMD | {"clock_type"},
    **{f"node_{name}": _NODE for name in (
        "memory_MemAvailable_bytes",
        "pressure_cpu_waiting_seconds_total", "pressure_io_waiting_seconds_total",
    )},
    "node_uname_info": _NODE | {"nodename"},
    **{f"node_infiniband_{name}_total": _PORT for name in (
        "symbol_error", "link_error_recovery", "link_downed", "port_errors_received",
        "port_receive_remote_physical_errors", "port_discards_transmitted", "local_link_integrity_errors",
        "excessive_buffer_overrun_errors",
    )},
    "node_infiniband_port_data_transmitted_bytes_total": _PORT,
}  # fmt: skip

#: What Prometheus itself records of alerts.
ALERTS = {
    "ALERTS": frozenset({"alertname", "alertstate", "severity", "training_kind", *map(prometheus_label, IDENTITY)})
}


@dataclass(frozen=True)
class Rule:
    """One rule with the place where it stands."""

    file: str
    group: str
    name: str
    expr: str
    is_alert: bool
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    annotations: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def is_adapter(self) -> bool:
        """Whether it gives what another exporter says the name of ours."""
        return self.file.startswith("adapter-")

    def __str__(self) -> str:
        """Name the rule as a test's parameter."""
        return f"{self.name}-{'-'.join(self.labels.values())}" if self.labels else self.name


@functools.cache
def groups() -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """Return the file and content of each group, in the order of the layers."""
    return tuple(
        (name, group)
        for name in rule_files()
        for group in yaml.load((RULES / name).read_text(encoding="utf-8"), yaml.CSafeLoader)["groups"]
    )


@functools.cache
def rules() -> tuple[Rule, ...]:
    """Return all rules in the order of the layers."""
    return tuple(
        Rule(
            file=file,
            group=group["name"],
            name=rule.get("record") or rule["alert"],
            expr=rule["expr"],
            is_alert="alert" in rule,
            labels=rule.get("labels", {}),
            annotations=rule.get("annotations", {}),
        )
        for file, group in groups()
        for rule in group["rules"]
    )


def alerts() -> tuple[Rule, ...]:
    """Return the alerts."""
    return tuple(rule for rule in rules() if rule.is_alert)


def selectors(expr: str) -> Iterator[promql.VectorSelector]:
    """Yield each selector of an expression."""
    found: list[promql.VectorSelector] = []

    def visit(node: promql.Expr) -> None:
        if isinstance(node, promql.VectorSelector):
            found.append(node)
        elif isinstance(node, promql.MatrixSelector):
            found.append(node.vector_selector)

    promql.walk(promql.parse(expr), visit)
    yield from found


@functools.cache
def emitted() -> Mapping[str, frozenset[str]]:
    """Return the labels of each series that a rank or the node exporter exposes."""
    found: dict[str, frozenset[str]] = {}
    process_identity = (Attribute.RUN, Attribute.RANK)
    for identity, metrics in ((IDENTITY, TRAINING_METRICS), (process_identity, PROCESS_METRICS)):
        for metric in metrics:
            labels = frozenset(map(prometheus_label, (*identity, *metric.attributes)))
            name = prometheus_name(metric)
            if metric.kind == "histogram":
                found.update({f"{name}_sum": labels, f"{name}_count": labels, f"{name}_bucket": labels | {"le"}})
            else:
                found[name] = labels
    return {**{family.name: frozenset(family.labels) for family in FAMILIES}, **_PAGES, **found}


@functools.cache
def known() -> Mapping[str, frozenset[str]]:
    """Return the labels of each series that an expression may use: emitted, given by the user, or recorded."""
    # A site may give each of them the cluster that it is from.
    given = {**emitted(), **INPUTS, **FOREIGN, **ALERTS}
    series = {name: labels | {CLUSTER} for name, labels in given.items()}
    recording = [rule for rule in rules() if not rule.is_alert]
    # A layer refers to earlier ones, but the run's thresholds also to the layer after theirs, and a file to others of
    # its layer: passes settle it.
    for check in (False, False, True):
        for rule in recording:
            labels = Labels(series, check=check).of(promql.parse(rule.expr)) | set(rule.labels)
            series[rule.name] = series.get(rule.name, frozenset()) | labels
    return series


class Labels:
    """Follows the labels of series through an expression, as Prometheus would."""

    def __init__(self, series: Mapping[str, frozenset[str]], *, check: bool = True) -> None:
        self._series = series
        self._check = check

    def of(self, node: promql.Expr) -> frozenset[str]:
        """Return the labels that the result may have.

        Raises:
            AssertionError: a name or label that no series of the operand has.
        """
        match node:
            case promql.VectorSelector():
                labels = self._selected(node)
            case promql.MatrixSelector():
                labels = self.of(node.vector_selector)
            case promql.ParenExpr() | promql.UnaryExpr() | promql.SubqueryExpr():
                labels = self.of(node.expr)
            case promql.Call():
                labels = self._called(node)
            case promql.AggregateExpr():
                labels = self._aggregated(node)
            case promql.BinaryExpr():
                labels = self._combined(node)
            case promql.NumberLiteral() | promql.StringLiteral():
                labels = frozenset[str]()
            case _:
                raise AssertionError(f"the pack has no {type(node).__name__}")
        return labels

    def _selected(self, node: promql.VectorSelector) -> frozenset[str]:
        if node.name is None:
            name = next(matcher.value for matcher in node.matchers.matchers if matcher.name == "__name__")
            matching = [labels for series, labels in self._series.items() if re.fullmatch(name, series)]
            self._require(bool(matching), f"nobody emits or records {name}")
            return frozenset({"__name__"}).union(*matching)
        labels = self._series.get(node.name, frozenset())
        self._require(node.name in self._series, f"nobody emits or records {node.name}")
        self._known((matcher.name for matcher in node.matchers.matchers), labels, node)
        return labels

    def _called(self, node: promql.Call) -> frozenset[str]:
        operands = [self.of(each) for each in node.args]
        if node.func.name in ("scalar", "vector", "time"):
            return frozenset()
        if node.func.name in ("label_replace", "label_join"):
            return operands[0] | {node.args[1].val}
        return frozenset().union(*operands)

    def _aggregated(self, node: promql.AggregateExpr) -> frozenset[str]:
        labels = self.of(node.expr)
        by = frozenset(node.modifier.labels) if node.modifier else frozenset[str]()
        self._known(by, labels, node)
        if node.modifier and node.modifier.type == promql.AggModifierType.Without:
            return labels - by
        if str(node.op) == "count_values" and isinstance(node.param, promql.StringLiteral):
            return by | {node.param.val}
        return labels if str(node.op) in ("topk", "bottomk") else by

    def _combined(self, node: promql.BinaryExpr) -> frozenset[str]:
        left, right = self.of(node.lhs), self.of(node.rhs)
        modifier = node.modifier
        operation = str(node.op)
        if modifier is None or modifier.matching is None:
            return left | right if operation == "or" else left or right
        matching = frozenset(modifier.matching.labels)
        include = modifier.matching.type == promql.LabelModifierType.Include
        one_to_one = modifier.card == promql.VectorMatchCardinality.OneToOne
        if operation in ("and", "unless", "or"):
            # What does not run at all matches on the empty label: `or on (training_run)` of a series without rank.
            self._known(matching if include else (), left | right, node)
            return left | right if operation == "or" else left
        if modifier.card == promql.VectorMatchCardinality.OneToMany:
            left, right = right, left
        if include:
            self._known(matching, left, node)
            self._known(matching, right, node)
            group = frozenset(modifier.group_labels or ())
            self._known(group, right, node)
            return matching if one_to_one else left | group
        return left - matching if one_to_one else left

    def _known(self, wanted: Iterator[str] | frozenset[str] | tuple[()], labels: frozenset[str], node: object) -> None:
        missing = sorted(set(wanted) - labels)
        self._require(not missing, f"no label {', '.join(missing)} in {node}")

    def _require(self, condition: bool, text: str) -> None:  # noqa: FBT001 - an assertion
        assert condition or not self._check, text
