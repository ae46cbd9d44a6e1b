"""Runs the NVML collector on a clock of its own: for each line of standard input, seconds to move the clock by.

Answers each line with the samples as one line of JSON: the values by the series as Prometheus writes it.
"""

from __future__ import annotations

import json
import sys

import pynvml

from laggard_exporter.nvml import NvmlCollector
from tests.exporter.support import as_dict

clock = 1000.0
collector = NvmlCollector(pynvml, clock=lambda: clock)
for line in sys.stdin:
    clock += float(line)
    print(json.dumps(as_dict(collector.collect())), flush=True)
