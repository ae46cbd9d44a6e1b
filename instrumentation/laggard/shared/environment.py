"""Environment variables of the instrumentation: one constant, one documentation string, one reader each.

A value that cannot be read is named in one warning and the default is used: training goes on.
"""

from __future__ import annotations

import logging
import math
import os
from pathlib import Path

from laggard.shared import statefile

_logger = logging.getLogger(__name__)

#: Variables and values that :func:`choice` has warned of; it is asked many times.
_refused: set[tuple[str, str]] = set()

LAGGARD_RUN = "LAGGARD_RUN"
"""
.. envvar:: LAGGARD_RUN

Name of the run, equal on all its ranks and kept over restarts. Default: the Slurm job, the Kubernetes job's uid,
the elastic run id, or else a fresh name that rank 0 hands to the others through torch's store.
"""

LAGGARD_WORKLOAD = "LAGGARD_WORKLOAD"
"""
.. envvar:: LAGGARD_WORKLOAD

Name of what is trained, stable across runs, for comparison with history. Default: the name of the script's file, of
the package or of the archive.
"""

LAGGARD_COMMIT = "LAGGARD_COMMIT"
"""
.. envvar:: LAGGARD_COMMIT

Version of the code that is trained with, kept with the run. Default: none.
"""

LAGGARD_IMAGE = "LAGGARD_IMAGE"
"""
.. envvar:: LAGGARD_IMAGE

Image of the container, kept with the run. Default: none.
"""

LAGGARD_PRECISION = "LAGGARD_PRECISION"
"""
.. envvar:: LAGGARD_PRECISION

Precision of the training, such as ``bf16``, kept with the run. Default: none.
"""

LAGGARD_TEAM = "LAGGARD_TEAM"
"""
.. envvar:: LAGGARD_TEAM

Who the run belongs to, kept with the run. Default: none.
"""

LAGGARD_HOST = "LAGGARD_HOST"
"""
.. envvar:: LAGGARD_HOST

Name of the host that the rank runs on, the same that the node exporter says (``--host.name``). In a container the
node's name, since the container's own is another. Default: the host's own name.
"""

LAGGARD_PEER_GROUP = "LAGGARD_PEER_GROUP"
"""
.. envvar:: LAGGARD_PEER_GROUP

Ranks with the same value do the same work and are compared with one another, for example a pipeline stage.
Default: the place along the pipeline and tensor dimensions of the script's device mesh, else none, all ranks are peers.
"""

LAGGARD_STATE_DIR = "LAGGARD_STATE_DIR"
"""
.. envvar:: LAGGARD_STATE_DIR

Folder of the ranks' state files, which the node exporter reads. Default: ``laggard`` in shared memory.
"""

LAGGARD_CONTROL_USER = "LAGGARD_CONTROL_USER"
"""
.. envvar:: LAGGARD_CONTROL_USER

User, by name or number, whose control files a rank accepts beside those of its own user and of root, such as the node
exporter's. What that user asks for is written to the state folder only. Default: none.
"""

LAGGARD_TRACE_EVERY = "LAGGARD_TRACE_EVERY"
"""
.. envvar:: LAGGARD_TRACE_EVERY

A step is traced each time this many have been made, on all ranks the same one. Of short steps, LAGGARD_STEP_RATE leaves
a share of these. 0: none. Default: 100.
"""

LAGGARD_TRACE_SLOW = "LAGGARD_TRACE_SLOW"
"""
.. envvar:: LAGGARD_TRACE_SLOW

A step longer than this many times the median of the recent steps becomes a trace. 0: none. Default: 2.
"""

LAGGARD_TRACE_SIGNAL = "LAGGARD_TRACE_SIGNAL"
"""
.. envvar:: LAGGARD_TRACE_SIGNAL

Signal that makes a rank write its last steps to a file, for example ``SIGRTMIN+1``. Default: none.
"""

LAGGARD_BUDGET = "LAGGARD_BUDGET"
"""
.. envvar:: LAGGARD_BUDGET

Per cent of the step that telemetry may take; above it traces are given up, then optional signals. 0: no limit.
Default: 0.5.
"""

LAGGARD_SERIES = "LAGGARD_SERIES"
"""
.. envvar:: LAGGARD_SERIES

``compact`` leaves what the rules need, at most 60 series a rank. Default: ``default``, every signal.
"""

LAGGARD_HISTOGRAMS = "LAGGARD_HISTOGRAMS"
"""
.. envvar:: LAGGARD_HISTOGRAMS

``full`` gives every histogram of durations the 16 bounds of the step's. Default: ``default``, decades, and for phases
none.
"""

