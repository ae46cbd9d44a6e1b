"""Starts the process. Arguments: the folder of laggard_exporter, and the page of ``serve``."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path += sys.argv[1:-1]
    from laggard_exporter.amd_smi.child.driver import Driver
    from laggard_exporter.gpus.child.serving import serve

    serve(int(sys.argv[-1]), lambda _: Driver())
