"""What an event says: codes of phases, of what is like one, and of marks. Hooks write, the partition reads them."""

from __future__ import annotations

from laggard.shared.phases import Phase

Event = tuple[int, int, int]
"""A code with the ``perf_counter_ns`` at which it began and ended. The code is a phase or one of the codes below."""

Token = tuple[int, int, int]
"""An open interval: its code, the phase around it, and the ``perf_counter_ns`` at which it began."""

# Marks: events without a length.
UPDATE = 16  # an optimizer changed the parameters, or a gradient scaler decided not to
FIRST_BATCH = 17  # the fetch that just ended was the first of its iterator, workers were started
STEP_BEGIN = 18  # `laggard.step()` was entered; from then on the steps are the ones that the script names
STEP_END = 19
RESUME = 20  # a checkpoint or the state of an optimizer was loaded
LOST = 21  # events are missing here
SKIPPED = 32  # a gradient scaler found gradients that are not finite, the update was left out
COMPILATION = 33  # the compiler began to work on code that is about to run
EXHAUSTED = 34  # the fetch that just ended found the end of its loader, not a batch

#: A step of an optimizer: its interval, and at its end an update.
OPTIMIZER_STEP = 48 | Phase.OPTIMIZER
#: A loader makes an iterator: it starts workers, or tells those that it has to begin again.
ITERATOR = 64 | Phase.DATA
#: An iterator that was left before its end stops its workers.
ENDING = 128 | Phase.DATA
#: A forward of a module in ``eval()`` mode. The low bits say evaluation, which is what the state file shows; the
#: partition decides whether it was one, or a teacher inside a training step.
EVALUATION_FORWARD = 16 | Phase.EVALUATION
#: A forward without gradients of a module in training mode: pseudo-labels, a rollout, an evaluation that kept the mode.
NO_GRAD_FORWARD = 64 | Phase.FORWARD
#: A pass of the autograd engine that accumulates no gradients: ``autograd.grad``, which an evaluation may use too.
GRADIENT = 64 | Phase.BACKWARD
#: The bits of a code that are the phase that the state file shows.
PHASE_BITS = 15
#: From this bit on a code says whose the interval is: the loader of a fetch, the optimizer of a step; 0 where unknown.
IDENTITY_SHIFT = 8
CODE_BITS = (1 << IDENTITY_SHIFT) - 1

#: Phases in which a module that is called is an outermost one: between the parts of a step, and in the closure of an
#: optimizer. A module that a fetch calls is data, and one that backward calls is recomputed.
MODULE_PHASES = (Phase.OTHER, Phase.OPTIMIZER)
#: Phases that swallow a fetch: that of a loader inside a data set, and what the script has named.
SWALLOWS_FETCH = (Phase.DATA, Phase.EVALUATION, Phase.CHECKPOINT)


def identity_of(thing: object) -> int:
    """Return the bits of a code that say whose the interval is: its place in memory, its own while it lives."""
    return (id(thing) >> 4 & 0xFFFFFF) << IDENTITY_SHIFT
