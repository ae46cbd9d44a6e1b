"""State files for tests of their collector, and what it makes of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from laggard.shared import statefile
from laggard.shared.phases import Phase, RankState
from laggard_exporter.ranks.state import StateCollector
from tests.exporter.support import NANOSECONDS, as_dict, series_name, starting_with

NOW = 25 * NANOSECONDS
#: A rank that waits in a collective since 20 s after boot; its newest step ended at 18.5 s.
WAITING = {
    statefile.STATE: RankState.RUNNING,
    statefile.PHASE: statefile.pack(Phase.COMMUNICATION, 20 * NANOSECONDS),
    statefile.PROGRESS: 77,
    statefile.STEPS: 12,
    statefile.LAST_STEP: 18_500_000_000,
    statefile.GROUPS: 0xABC,
    statefile.GROUPS + 1: statefile.pack(3, 41),
    statefile.GROUPS + 2: 40,
    statefile.GROUPS + 3: 0xFEDCBA9876543210,
    statefile.GROUPS + 4: statefile.pack(1, 7),
    statefile.GROUPS + 5: 7,
}


def rank_series(name: str, run: str = "run-1", rank: str = "3", **labels: str) -> str:
    """Return the name of a series of the rank."""
    return series_name(name, {"training_run": run, "training_rank": rank, **labels}.items())


def failure(phase: str, by: str, with_what: str = "", rank: str = "3") -> str:
    """Return the name of the series that says how a rank of :data:`FACTS` ended."""
    how = {"training_ended_by": by, "training_ended_with": with_what}
    name = "training_process_failure_timestamp_seconds"
    return rank_series(name, rank=rank, host_name="node-7", training_phase=phase, **how)


def failures(samples: Mapping[str, float]) -> dict[str, float]:
    """Return the samples that say how ranks ended."""
    return starting_with(samples, "training_process_failure_timestamp")


def collect(directory: Path, now_ns: int = NOW) -> dict[str, float]:
    """Return all samples of a fresh collector whose clock stands still."""
    return as_dict(StateCollector(directory, clock=lambda: now_ns).collect())


def ranks(directory: Path, now_ns: int = NOW) -> dict[str, float]:
    """Return the rank samples."""
    return starting_with(collect(directory, now_ns), "training_process_")


def results(samples: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the number of files by what became of them, without zeros."""
    prefix = "laggard_exporter_state_files"
    return {series[len(prefix) + 9 : -2]: value for series, value in samples if series.startswith(prefix) and value}


#: What is exported of such a rank at NOW.
WAITING_SERIES = {
    rank_series("training_process_up"): 1,
    rank_series("training_process_state", training_state="starting"): 0,
    rank_series("training_process_state", training_state="running"): 1,
    rank_series("training_process_state", training_state="finished"): 0,
    rank_series("training_process_state", training_state="failed"): 0,
    rank_series("training_process_condition"): 3,
    rank_series("training_process_standstill_seconds"): 5,
    rank_series("training_process_stopped"): 0,
    rank_series("training_process_steps_total"): 12,
    rank_series("training_process_progress_total"): 77,
    rank_series("training_process_phase", host_name="node-7", training_phase="other"): 0,
    rank_series("training_process_phase", host_name="node-7", training_phase="data"): 0,
    rank_series("training_process_phase", host_name="node-7", training_phase="h2d"): 0,
    rank_series("training_process_phase", host_name="node-7", training_phase="forward"): 0,
    rank_series("training_process_phase", host_name="node-7", training_phase="backward"): 0,
    rank_series("training_process_phase", host_name="node-7", training_phase="optimizer"): 0,
    rank_series("training_process_phase", host_name="node-7", training_phase="communication"): 1,
    rank_series("training_process_phase", host_name="node-7", training_phase="checkpoint"): 0,
    rank_series("training_process_phase", host_name="node-7", training_phase="evaluation"): 0,
    rank_series("training_process_phase_age_seconds"): 5,
    rank_series("training_process_last_step_age_seconds"): 6.5,
    rank_series("training_process_collective_sequence", training_process_group="0000000000000abc"): 41,
    rank_series("training_process_collective_sequence", training_process_group="fedcba9876543210"): 7,
    rank_series("training_process_collective_operation", training_process_group="0000000000000abc"): 3,
    rank_series("training_process_collective_operation", training_process_group="fedcba9876543210"): 1,
    rank_series("training_process_in_collective", training_process_group="0000000000000abc"): 1,
    rank_series("training_process_in_collective", training_process_group="fedcba9876543210"): 0,
    rank_series("training_process_world_size"): 8,
    rank_series("training_process_start_timestamp_seconds"): 1_700_000_000.5,
    rank_series(
        "training_process_info",
        host_name="node-7",
        process_pid="4242",
        training_local_rank="1",
        training_workload="train.py",
        uuid="GPU-0",
        training_peer_group="stage0",
        training_restarts="2",
        training_metrics_port="9465",
    ): 1,
}
