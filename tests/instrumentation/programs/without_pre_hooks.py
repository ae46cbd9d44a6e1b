"""Runs another program with a torch whose process groups have no pre-hooks, as in its older versions.

Started without laggard, which comes after torch has lost them.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import torch.distributed as dist

import laggard

if __name__ == "__main__":
    if hasattr(dist.ProcessGroup, "register_pre_hook"):
        del dist.ProcessGroup.register_pre_hook
    laggard.instrument()
    del sys.argv[:1]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    runpy.run_path(sys.argv[0], run_name="__main__")
