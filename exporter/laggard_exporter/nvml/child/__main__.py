"""Starts the process. Arguments: the folders of nvidia-ml-py and of laggard_exporter, and the page of ``serve``."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # Without site packages neither of the two is found.
    sys.path += sys.argv[1:-1]
    from laggard_exporter.gpus.child.serving import serve
    from laggard_exporter.nvml.child.driver import Driver

    serve(int(sys.argv[-1]), lambda send: Driver(__import__("pynvml"), send))
