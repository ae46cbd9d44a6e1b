"""What torch's flight recorder knows, written to a file once a rank has shown no sign of progress for long.

The node exporter reads the file, and the rules say which rank the others wait for. The drain thread writes it, since
the training thread is stuck; while training goes on nothing is asked of torch. A rank that goes on removes its file.
"""

from __future__ import annotations

import contextlib
import glob
import logging
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laggard import control, dumps, environment, statefile
from laggard._hooks.base import Hook, HookHost
from laggard.conventions import Phase, RankState

if TYPE_CHECKING:
    from laggard._identity import Identity
    from laggard._partition import Step
    from laggard._report import Report

_logger = logging.getLogger(__name__)

#: A stall is suspected after so long without a sign of progress, and after so many of the longest of the last steps.
#: Less than the alert's limit, which is ten usual steps and 15 seconds: the facts are to be there when it asks.
STALL_SECONDS, STALL_STEPS = 5.0, 5
#: What may take long by itself, a start, a checkpoint and an evaluation, has so much time.
PAUSE_SECONDS = 60.0

_RECENT = 64


class HangDump(Hook):
    """Writes this rank's dump, once a stall."""

    name = "hang"

    def __init__(self, host: HookHost) -> None:
        super().__init__(host)
        self._durations: deque[int] = deque(maxlen=_RECENT)
        #: The newest sign of progress, since when, and whether its dump was tried.
        self._sign = (0, 0)
        self._since = 0.0
        self._tried = False
        self._written: Path | None = None

    def uninstall(self) -> None:
        """Leave no dump behind."""
        super().uninstall()
        self._remove()

    def steps_ended(self, steps: list[Step]) -> None:
        """Learn how long a step takes."""
        self._durations.extend([step.duration for step in steps[-_RECENT:]])

    def report(self, report: Report) -> None:
        """Write the dump when it is time, and remove it when the rank goes on."""
        words = self.recorder.words
        if words is None:
            return
        sign, now = (words[statefile.PROGRESS], words[statefile.PHASE]), time.monotonic()
        if sign != self._sign or words[statefile.STATE] not in (RankState.STARTING, RankState.RUNNING):
            self._sign, self._since, self._tried = sign, now, False
            self._remove()
        elif not self._tried and now - self._since > self._limit(statefile.unpack(sign[1])[0]):
            self._tried = True
            self._write(report.identity)

    def forked(self) -> None:
        """Forget the parent's dump."""
        self._written = None
        self._sign = (0, 0)

    def _limit(self, phase: int) -> float:
        """Return the seconds without progress after which a stall is suspected."""
        if not self._durations or phase in (Phase.CHECKPOINT, Phase.EVALUATION):
            return PAUSE_SECONDS
        return max(STALL_SECONDS, STALL_STEPS * max(self._durations) / 1e9)

    def _write(self, identity: Identity) -> None:
        documents = list(_documents())
        if not documents:
            return
        text = f'{{"dumps":[{",".join(documents)}]}}'
        if len(text) > dumps.MAX_BYTES:
            _logger.warning("the flight recorder's dump of %d bytes is too large to be left for others", len(text))
            return
        directory = environment.state_directory()
        _remove_older(directory, control.stem(identity.run, identity.rank))
        start_ns = identity.facts(metrics_port=0).start_boottime_ns
        path = directory / dumps.file_name(identity.run, identity.rank, start_ns, *self._sign)
        try:
            control.write_atomically(path, [text])
        except OSError as error:
            _logger.warning("the flight recorder's dump can not be written: %s", error)
        else:
            self._written = path

    def _remove(self) -> None:
        path, self._written = self._written, None
        if path is not None:
            with contextlib.suppress(OSError):
                path.unlink()


def _remove_older(directory: Path, stem: str) -> None:
    """Remove what a process of the same rank left that was killed while it hung."""
    for path in directory.glob(f"{dumps.PREFIX}*-{glob.escape(stem)}{dumps.SUFFIX}"):
        with contextlib.suppress(OSError):
            path.unlink()


def _documents() -> Iterator[str]:
    """Yield what each flight recorder of this process says, as JSON. They are found by what this torch has."""
    native: Any = sys.modules.get("torch._C._distributed_c10d")
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    if native is None or c10d is None:
        return
    backends = " ".join(str(about[0]) for about in c10d._world.pg_map.values())  # noqa: SLF001 - the one list of groups
    for backend, name in (("nccl", "_dump_nccl_trace_json"), ("gloo", "_dump_fr_trace_json")):
        dump = getattr(native, name, None)
        # NCCL's is not touched where nobody uses it: it is a matter of the device.
        if dump is not None and backend in backends:
            yield dump(includeCollectives=True, onlyActive=False).decode("utf-8", "replace")