LAGGARD_STEP_RATE = "LAGGARD_STEP_RATE"
"""
.. envvar:: LAGGARD_STEP_RATE

Steps a second that go into the duration histograms; of shorter steps a share does, evenly scattered, and all
are counted. 0: every step. Default: 25.
"""

LAGGARD_WARMUP_STEPS = "LAGGARD_WARMUP_STEPS"
"""
.. envvar:: LAGGARD_WARMUP_STEPS

The first steps of a process, which are kept out of the duration histograms. Default: 3.
"""

LAGGARD_DISABLED_HOOKS = "LAGGARD_DISABLED_HOOKS"
"""
.. envvar:: LAGGARD_DISABLED_HOOKS

Comma-separated names of hooks that are not installed, for example ``collectives``. Default: none. Old names work:
``worker``, ``compiled``, ``compiler``, ``fetch``, ``prefetch``.
"""

LAGGARD_HOT_PATH = "LAGGARD_HOT_PATH"
"""
.. envvar:: LAGGARD_HOT_PATH

``python`` leaves the native hot path unused, which the wheels for known platforms bring and an installation from
source compiles where it can. Default: ``native``, where there is one; ``compiled`` is its old name.
"""

LAGGARD_PROVIDERS = "LAGGARD_PROVIDERS"
"""
.. envvar:: LAGGARD_PROVIDERS

``replaceable`` lets the script set OpenTelemetry providers of its own, as it can where nothing launches it; what
laggard reports goes there too, and on to the exporters that the launcher was given. ``laggard run`` says so.
Default: ``fixed``, the first providers of a process stay.
"""

OTEL_EXPORTER_PROMETHEUS_HOST = "OTEL_EXPORTER_PROMETHEUS_HOST"
OTEL_EXPORTER_PROMETHEUS_PORT = "OTEL_EXPORTER_PROMETHEUS_PORT"
"""Of OpenTelemetry: where a rank serves its metrics."""

PROMETHEUS_PORT = 9464
"""Of local rank 0, unless the variable says otherwise."""

HIGHEST_PORT = 65535


def text(name: str) -> str:
    """Return the variable's value without surrounding blanks, or an empty string."""
    return os.environ.get(name, "").strip()


def number(name: str, default: float) -> float:
    """Return the variable as a finite number of at least 0, else ``default`` with one warning."""
    value = text(name)
    if not value:
        return default
    parsed = _parsed(value)
    if 0 <= parsed < math.inf:
        return parsed
    _logger.warning("%s must be a number of at least 0, got %r; using %g", name, value, default)
    return default


def whole_number(name: str, default: int, *, minimum: int = 0, maximum: int = 2**31 - 1) -> int:
    """Return the variable as a whole number within these bounds, else ``default`` with one warning."""
    value = text(name)
    if not value:
        return default
    parsed = _parsed(value)
    if parsed.is_integer() and minimum <= parsed <= maximum:
        return int(parsed)
    _logger.warning("%s must be a whole number of %d to %d, got %r; using %d", name, minimum, maximum, value, default)
    return default


def _parsed(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        return math.nan


def choice(name: str, *options: str) -> str:
    """Return the variable if it is one of the options, else the first of them, with one warning where it is set."""
    value = text(name) or options[0]
    if value in options:
        return value
    if (name, value) not in _refused:
        _refused.add((name, value))
        _logger.warning("%s must be one of %s, got %r; using %s", name, ", ".join(options), value, options[0])
    return options[0]


def hot_path() -> str:
    """Return ``native`` or ``python``."""
    if text(LAGGARD_HOT_PATH) == "compiled":  # the old name
        return "native"
    return choice(LAGGARD_HOT_PATH, "native", "python")


def names(name: str) -> frozenset[str]:
    """Return the variable's comma-separated names."""
    return frozenset(part.strip() for part in text(name).split(",") if part.strip())


def user(name: str) -> int | None:
    """Return the number of the user that the variable names; ``None`` without one, and with a warning if unknown."""
    value = text(name)
    if not value:
        return None
    try:
        if value.isdecimal():
            return int(value)
        import pwd  # noqa: PLC0415 - it is absent on Windows

        return pwd.getpwnam(value).pw_uid
    except KeyError:
        _logger.warning("%s must be a user of this host, got %r; using none", name, value)
        return None


def state_directory() -> Path:
    """Return the folder of the state files."""
    value = text(LAGGARD_STATE_DIR)
    return Path(value) if value else statefile.default_directory()
