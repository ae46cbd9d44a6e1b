"""What a training script calls by hand."""

from __future__ import annotations

import logging
from types import TracebackType

from laggard import _process
from laggard._recorder import STEP_BEGIN, STEP_END, Token
from laggard.conventions import Phase

_logger = logging.getLogger(__name__)

_PHASES = {phase.label: phase for phase in Phase}
_unknown_phases: set[str] = set()


def instrument() -> None:
    """Instrument this process.

    Metrics and spans go to the OpenTelemetry providers that the process has. Where it has no meter provider and the
    extra ``otel`` is installed, a Prometheus endpoint is set up as ``laggard run`` would do it.
    """
    try:
        _ensure_meter_provider()
    except Exception:
        _logger.exception("no meter provider could be set up; nothing will be exported")
    _process.instrument()


def uninstrument() -> None:
    """Undo :func:`instrument`: every patched attribute is what it was, nothing is written or served any more."""
    _process.uninstrument()


def set_peer_group(name: str) -> None:
    """Say which ranks do the same work: those that give the same name, for example a pipeline stage.

    Only ranks of one peer group are compared. Before the first step has ended, for the group is part of every series;
    wins over ``LAGGARD_PEER_GROUP`` and over what a device mesh shows.
    """
    process = _process.current()
    if process is not None:
        process.peers.named = str(name).strip()


class step:  # noqa: N801 - reads as a function where it is used
    """Context of one training step, for loops whose steps laggard can not see. From its first use on, only such
    contexts are steps.
    """  # noqa: D205

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
    """Context of one phase inside a step: data, h2d, forward, backward, optimizer, communication, checkpoint,
    evaluation or other. An unknown name counts as other and is named in one warning.
    """  # noqa: D205

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


def _mark(code: int) -> None:
    process = _process.current()
    if process is not None:
        process.training_evidence()
        process.recorder.mark(code)


def _ensure_meter_provider() -> None:
    from opentelemetry import metrics  # noqa: PLC0415 - not needed where a launcher has set things up

    if type(metrics.get_meter_provider()).__name__ != "_ProxyMeterProvider":
        return
    try:
        from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415 - the extra may not be installed

        from laggard.prometheus import PrometheusReader  # noqa: PLC0415 - as above
    except ImportError:
        _logger.warning(
            "the extra 'otel' is not installed: only the state file is written. pip install 'laggard[otel]'"
        )
        return
    metrics.set_meter_provider(MeterProvider([PrometheusReader()]))
