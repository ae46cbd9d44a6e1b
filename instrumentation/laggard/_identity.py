"""Who this process is in the run: run, rank, peer group, and the facts of the machine that it stands on."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from pathlib import Path
from types import CodeType
from typing import Any

from laggard import _script
from laggard._clocks import ahead_ns
from laggard.shared import environment, statefile
from laggard.shared.attributes import Attribute
from laggard.shared.names import NAME_BYTES, clip_name, run_name

_logger = logging.getLogger(__name__)

#: Keys under which rank 0 leaves the run's name in torch's store, and each rank with its number the host.
STORE_KEY = "laggard/run"
HOST_KEY = "laggard/host"

#: Tries, and seconds between them, for the lock of a folder that others hold for a moment.
_TRIES, _PAUSE_SECONDS = 20, 0.02

#: Slurm gives steps that srun did not number, such as the shell of salloc, the last numbers of 32 bits.
_RESERVED_STEP_DIGITS = 10

Claim = Callable[[str, int], str]
"""Takes the run that a process would report a rank of; returns the one that it may."""


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
    placed: bool = True
    """Whether the launcher said which of the host's ranks this is."""

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
    # Of the step, not SLURM_NTASKS: batch scripts and the shell of salloc have that too, and are one process each.
    launched = _first_number("WORLD_SIZE", "SLURM_STEP_NUM_TASKS", default=world_size or 1)
    if world_size is None:
        world_size = launched
    return Identity(
        run=run_name(_run_from_environment()),
        rank=rank,
        local_rank=_first_number("LOCAL_RANK", "SLURM_LOCALID", default=rank),
        # Among others than those that were launched, the variables are of who started this one, as srun's only task.
        placed=launched == world_size and _first_number("LOCAL_RANK", "SLURM_LOCALID", default=-1) >= 0,
        world_size=world_size,
        restarts=_first_number("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT", default=0),
        peer_group=clip_name(environment.text(environment.LAGGARD_PEER_GROUP)),
        workload=workload(),
        host=clip_name(environment.text(environment.LAGGARD_HOST) or socket.gethostname()),
    )


def helps_a_rank(rank: int | None = None, world_size: int | None = None) -> bool:
    """Return whether a rank has started this process, and not as its peer: to save checkpoints, or to serve a model."""
    own = from_environment(rank, world_size)
    above = set(_ancestors())
    return any(
        file.alive
        and file.holder_pid in above
        # Lightning's first rank starts the others.
        and (file.facts.world_size != own.world_size or file.facts.rank == own.rank)
        for _, file in statefile.others(environment.state_directory())
    )


def workload(code: CodeType | None = None) -> str:
    """Return the name of what is trained: that which the environment gives, else the script's; ``code`` is its code."""
    return clip_name(environment.text(environment.LAGGARD_WORKLOAD) or _script.name(code))


def has_group() -> bool:
    """Return whether the process is in torch's default process group."""
    distributed: Any = sys.modules.get("torch.distributed.distributed_c10d")
    return distributed is not None and distributed.is_initialized()


def resolve(identity: Identity, claim: Claim) -> tuple[Identity, bool]:
    """Complete the identity with what torch knows by now; return also whether that is all that it will know.

    Called by the drain thread; never blocks. What the ranks have to agree on travels through the store that torch keeps
    for them anyway; no collective is involved.
    """
    if has_group():
        distributed: Any = sys.modules["torch.distributed.distributed_c10d"]
        identity = replace(identity, rank=distributed.get_rank(), world_size=distributed.get_world_size())
        store = _store(distributed)
        run = _shared_run(store, identity, claim)
        local_rank = identity.local_rank if identity.placed else _local_rank(store, identity)
        settled = run is not None and local_rank is not None
        if run is not None:
            identity = replace(identity, run=run)
        if local_rank is not None:
            identity = replace(identity, local_rank=local_rank, placed=True)
        return identity, settled
    if identity.world_size <= 1:
        return replace(identity, run=claim(identity.run or _fresh_run(), identity.rank)), True
    return identity, False


