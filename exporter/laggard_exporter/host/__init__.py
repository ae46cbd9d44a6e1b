"""What a host says about itself where it matters to training: one module for each collector.

Each takes the roots of procfs and sysfs as arguments. A file that is not there means that the kernel or the hardware
has no such thing: the series is absent, never 0.
"""
