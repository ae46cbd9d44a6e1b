"""What the collectors of GPUs share, whatever the vendor's library.

The library runs in a process of its own, :mod:`~laggard_exporter.gpus.child`, which loads this module too: it imports
nothing. :mod:`~laggard_exporter.gpus.session` gives its return codes their meaning,
:mod:`~laggard_exporter.gpus.collector` keeps the session, and :mod:`~laggard_exporter.gpus.conventions` names the
metrics, which are the same for every vendor.
"""
