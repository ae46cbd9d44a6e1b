"""Grafana dashboards, built in Python: a module of ``boards`` for each, and what they make in ``json``.

They plot recorded series and the thresholds that alerts compare them with; what is a verdict is decided in ``rules``.
"""
