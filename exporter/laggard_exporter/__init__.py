"""The node exporter: what a node knows of its GPUs and its ranks, as Prometheus metrics.

A collector takes its library or its root as an argument and yields plain samples (:mod:`laggard_exporter.samples`).
:mod:`laggard_exporter.runner` runs each in its own thread, :mod:`laggard_exporter.collection` takes what is there at
the deadline of a scrape, :mod:`laggard_exporter.web` serves it. A collector's module has its metrics, and ends with its
entry in the table of :mod:`laggard_exporter.collectors`.
"""
