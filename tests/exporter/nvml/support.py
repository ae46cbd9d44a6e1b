"""The GPUs that the fake driver of NVIDIA has."""

from __future__ import annotations

from tests.exporter.support import series_name

BUSY = "GPU-00000000-0000-0000-0000-000000000000"
IDLE = "GPU-11111111-1111-1111-1111-111111111111"


def gpu(name: str, uuid: str = BUSY, /, **labels: str) -> str:
    """Return the name of a GPU's series."""
    return series_name(name, {"uuid": uuid, **labels}.items())


def no_xids(uuid: str) -> dict[str, float]:
    """Return the counters of grave errors of a GPU that had none."""
    codes = {48: "critical", 62: "critical", 64: "critical", 74: "critical", 79: "critical", 94: "warning"}
    codes |= {95: "critical", 119: "critical", 120: "critical"}
    return {gpu("gpu_xid_errors_total", uuid, xid=str(xid), tier=tier): 0 for xid, tier in codes.items()}


BUSY_INFO = gpu(
    "gpu_info",
    index="0",
    name="NVIDIA H100 80GB HBM3",
    pci_bus_id="00000000:1B:00.0",
    serial="1650523000000",
    vbios="96.00.89.00.01",
    arch="hopper",
    numa_node="0",
)
#: What is left of a GPU that is lost: its identity, and that it is lost.
LOST = {BUSY_INFO: 1, gpu("gpu_up"): 0, **no_xids(BUSY)}
