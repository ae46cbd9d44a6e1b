"""What a training script calls by hand."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from types import TracebackType
from typing import Any

from laggard import _process, _providers
from laggard._events import STEP_BEGIN, STEP_END, Token
from laggard._summary import Summary
from laggard.shared.control import MAX_STEPS
from laggard.shared.phases import Phase

_logger = logging.getLogger(__name__)

_PHASES = {phase.label: phase for phase in Phase}
_unknown_phases: set[str] = set()


def instrument() -> None:
    """Instrument this process.

    Metrics and spans go to the OpenTelemetry providers that the process has, also where the script sets them later.
    Until then, and with the extra ``otel``, metrics go where OpenTelemetry's variables say, or to a Prometheus endpoint
    as under ``laggard run``.
    """
    try:
        _make_meter_provider()
    except Exception:
        _logger.exception("no meter provider could be set up; nothing will be exported")
    _process.instrument()


def uninstrument() -> None:
    """Undo :func:`instrument`: every patched attribute is what it was, nothing is written or served any more."""
    _process.uninstrument()


def set_peer_group(name: str) -> None:
    """Say which ranks do the same work: those that give the same name, for example a pipeline stage.

    Only ranks of one peer group are compared. Call it before the first step has ended: the group is part of every
    series from then on. It wins over ``LAGGARD_PEER_GROUP`` and over what a device mesh shows.
    """
    process = _process.current()
    if process is not None:
        process.peers.named = str(name).strip()


class step:  # noqa: N801 - reads as a function where it is used
    """Context of one training step, for loops whose steps laggard cannot see.

    From its first use on, only such contexts are steps, each with the fetch of its batch where that comes just before.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        """Begin the step."""
        _mark(STEP_BEGIN)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the step."""
        _mark(STEP_END)


class phase:  # noqa: N801 - reads as a function where it is used
    """Context of one phase inside a step.

    Phases are data, h2d, forward, backward, optimizer, communication, checkpoint, evaluation and other. An unknown name
    counts as other and is named in one warning.
    """

    __slots__ = ("_phase", "_token")

    def __init__(self, name: str) -> None:
        known = _PHASES.get(name)
        if known is None and name not in _unknown_phases:
            _unknown_phases.add(name)
            _logger.warning(
                "laggard.phase(%r): no such phase, counted as other; known are %s", name, ", ".join(_PHASES)
            )
        self._phase = Phase.OTHER if known is None else known
        self._token: Token | None = None

    def __enter__(self) -> None:
        """Begin the phase."""
        process = _process.current()
        if process is not None:
            self._token = process.recorder.begin(self._phase)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the phase."""
        process = _process.current()
        if process is not None:
            process.recorder.end(self._token)


def log(**values: Any) -> None:
    """Report numbers that only the script knows.

    They are ``loss``, ``gradient_norm``, ``learning_rate``, and of this rank since the last call ``samples``,
    ``tokens`` and ``flops``. Tensors of one element are taken too. One on a device is copied without waiting for the
    device. A name or a value that is none of this is named in one warning.
    """
    process = _process.current()
    if process is not None:
        process.log.record(values)


def dump_trace(path: str | os.PathLike[str] = "") -> None:
    """Have the last steps written within about a second.

    They are JSON lines where the name ends in ``.jsonl``, else a trace for Chrome's viewer and Perfetto. Without a path
    it goes to the state folder.
    """
    process = _process.current()
    if process is not None and (name := _path("dump_trace", path)) is not None:
        process.trace.request(name)


def profile(steps: int = 5, path: str | os.PathLike[str] = "", *, stacks: bool = False) -> None:
    """Have the next steps profiled by torch's profiler. Its Chrome trace goes to ``path`` or to the state folder.

    With ``stacks`` the Python functions are in it too, for code between the phases; that makes these steps slower.

    A step is here an update of an optimizer or a :class:`step`. Refused with one line while another profile runs.
    """
    process = _process.current()
    if process is None or (name := _path("profile", path)) is None:
        return
    if type(steps) is not int or not 1 <= steps <= MAX_STEPS:
        _logger.warning("laggard.profile(steps=%r) is ignored: not a whole number of 1 to %d", steps, MAX_STEPS)
        return
    process.profiler.request(steps, name, stacks=bool(stacks))


def summary() -> Summary:
    """Return the last steps of this rank in figures, without any server.

    A notebook and rich show it as a table, ``print`` as text. Waits for the steps that have just ended, for half a
    second at most. After :func:`uninstrument` it is of the steps before.
    """
    try:
        return _process.summary()
    except Exception:
        _logger.exception("no summary could be made")
        return Summary(note="no summary could be made; the log has the reason")


def _path(function: str, path: Any) -> str | None:
    try:
        # Absolute now: the script may change its folder before the file is written.
        return str(Path(os.fsdecode(path)).absolute()) if path else ""
    except Exception:
        _logger.warning("laggard.%s(path=%r) is ignored: no path", function, path)
        return None


def _mark(code: int) -> None:
    process = _process.current()
    if process is not None:
        process.training_evidence()
        if not process.recorder.thread:
            process.recorder.claim()
        process.recorder.mark(code)
        process.profiler.named_steps = True
        at_step = process.at_step
        if code == STEP_END and at_step is not None:
            at_step(code)


def _make_meter_provider() -> None:
    try:
        _providers.make_own()
    except ImportError:
        _logger.warning(
            "the extra 'otel' is not installed: only the state file is written; pip install 'laggard[otel]'"
        )
