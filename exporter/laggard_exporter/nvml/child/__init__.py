"""The process in which NVML runs, see :mod:`laggard_exporter.gpus.child`.

:mod:`~laggard_exporter.nvml.child.driver` makes the calls; nvidia-ml-py is all that is imported beside the standard
library.
"""
