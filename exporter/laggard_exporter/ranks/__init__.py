"""What the node knows of the ranks that run on it, beside what their state files say of training.

:mod:`~laggard_exporter.ranks.files` finds the ranks and their processes; each other module is a collector.
"""
