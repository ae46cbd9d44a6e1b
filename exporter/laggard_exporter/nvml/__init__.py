"""Collector ``nvml``: NVIDIA GPUs through the NVML library of the driver.

:mod:`~laggard_exporter.nvml.library` gives NVML's errors their meaning, :mod:`~laggard_exporter.nvml.table` lists
what is read, :mod:`~laggard_exporter.nvml.devices` knows the GPUs of the node. The collector yields plain samples
alone, so a child process can run it.
"""

from laggard_exporter.nvml.collector import NvmlCollector

__all__ = ["NvmlCollector"]
