"""Pushes the same facts by OTLP, under the semantic conventions of OpenTelemetry where they have a name.

:mod:`~laggard_exporter.otlp.names` is the table of names, :mod:`~laggard_exporter.otlp.push` sends. Only the latter
imports OpenTelemetry, and only when something is to be sent: the exporter needs none of it.
"""
