"""Every collector, each a module that ends with its entry. Flags, doctor and documents follow this table."""

from __future__ import annotations

from laggard_exporter.amd_smi import collector as amd_smi
from laggard_exporter.conventions import SELF_FAMILIES
from laggard_exporter.entry import Entry
from laggard_exporter.hang import collector as hang
from laggard_exporter.host import disk, facts, infiniband, oom, pressure
from laggard_exporter.nvml import collector as nvml
from laggard_exporter.ranks import cgroup, scheduling, state, workers
from laggard_exporter.ras import collector as ras
from laggard_exporter.samples import Family

#: By the name in flags and metrics.
COLLECTORS: dict[str, Entry] = {
    "nvml": nvml.ENTRY,
    "amd_smi": amd_smi.ENTRY,
    "state": state.ENTRY,
    "hang": hang.ENTRY,
    "ras": ras.ENTRY,
    "workers": workers.ENTRY,
    "scheduling": scheduling.ENTRY,
    "cgroup": cgroup.ENTRY,
    "host": facts.ENTRY,
    "pressure": pressure.ENTRY,
    "oom": oom.ENTRY,
    "disk": disk.ENTRY,
    "infiniband": infiniband.ENTRY,
}

#: Every metric that the exporter may emit.
FAMILIES: tuple[Family, ...] = (
    *SELF_FAMILIES,
    # Those of GPUs are the same for every vendor.
    *dict.fromkeys(family for entry in COLLECTORS.values() for family in entry.families),
)
