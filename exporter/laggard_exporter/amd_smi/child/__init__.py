"""The process in which AMD SMI runs, see :mod:`laggard_exporter.gpus.child`.

:mod:`~laggard_exporter.amd_smi.child.driver` makes the calls and :mod:`~laggard_exporter.amd_smi.child.layouts` knows
the structures, both with the standard library alone.
"""
