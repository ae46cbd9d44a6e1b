"""Faults of laggard itself: whatever breaks of it, training computes the same numbers and ends the same way."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass

#: Steps of a job, a tenth of a second each; and of one in which something is away for minutes.
_STEPS, _MANY_STEPS = 150, 1700


@dataclass(frozen=True)
class OwnFault:
    """A fault of laggard, what a user sees of it, and what is lost.

    ``act`` is what is done (:mod:`lab.chaos.own_acts`, :mod:`chaos.outages`).
    """

    name: str
    title: str
    act: str
    sees: str
    lost: str
    #: Steps in Prometheus at the end are those that were made.
    counted: bool = True
    steps: int = _STEPS
    #: No other fault at the same time: it takes away what they count with.
    alone: bool = False
    needs_root: bool = False
    needs_compiler: bool = False

    def missing(self) -> str:
        """Return why it cannot be played here; empty where it can."""
        if self.needs_root and os.geteuid() != 0:
            return "a small disk needs root"
        if self.needs_compiler and shutil.which("cc") is None:
            return "a clock of its own needs a C compiler (cc)"
        return ""


_SAME = "nothing"

OWN_FAULTS = (
    OwnFault("watched", "nothing: laggard looks on", "nothing", "the run, as always", _SAME),
    OwnFault(
        "prometheus-restarts",
        "Prometheus is killed and starts again",
        "prometheus",
        "a gap in all series; Alertmanager's dead man's switch, if it lasts",
        "the values of gauges during the gap; counters and histograms go on with all that was counted meanwhile",
    ),
    OwnFault(
        "exporter-restarts",
        "the node exporter is killed and starts again",
        "exporter",
        "TrainingTelemetryDown for each rank of the node, after a minute",
        "ages and states during the gap; the state files keep counting",
    ),
    OwnFault(
        "endpoint-never-answers",
        "the OTLP endpoint accepts and never answers",
        "endpoint-never-answers",
        "no metrics of the ranks; their state files go on, so stalls and deaths are still found",
        "spans beyond the SDK's queue; metrics are cumulative and arrive with the next export that works",
    ),
    OwnFault(
        "endpoint-unreachable",
        "nobody listens at the OTLP endpoint",
        "endpoint-unreachable",
        "as above",
        "as above",
    ),
    OwnFault(
        "disk-full",
        "the disk of the state folder is full before the start",
        "disk-full",
        "one warning in the rank's log; its metrics where it pushes them, or is scraped itself",
        "the state file: a stall or a death of this rank is found by its metrics alone, after minutes",
        counted=False,
        needs_root=True,
    ),
    OwnFault(
        "disk-fills",
        "the disk of the state folder becomes full during the run",
        "disk-fills",
        "nothing: a state file has its final size from the beginning",
        _SAME,
        counted=False,
        needs_root=True,
    ),
    OwnFault(
        "state-removed",
        "the state folder is removed during the run",
        "state-removed",
        "TrainingTelemetryDown for each rank of the node, after a minute",
        "what the state files say from then on; metrics as with a full disk",
        counted=False,
    ),
    OwnFault(
        "state-impossible",
        "the state folder cannot be made",
        "state-impossible",
        "one warning in the rank's log; its metrics where it pushes them, or is scraped itself",
        "the state file, as with a full disk",
        counted=False,
    ),
    OwnFault(
        "ports-taken",
        "all ports of the ranks' metrics are taken",
        "ports-taken",
        "the ranks serve at the next free port, which their state files name",
        "metrics of the ranks, until somebody scrapes that port",
    ),
    OwnFault("scrape-storm", "50 clients scrape without a pause", "storm", "slower scrapes for a moment", _SAME),
    OwnFault("garbage", "10 MB of random bytes are sent to each port of laggard", "garbage", "nothing", "nothing"),
    OwnFault(
        "prometheus-away",
        "Prometheus is gone for two and a half minutes",
        "prometheus-away",
        "a gap in all series; Alertmanager's dead man's switch",
        "the values of gauges during the gap, and what an alert would have said then; counters and histograms go on "
        "with all that was counted meanwhile",
        steps=_MANY_STEPS,
        alone=True,
    ),
    OwnFault(
        "exporter-away",
        "the node exporter of two ranks is gone until that is noticed",
        "exporter-away",
        "TrainingTelemetryDown for each rank of the node, after a minute",
        "ages and states during the gap: a stall or a death of these ranks is found by their metrics alone",
        steps=_MANY_STEPS,
        alone=True,
    ),
    OwnFault(
        "endpoint-away",
        "the OTLP endpoint is gone for two minutes and comes back",
        "endpoint-away",
        "no metrics of the ranks meanwhile, then all that was counted",
        "the values of gauges during the gap; spans beyond the SDK's queue of 2,048",
        steps=_MANY_STEPS,
    ),
    OwnFault(
        "clock-stepped",
        "the clock of the ranks' machine is set back by an hour",
        "clock-stepped",
        "nothing: ages come from a clock that nobody sets",
        "nothing; what carries a time of the day (last save, spans) is off by the step",
        steps=450,
        needs_compiler=True,
    ),
    OwnFault(
        "node-clock-stepped",
        "the clock of a node, its ranks and its exporter, is set forward by an hour, away from Prometheus'",
        "node-clock-stepped",
        "nothing about hangs: an age is told as such, and samples carry the time of Prometheus",
        "nothing; what carries a time of the day is off by the step",
        steps=450,
        needs_compiler=True,
        alone=True,
    ),
)
