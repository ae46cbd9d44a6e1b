"""The GPUs that the fake of AMD SMI has."""

from __future__ import annotations

from tests.exporter.gpus.support import gpu

BUSY, IDLE = "GPU-a1b2000000000001", "GPU-a1b2000000000002"
METRICS = "amdsmi_get_gpu_metrics_info"
BUSY_INFO = gpu(
    "gpu_info",
    BUSY,
    index="0",
    name="AMD Instinct MI300X",
    pci_bus_id="0000:05:00.0",
    serial="a1b2000000000001",
    vbios="022.040.003.042.000001",
    arch="",
    numa_node="0",
)
#: What is left of a GPU that is lost.
LOST = {BUSY_INFO: 1, gpu("gpu_up", BUSY): 0}
HEALTHY = {
    BUSY_INFO: 1,
    gpu("gpu_up", BUSY): 1,
    gpu("gpu_utilization_ratio", BUSY): 0.93,
    gpu("gpu_memory_copy_utilization_ratio", BUSY): 0.41,
    gpu("gpu_memory_capacity_bytes", BUSY): 196_592 << 20,
    gpu("gpu_memory_used_bytes", BUSY): 64 << 30,
    gpu("gpu_memory_free_bytes", BUSY): (196_592 << 20) - (64 << 30),
    gpu("gpu_power_watts", BUSY): 612,
    **{gpu(f"gpu_power_{kind}limit_watts", BUSY): 750 for kind in ("", "default_", "max_")},
    gpu("gpu_energy_joules_total", BUSY): 100,
    gpu("gpu_temperature_celsius", BUSY, sensor="gpu"): 64,
    gpu("gpu_temperature_celsius", BUSY, sensor="memory"): 51,
    gpu("gpu_temperature_threshold_celsius", BUSY, threshold="shutdown"): 110,
    gpu("gpu_temperature_threshold_celsius", BUSY, threshold="slowdown"): 100,
    gpu("gpu_temperature_threshold_celsius", BUSY, threshold="memory_max"): 105,
    gpu("gpu_clock_hertz", BUSY, clock="sm"): 1.875e9,
    gpu("gpu_clock_hertz", BUSY, clock="memory"): 1.3e9,
    gpu("gpu_clock_max_hertz", BUSY, clock="sm"): 2.1e9,
    gpu("gpu_clock_max_hertz", BUSY, clock="memory"): 1.3e9,
    gpu("gpu_clock_event_seconds_total", BUSY, reason="sw_power_cap"): 0,
    gpu("gpu_clock_event_seconds_total", BUSY, reason="hw_thermal"): 0,
    gpu("gpu_ecc_mode_enabled", BUSY): 1,
    gpu("gpu_ecc_volatile_errors_total", BUSY, severity="corrected"): 3,
    gpu("gpu_ecc_volatile_errors_total", BUSY, severity="uncorrected"): 0,
    gpu("gpu_row_remap_failed", BUSY): 0,
    gpu("gpu_retired_pages_total", BUSY, cause="uncorrected"): 0,
    gpu("gpu_retired_pages_pending", BUSY): 0,
    gpu("gpu_pcie_replays_total", BUSY): 2,
    gpu("gpu_pcie_errors_total", BUSY, error="nak_sent"): 0,
    gpu("gpu_pcie_errors_total", BUSY, error="nak_received"): 0,
    gpu("gpu_pcie_link_generation", BUSY): 5,
    gpu("gpu_pcie_link_generation_max", BUSY): 5,
    gpu("gpu_pcie_link_width", BUSY): 16,
    gpu("gpu_pcie_link_width_max", BUSY): 16,
}


def residency(counter: int, clock: float, **accumulators: int) -> list[str]:
    """Return lines of the first GPU, ``clock`` in seconds."""
    values = {"accumulation_counter": counter, "system_clock_counter": int(clock * 1e9)}
    values |= {f"{name}_residency_acc": value for name, value in accumulators.items()}
    return [f"0 {METRICS}.{name} {value}" for name, value in values.items()]