def claim(run: str, rank: int, own: Path, write: Callable[[str], None]) -> str:
    """Return the first of the names run, run.2, run.3… whose rank no other live process on this host reports.

    So the processes of a sweep, of k folds or of hogwild, each of which is rank 0 of a run of one, have a series each.
    ``write`` puts the name into this process's state file, ``own``.
    """
    with _alone_in(own.parent):
        taken = {
            file.facts.run for _, file in statefile.others(own.parent, own) if file.alive and file.facts.rank == rank
        }
        name = next(name for name in _names(run) if name not in taken)
        write(name)
    if name != run:
        _logger.info("rank %d of run %r is another process of this host; this one reports as run %r", rank, run, name)
    return name


def _names(run: str) -> Iterator[str]:
    yield run
    for number in count(2):
        suffix = f".{number}"
        yield clip_name(run, NAME_BYTES - len(suffix)) + suffix


@contextlib.contextmanager
def _alone_in(directory: Path) -> Generator[None]:
    """Hold the folder's lock, where it can be had: another user could keep it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for _ in range(_TRIES):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                time.sleep(_PAUSE_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _run_from_environment() -> str:
    run = environment.text(environment.LAGGARD_RUN)
    if run:
        return run
    slurm = environment.text("SLURM_ARRAY_JOB_ID") or environment.text("SLURM_JOB_ID")
    if slurm:
        task = environment.text("SLURM_ARRAY_TASK_ID")
        step = environment.text("SLURM_STEP_ID")
        if len(step) >= _RESERVED_STEP_DIGITS:
            step = ""
        return "slurm-" + slurm + (f"_{task}" if task else "") + (f".{step}" if step else "")
    job = environment.text("KUBERNETES_JOB_UID")
    if job:
        return job
    elastic = environment.text("TORCHELASTIC_RUN_ID")
    # torchrun without --rdzv-id says "none" for every job.
    return "" if elastic.lower() == "none" else elastic


def _store(distributed: Any) -> Any:
    store = distributed._get_default_store()  # noqa: SLF001 - the one place where torch keeps it
    # The outer stores prefix their keys with the attempt; the name must outlive an elastic restart.
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return store


def _value(store: Any, key: str) -> str | None:
    # `get` would wait for a missing key and hold the store's lock meanwhile; `check` answers at once.
    return store.get(key).decode() if store.check([key]) else None


def _shared_run(store: Any, identity: Identity, claim: Claim) -> str | None:
    """Return the run's name as rank 0 has chosen it; None while it has not."""
    run = _value(store, STORE_KEY)
    if run is None and identity.rank == 0:
        run = claim(identity.run or _fresh_run(), 0)
        store.set(STORE_KEY, run)
    return run


def _local_rank(store: Any, identity: Identity) -> int | None:
    """Return how many ranks right below this one share its host; None while one has not said where it is."""
    here = f"{identity.host} {statefile.boot_id().hex()}"
    store.set(f"{HOST_KEY}/{identity.rank}", here)
    for below in range(identity.rank):
        there = _value(store, f"{HOST_KEY}/{identity.rank - below - 1}")
        if there is None:
            return None
        if there != here:
            return below
    return identity.rank


def _fresh_run() -> str:
    return time.strftime("%Y%m%d-%H%M%S-", time.gmtime()) + secrets.token_hex(3)


def _first_number(*variables: str, default: int) -> int:
    for name in variables:
        value = environment.text(name)
        if value.isascii() and value.isdecimal():
            return int(value)
        # Scripts and launchers say -1 for "not distributed".
        if value and value != "-1":
            _logger.warning("%s must be a whole number of at least 0, got %r; it is ignored", name, value)
    return default


def _ancestors() -> Iterator[int]:
    """Yield the processes above this one, the parent first."""
    process = os.getppid()
    with contextlib.suppress(OSError, ValueError, IndexError):
        while process > 1:
            yield process
            process = int(_status(process)[1])


def _status(pid: int) -> list[str]:
    """Return the fields of a process's status behind the name of its command, which may hold blanks and parentheses."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


@lru_cache(maxsize=1)
def _process_start(pid: int) -> tuple[int, int, int]:
    """Return the start of process ``pid``: in clock ticks since boot, and in nanoseconds of boot time and of Unix time.

    Reckoned once: the difference of the two clocks moves, and with it a start would that was reckoned again.
    """
    now = statefile.boottime_ns()
    ticks, started = 0, now
    with contextlib.suppress(OSError, ValueError, IndexError):
        ticks = int(_status(pid)[19])
        started = ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return ticks, started, ahead_ns(time.time_ns, statefile.boottime_ns) + started
