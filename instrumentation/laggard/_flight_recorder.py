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
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laggard._part import Host, Part
from laggard.shared import control, dumps, environment, statefile
from laggard.shared.phases import Phase, RankState

if TYPE_CHECKING:
    from laggard._identity import Identity
    from laggard._report import Report
    from laggard._steps import Step

_logger = logging.getLogger(__name__)

#: A stall is suspected after so long without a sign of progress, and after so many of the longest of the last steps.
#: Less than the alert's limit, which is ten usual steps and 15 seconds: the facts are to be there when it asks.
STALL_SECONDS, STALL_STEPS = 5.0, 5
#: What may take long by itself, a start, a checkpoint and an evaluation, has so much time.
PAUSE_SECONDS = 60.0

_RECENT = 64
#: Torch leaves the key out where there are none.
_HAS_ENTRIES = '"entries"'


class HangDump(Part):
    """Writes this rank's dump, once a stall."""

    name = "hang"

    def __init__(self, host: Host) -> None:
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
        documents = _documents()
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
            _logger.warning("the flight recorder's dump cannot be written: %s", error)
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


def _documents() -> list[str]:
    """Return what each flight recorder of this process says, as JSON. They are found by what this torch has.

    Since torch 2.15 each backend may have a recorder of its own beside NCCL's old one. One that does not answer or that
    nobody records into is left out, as long as another has anything to say.
    """
    native: Any = sys.modules.get("torch._C._distributed_c10d")
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    if native is None or c10d is None:
        return []
    backends: set[str] = set()
    for group, about in list(c10d._world.pg_map.items()):  # noqa: SLF001 - the one list of groups
        backends |= {part.rpartition(":")[2] for part in str(about[0]).replace(",", " ").split()}
        # A recorder has the name of the backend that a name stands for: nccl2 for nccl, since torch 2.15.
        with _logged():
            devices = getattr(group, "_device_types", ())
            backends |= {group._get_backend(device).name() for device in devices}  # noqa: SLF001 - no public way
    found: list[str] = []
    for dump, backend in _recorders(native, backends):
        with _logged():
            found.append(dump(includeCollectives=True, onlyActive=False, **backend).decode("utf-8", "replace"))
    return [text for text in found if _HAS_ENTRIES in text] or found


@contextlib.contextmanager
def _logged() -> Generator[None]:
    """Log what a recorder raises, of whatever version: the others are still to be read."""
    try:
        yield
    except Exception as error:
        _logger.warning("a flight recorder gives no dump: %s", error)


def _recorders(native: Any, backends: set[str]) -> Iterator[tuple[Callable[..., bytes], dict[str, str]]]:
    """Yield how each recorder is asked, and with what."""
    # NCCL's is not touched where nobody uses it: it is a matter of the device.
    old = getattr(native, "_dump_nccl_trace_json", None)
    if old is not None and "nccl" in backends:
        yield old, {}
    shared = getattr(native, "_dump_fr_trace_json", None)
    if shared is None:
        return
    if "backend: str" in (shared.__doc__ or ""):
        for backend in sorted(backends):
            yield shared, {"backend": backend}
    elif "gloo" in backends:
        yield shared, {}
