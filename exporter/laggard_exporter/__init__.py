"""The node exporter: what a node knows of its GPUs and its ranks, as Prometheus metrics.

A collector takes its library or its root as an argument and yields plain samples (:mod:`laggard_exporter.samples`).
:mod:`laggard_exporter.collection` runs the collectors and keeps their health, :mod:`laggard_exporter.server` serves
the result. Every metric stands in :mod:`laggard_exporter.conventions`.
"""
