"""The same faults in a real job, watched by laggard and by traceml-ai."""
