"""Ranks that hang for a moment, each of which writes its flight recorder: FOLDER CULPRIT.

The culprit never comes to the second all-reduce of its half; the other half waits in a barrier of all.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

#: Long enough for all to arrive, and for all dumps to be written before a rank goes.
_HANG_SECONDS, _END_SECONDS = 3.0, 3.0


def main() -> None:
    """Hang, dump, go."""
    folder, culprit = Path(sys.argv[1]), int(sys.argv[2])
    os.environ["TORCH_FR_BUFFER_SIZE"] = "100"
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    threading.Thread(target=_dump, args=(folder / f"trace_rank_{rank}",)).start()
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    dist.all_reduce(tensor, group=halves[rank // 2])
    if rank == culprit:
        time.sleep(60)
    dist.all_reduce(tensor, group=halves[rank // 2])
    dist.barrier()


def _dump(path: Path) -> None:
    time.sleep(_HANG_SECONDS)
    native = torch._C._distributed_c10d
    path.write_bytes(native._dump_fr_trace(includeCollectives=True, includeStackTraces=True, onlyActive=False))
    time.sleep(_END_SECONDS)
    os._exit(0)


if __name__ == "__main__":
    main()
