"""Serves the metrics over HTTP or HTTPS.

:mod:`~laggard_exporter.web.server` owns connections, threads and deadlines, :mod:`~laggard_exporter.web.application`
the pages. :mod:`~laggard_exporter.web.configuration` reads the web configuration file that all exporters of the
Prometheus project share, :mod:`~laggard_exporter.web.tls` and :mod:`~laggard_exporter.web.authentication` do what it
says, and :mod:`~laggard_exporter.web.watch` reads it again when it changes.
"""
