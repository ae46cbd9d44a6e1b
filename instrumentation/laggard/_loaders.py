"""Whose a fetch is: training data or an evaluation's. It is decided by the loader, never by what comes next.

A batch lives from its fetch to the next fetch of the same loader, or to the end of it; batches that are all fetched
before the first is used live to the next fetch of any. An iterator one of whose batches
lived through a backward pass, an update or the end of a named step is training data, for good. An iterator a batch of
which saw forwards and nothing else is an evaluation's. Until one of the two is known, and if neither is, it is data.
"""

from __future__ import annotations

from collections import deque

_NO_LOADER = 0
#: Fetches in turn that are remembered.
_MAX_ROUND = 64
#: Loaders that are remembered; a loop that makes a loader in each step makes many.
_MAX_LOADERS = 64


class Reading:
    """One pass over a loader: what is known of an iterator."""

    __slots__ = ("evaluation", "gradients", "inherited", "loader", "looked", "open", "recorded", "training")

    def __init__(self, loader: int, *, evaluation: bool = False) -> None:
        self.loader = loader
        #: It is training data; it is an evaluation's, by its own batches or only since the one before it was.
        self.training = False
        self.evaluation = self.inherited = evaluation
        #: Its evaluation has gradients: that of a molecule's forces, or of a script that does not switch them off.
        self.gradients = False
        #: A batch of it is out, and what that batch saw: forwards without gradients and with them.
        self.open = False
        self.looked = False
        self.recorded = False

    def end_batch(self) -> None:
        """Judge the batch that is out by what it saw. A forward with gradients may yet lead to training."""
        # Where the loader is not known, nothing that comes later could show it.
        if (self.looked or self.recorded) and not self.training and (self.loader or not self.recorded):
            self.evaluation, self.inherited = True, False
            self.gradients |= self.recorded
        self.looked = self.recorded = False


class Loaders:
    """Follows the fetches of all loaders of a process, in the order of their ends."""

    def __init__(self) -> None:
        #: The newest reading of each loader.
        self._readings: dict[int, Reading] = {}
        #: Readings whose batch is out and that are not known to be training data.
        self._undecided: list[Reading] = []
        #: Readings in the order in which they were fetched since something was trained, each once in a row.
        self._round: deque[Reading] = deque(maxlen=_MAX_ROUND)
        #: Loaders that have trained; 0 stands for training without one.
        self._trained: set[int] = set()
        #: The reading of the newest fetch, and of its loader the one before.
        self.newest: Reading | None = None
        self._before: Reading | None = None
        #: There was a forward since.
        self._forwarded = False
        #: The reading whose end was found last: its batches may be used now, until the next fetch.
        self._ended: Reading | None = None

    @property
    def open(self) -> bool:
        """Whether the newest fetch gave a batch."""
        return self.newest is not None and self.newest.open

    def fetch(self, loader: int) -> Reading:
        """Take a fetch; ``loader`` is 0 where its loader is not known. Return the reading that it is of."""
        self._forwarded = False
        ended, self._ended = self._ended, None
        if ended is not None and ended.loader not in self._trained and not ended.recorded:
            ended.end_batch()
        if loader and loader in self._trained:
            # Another batch that has only been looked at, of a loader that never trained, leads to nothing any more.
            for other in self._undecided:
                if other.loader not in self._trained and not other.recorded:
                    other.end_batch()
        before = reading = self._readings.get(loader)
        if reading is not None:
            reading.end_batch()
        if reading is None or not loader:
            reading = self._begin(loader)
        self._begin_batch(reading)
        self._before = before
        return reading

    def first(self) -> Reading | None:
        """Say that the newest fetch began an iterator. Return its reading, ``None`` before any fetch."""
        newest, before = self.newest, self._before
        if newest is None or not newest.loader or before is None:
            return newest
        self._close(before)
        # What the loader was before is likely, and no more: accuracy on training data is an evaluation of it.
        if self._round and self._round[-1] is before:
            self._round.pop()
        self._begin_batch(self._begin(newest.loader, evaluation=before.evaluation))
        return self.newest

    def exhausted(self) -> Reading | None:
        """Say that the newest fetch gave no batch. Return the reading whose end it is, ``None`` before any fetch."""
        newest, before = self.newest, self._before
        if newest is None:
            return None
        self._close(newest)
        if not newest.loader and before is not None:
            self.newest = newest = before
            self._close(before)
        self._ended = newest
        return newest

    def forward(self, *, gradients: bool) -> None:
        """Take a forward. All batches that are out may have a part in it, and those of an iterator just read whole."""
        self._forwarded = True
        for reading in self._undecided if self._ended is None else (*self._undecided, self._ended):
            reading.looked |= not gradients
            reading.recorded |= gradients

    def train(self, *, backward: bool) -> None:
        """Take a backward pass, an update or the end of a named step: the batches that are out lead to it."""
        newest, self._ended = self.newest, None
        if backward and newest is not None and newest.gradients and not (newest.open or self._forwarded):
            # The loss of a whole pass, whose backward follows its end.
            newest.training, newest.evaluation = True, False
        if self._undecided:
            trained = [reading for reading in self._undecided if not reading.evaluation]
            # An evaluation that was left before its end has a batch out too. It stays one, but where nothing else can
            # have led to this, and where its batches were fetched in turn with others that did.
            if newest is not None and newest.evaluation:
                out = any(reading.open and reading.training for reading in self._readings.values())
                alone = not (trained or out) and _NO_LOADER not in self._trained
                # What an evaluation has read before may be trained on now: folds, data of a next task.
                used = newest.inherited and newest.recorded and not newest.looked
                if alone or used or newest.loader in self._trained:
                    trained.append(newest)
            trained += [reading for reading in self._undecided if self._in_turn(reading, trained)]
            for reading in trained:
                reading.training, reading.evaluation = True, False
                self._trained.add(reading.loader)
            self._undecided = [reading for reading in self._undecided if not reading.training]
        self._round.clear()
        self._trained.add(newest.loader if newest is not None and newest.training else _NO_LOADER)

    def _begin(self, loader: int, *, evaluation: bool = False) -> Reading:
        reading = self._readings[loader] = Reading(loader, evaluation=evaluation)
        if len(self._readings) > _MAX_LOADERS:
            oldest = next(iter(self._readings))
            self._close(self._readings.pop(oldest))
            self._trained.discard(oldest)
        return reading

    def _in_turn(self, reading: Reading, others: list[Reading]) -> bool:
        """Return whether one of the others was fetched between two fetches of ``reading`` in this round."""
        places = [place for place, fetched in enumerate(self._round) if fetched is reading]
        between = list(self._round)[places[0] : places[-1]] if places else []
        return any(other in between for other in others)

    def _begin_batch(self, reading: Reading) -> None:
        """Take the newest fetch: a batch is out."""
        self.newest = reading
        if not self._round or self._round[-1] is not reading:
            self._round.append(reading)
        reading.open = True
        if not reading.training and reading not in self._undecided:
            self._undecided.append(reading)

    def _close(self, reading: Reading) -> None:
        reading.open = False
        if reading in self._undecided:
            self._undecided.remove(reading)
