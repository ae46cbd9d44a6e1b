"""The instrumentation in the test's own process, without its drain: what the hooks recorded, cut into steps."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CellType, FunctionType
from typing import Any

from laggard import _process
from laggard._hooks import Hook
from laggard._partition import StepPartition
from laggard._steps import Step
from laggard.shared.phases import Phase


@contextmanager
def instrumented() -> Iterator[_process.Process]:
    """Instrument this process for a while; nothing is drained, opened or served."""
    _process.instrument()
    process = _process.current()
    assert process is not None
    process._settled = True
    try:
        yield process
    finally:
        if _process.current() is not None:
            _process.uninstrument()


def hook_named(process: _process.Process, name: str) -> Hook:
    """The hook of this name."""
    (hook,) = [part for part in process._parts if part.name == name]
    assert isinstance(hook, Hook)
    return hook


def by_value(function: Any) -> Any:
    """A function as another process gets it from cloudpickle, with nothing of ours in it."""
    cells = [copy.copy(cell.cell_contents) for cell in function.__closure__]
    assert not any(getattr(cell, "__module__", "").startswith("laggard.") for cell in cells)
    return FunctionType(function.__code__, {"sys": sys}, function.__name__, None, tuple(map(CellType, cells)))


def steps_of(process: _process.Process) -> list[Step]:
    """The steps in all that was recorded so far, as the drain would find them."""
    partition = StepPartition(warmup_steps=0)
    return partition.feed(process.recorder.drain()) + partition.finish()


def phases(step: Step) -> set[str]:
    """Names of the phases that the step has time in, but for ``other``, which every step has."""
    return {phase.label for phase in Phase if step.phases[phase]} - {"other"}
