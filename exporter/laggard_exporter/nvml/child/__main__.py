"""Starts the process. Arguments: the folders of nvidia-ml-py and of laggard_exporter, and what ``serve`` takes."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # Without site packages neither of the two is found.
    sys.path += sys.argv[1:3]
    from laggard_exporter.nvml.child.serving import serve

    serve(int(sys.argv[3]))
