"""``laggard gate``: whether a run is slower than a baseline, for a pipeline that must say yes or no."""
