"""Batches of data: which of them a loop trains on, and which it evaluates."""

from __future__ import annotations

from laggard._recorder import EVALUATION_FORWARD, OPTIMIZER_STEP
from laggard.conventions import Phase

#: What says that the newest batch is trained on.
_TRAINING = frozenset({int(Phase.FORWARD), int(Phase.BACKWARD), int(Phase.OPTIMIZER), OPTIMIZER_STEP})

Interval = tuple[Phase, int, int]
"""A phase with the ``perf_counter_ns`` at which it began and ended."""


class Batch:
    """Tells evaluation from training, one batch at a time: from one fetch to the next.

    A batch that saw forwards without gradients and no training is an evaluation batch, and all of its time is
    evaluation, host work included. A fetch that nothing follows, after an evaluation batch, is the end of the
    evaluation loader. A forward without gradients in a training batch (a teacher) stays a forward. A checkpoint
    between two evaluation batches stays a checkpoint.
    """

    def __init__(self) -> None:
        #: The batch is the first of its iterator.
        self.first = False
        self._first = 0
        self._started = -1
        self._evaluated = False
        self._after_evaluation = False
        #: Whether the batch came from a loader; after the end of an evaluation loader none does.
        self.fetched = False
        self.trained = False

    def see(self, code: int) -> None:
        """Note what the batch is used for."""
        if code in _TRAINING:
            self.trained = True
        elif code == EVALUATION_FORWARD:
            self._evaluated = True

    def exhausted(self) -> None:
        """Say that the newest fetch gave no batch."""
        # At the end of the training loader a loop that reads ahead still has a batch to train on.
        self.fetched = not self._after_evaluation

    def next(self, intervals: list[Interval], at: int) -> bool:
        """Begin a batch with the fetch at ``at``; return whether the one before was a first one of training."""
        self.fetched = True
        return self._judge(intervals, at)

    def _judge(self, intervals: list[Interval], at: int) -> bool:
        """Say what the batch that ends at ``at`` was used for; return whether it was a first one of training."""
        evaluation = not self.trained and (self._evaluated or self._after_evaluation)
        if evaluation and self._started >= 0:
            begin = self._started
            checkpoints = [interval for interval in intervals[self._first :] if interval[0] == Phase.CHECKPOINT]
            del intervals[self._first :]
            if intervals and intervals[-1][0] == Phase.EVALUATION and intervals[-1][2] == begin:
                begin = intervals.pop()[1]
            intervals += [(Phase.EVALUATION, begin, at), *checkpoints]
        first = self.first and not evaluation
        self.first = False
        self._after_evaluation = evaluation
        self._evaluated = self.trained = False
        self._first = len(intervals)
        self._started = at
        return first

    def close(self, intervals: list[Interval]) -> bool:
        """End the batch with the step; return whether it was a first one of training."""
        if self._evaluated and not self.trained and intervals:
            self._judge(intervals, max(end for _, _, end in intervals))
        first, self.first = self.first, False
        self._first = 0
        self._started = -1
        self._evaluated = self.trained = False
        return first
