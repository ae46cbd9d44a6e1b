"""A rank's own state file: where it stands, written as that changes, for whoever looks from outside."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from laggard import _identity
from laggard.shared import environment, statefile

if TYPE_CHECKING:
    from laggard._part import Part
    from laggard._recorder import Recorder
    from laggard._steps import Step
    from laggard.shared.phases import RankState
    from laggard.shared.statefile import Ending, Facts

_logger = logging.getLogger(__name__)

#: How long training waits for its file, in seconds. Storage that does not answer keeps its caller for ever.
_PATIENCE = 2.0


class RankFile:
    """Writes a rank's state file. Without one, as where its folder cannot be made, the rank trains and nothing is told.

    Args:
        recorder: writes the live words from the hot path.
        parts: write words of their own.
        facts: of the rank, as far as they are known.
    """

    def __init__(self, recorder: Recorder, parts: list[Part], facts: Facts) -> None:
        self._recorder = recorder
        #: What the file says of the rank.
        self.facts = facts
        #: None without a file.
        self.writer: statefile.StateWriter | None = None
        try:
            self.writer = _made(facts)
        except statefile.StateFileError as error:
            _logger.warning(
                "%s; training goes on, but no node exporter sees this rank. Set %s to a folder that this "
                "user may write",
                error,
                environment.LAGGARD_STATE_DIR,
            )
            return
        recorder.words = self.writer.words
        for part in parts:
            part.guarded(part.state_file_opened)(self.writer.words)

    def write_facts(self, facts: Facts) -> None:
        """Say who the rank is."""
        self.facts = facts
        if self.writer is not None:
            self.writer.write_facts(facts)

    def remove_old(self) -> None:
        """Remove what ranks of this user have left that ended long ago."""
        if self.writer is not None:
            statefile.remove_old(self.writer.path)

    def claim(self, run: str, rank: int) -> str:
        """Return a name for the run under which no other live process has this rank, and say it."""
        writer = self.writer
        if writer is None:
            return run
        return _identity.claim(run, rank, writer.path, lambda name: writer.write_facts(replace(self.facts, run=name)))

    def write(self, state: RankState, ended: Step | None = None, steps: int = 0) -> None:
        """Say the rank's state, and where a step has ended that one and how many there were."""
        if self.writer is None:
            return
        words = self.writer.words
        words[statefile.STATE] = state
        if ended is not None:
            words[statefile.STEPS] = steps
            words[statefile.LAST_STEP] = self._recorder.boottime(ended.ended)

    def note_end(self) -> None:
        """Say that the end has begun."""
        if self.writer is not None:
            self.writer.note_end()

    def write_ending(self, ending: Ending) -> None:
        """Say how the process ended."""
        if self.writer is not None:
            self.writer.write_ending(ending)

    def forget_end(self) -> None:
        """Say that the process has not begun to end after all."""
        if self.writer is not None:
            self.writer.forget_end()

    def detach(self, *, unlink: bool) -> None:
        """Write no more, and with ``unlink`` remove the file."""
        writer, self.writer = self.writer, None
        self._recorder.words = None
        if writer is not None:
            writer.close(unlink=unlink)


def _made(facts: Facts) -> statefile.StateWriter:
    """Return the file, which another thread makes. Raises :class:`StateFileError`, also where that takes too long."""
    directory = environment.state_directory()
    made: list[statefile.StateWriter | Exception] = []
    #: Whoever has it first decides whether the file is in time.
    decided = threading.Lock()

    def make() -> None:
        try:
            made.append(statefile.StateWriter(directory, facts))
        except Exception as error:  # who waits raises it again
            made.append(error)
        if not decided.acquire(blocking=False) and not isinstance(made[0], Exception):
            made[0].close(unlink=True)

    thread = threading.Thread(target=make, name="laggard-state-file", daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    if decided.acquire(blocking=False):
        raise statefile.StateFileError(f"state folder {directory}: no answer within {_PATIENCE:g} s")
    if isinstance(made[0], Exception):
        raise made[0]
    return made[0]
