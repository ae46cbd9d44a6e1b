"""Collector ``nvml``: NVIDIA GPUs through the NVML library of the driver.

:mod:`~laggard_exporter.nvml.library` gives NVML's errors their meaning, :mod:`~laggard_exporter.nvml.table` lists
what is read, :mod:`~laggard_exporter.nvml.devices` knows the GPUs of the node. The library itself runs in a process of
its own, :mod:`~laggard_exporter.nvml.child`, which loads this module too: it imports nothing.
"""
