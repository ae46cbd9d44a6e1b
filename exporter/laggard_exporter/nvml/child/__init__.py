"""The process in which NVML runs: it answers calls by name until its standard input ends.

The exporter starts it by the path of ``__main__.py``, with no site packages, and what stands here imports the standard
library and nvidia-ml-py alone: the process is as small as Python with nvidia-ml-py can be. It knows nothing of
metrics. :mod:`~laggard_exporter.nvml.child.frames` is what goes to and fro, and
:mod:`~laggard_exporter.nvml.child.driver` makes the calls.
"""
