"""The process in which a vendor's library runs: it answers calls by name until its standard input ends.

The exporter starts it by the path of a backend's ``__main__.py``, with no site packages, and what stands here imports
the standard library alone: the process is as small as Python can be. It knows nothing of metrics.
:mod:`~laggard_exporter.gpus.child.frames` is what goes to and fro.
"""
