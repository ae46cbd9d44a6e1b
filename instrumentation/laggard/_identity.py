"""Who this process is in the run: run, rank, peer group, and the facts of the machine that it stands on."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import sys
import time
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from laggard import environment, statefile
from laggard.conventions import Attribute, clip_name

_logger = logging.getLogger(__name__)

#: Key under which rank 0 leaves the run's name in torch's store.
STORE_KEY = "laggard/run"


@dataclass(frozen=True)
class Identity:
    """One rank of one run. ``run`` is empty until it is known; nothing is exported before."""

    run: str
    rank: int
    local_rank: int
    world_size: int
    restarts: int
    peer_group: str
    workload: str
    host: str

    def attributes(self) -> dict[str, str]:
        """Return the attributes that every data point carries."""
        attributes = {Attribute.RUN: self.run, Attribute.RANK: str(self.rank)}
        if self.peer_group:
            attributes[Attribute.PEER_GROUP] = self.peer_group
        return attributes

    def facts(self, metrics_port: int, hardware_id: str = "") -> statefile.Facts:
        """Return the facts for the state file of this process."""
        ticks, started, started_unix = _process_start(os.getpid())
        return statefile.Facts(
            pid=os.getpid(),
            pid_start_ticks=ticks,
            start_boottime_ns=started,
            start_unix_ns=started_unix,
            boot_id=statefile.boot_id(),
            run=self.run,
            host=self.host,
            peer_group=self.peer_group,
            workload=self.workload,
            hardware_id=hardware_id,
            rank=self.rank,
            local_rank=self.local_rank,
            world_size=self.world_size,
            restarts=self.restarts,
            metrics_port=metrics_port,
        )


def from_environment(rank: int | None = None, world_size: int | None = None) -> Identity:
    """Return what the launcher's environment tells; ``rank`` and ``world_size`` win where the script gave them."""
    if rank is None:
        rank = _first_number("RANK", "SLURM_PROCID", default=0)
    if world_size is None:
        # A batch script has the number of tasks too, and is one process: srun starts the tasks, and numbers the step.
        tasks = ("SLURM_NTASKS",) if environment.text("SLURM_STEP_ID") else ()
        world_size = _first_number("WORLD_SIZE", *tasks, default=1)
    return Identity(
        run=clip_name(_run_from_environment()),
        rank=rank,
        local_rank=_first_number("LOCAL_RANK", "SLURM_LOCALID", default=rank),
        world_size=world_size,
        restarts=_first_number("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT", default=0),
        peer_group=clip_name(environment.text(environment.LAGGARD_PEER_GROUP)),
        workload=clip_name(environment.text(environment.LAGGARD_WORKLOAD) or Path(_script()).stem),
        host=clip_name(environment.text(environment.LAGGARD_HOST) or socket.gethostname()),
    )


def resolve(identity: Identity) -> Identity:
    """Complete the identity with what torch knows by now. Called by the drain thread; never blocks.

    The run's name travels through the store that torch keeps for its ranks anyway; no collective is involved.
    """
    distributed = sys.modules.get("torch.distributed.distributed_c10d")
    if distributed is not None and distributed.is_initialized():
        identity = replace(identity, rank=distributed.get_rank(), world_size=distributed.get_world_size())
        if not identity.run:
            return replace(identity, run=clip_name(_run_from_store(distributed, identity.rank)))
    elif identity.run == "" and identity.world_size <= 1:
        return replace(identity, run=_fresh_run())
    return identity


def _run_from_environment() -> str:
    run = environment.text(environment.LAGGARD_RUN)
    if run:
        return run
    slurm = environment.text("SLURM_ARRAY_JOB_ID") or environment.text("SLURM_JOB_ID")
    if slurm:
        task = environment.text("SLURM_ARRAY_TASK_ID")
        step = environment.text("SLURM_STEP_ID")
        return "slurm-" + slurm + (f"_{task}" if task else "") + (f".{step}" if step else "")
    job = environment.text("KUBERNETES_JOB_UID")
    if job:
        return job
    elastic = environment.text("TORCHELASTIC_RUN_ID")
    # torchrun without --rdzv-id says "none" for every job.
    return "" if elastic.lower() == "none" else elastic


def _run_from_store(distributed: Any, rank: int) -> str:
    store = distributed._get_default_store()  # noqa: SLF001 - the one place where torch keeps it
    # The outer stores prefix their keys with the attempt; the name must outlive an elastic restart.
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    # `get` would wait for a missing key and hold the store's lock meanwhile; `check` answers at once.
    if store.check([STORE_KEY]):
        return store.get(STORE_KEY).decode()
    if rank != 0:
        return ""
    run = _fresh_run()
    store.set(STORE_KEY, run)
    return run


def _fresh_run() -> str:
    return time.strftime("%Y%m%d-%H%M%S-", time.gmtime()) + secrets.token_hex(3)


def _first_number(*variables: str, default: int) -> int:
    for name in variables:
        value = environment.text(name)
        if value:
            try:
                return int(value)
            except ValueError:
                _logger.warning("%s=%r is not a whole number; it is ignored", name, value)
    return default


def _script() -> str:
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return main or (sys.argv[0] if sys.argv else "") or "python"


@lru_cache(maxsize=1)
def _process_start(pid: int) -> tuple[int, int, int]:
    """Return the start of process ``pid``: in clock ticks since boot, and in nanoseconds of boot time and of Unix time.

    Reckoned once: the difference of the two clocks moves, and with it a start would that was reckoned again.
    """
    now = statefile.boottime_ns()
    ticks, started = 0, now
    with contextlib.suppress(OSError, ValueError, IndexError):
        # The command name may contain blanks and parentheses; the fields that count come after the last one.
        status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks = int(status[19])
        started = ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return ticks, started, time.time_ns() - now + started
