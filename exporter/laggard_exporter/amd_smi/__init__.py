"""Collector ``amd_smi``: AMD's GPUs through ROCm's AMD SMI library, which this module must not import.

:mod:`~laggard_exporter.amd_smi.table` lists what is read, :mod:`~laggard_exporter.amd_smi.child` runs the library.
"""
