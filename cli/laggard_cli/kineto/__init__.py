"""Traces of torch's profiler (Kineto): what a short one says of a run, by the method of the rules.

:mod:`~laggard_cli.kineto.reader` scans a file in bounded memory, :mod:`~laggard_cli.kineto.trace` keeps what matters of
one rank, :mod:`~laggard_cli.kineto.partition` divides its steps into phases, :mod:`~laggard_cli.kineto.run` puts ranks
side by side and :mod:`~laggard_cli.kineto.verdicts` judges them. :mod:`~laggard_cli.kineto.difference` compares two.
"""
