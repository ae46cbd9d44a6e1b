"""The state collector against real state files, of ranks that end, die and start again."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from laggard.shared import statefile
from laggard.shared.phases import Phase, RankState
from laggard.shared.statefile import EndedBy, Ending
from laggard_exporter.ranks.state import StateCollector
from tests.exporter.ranks.state_files import (
    NOW,
    WAITING,
    WAITING_SERIES,
    collect,
    failure,
    failures,
    rank_series,
    ranks,
    results,
)
from tests.exporter.support import FACTS, NANOSECONDS, as_dict, dead_file, fresh, live_rank, starting_with


def test_a_killed_rank(tmp_path: Path) -> None:
    """A killed rank is down at once, keeps its last state, phase and collectives, and its ages go on growing."""
    with live_rank(tmp_path, words=WAITING) as process:
        process.kill()
        process.wait(10)
        expected = dict(WAITING_SERIES)
        del expected[rank_series("training_process_stopped")]
        expected[rank_series("training_process_up")] = 0
        expected[rank_series("training_process_condition")] = 0
        expected[failure("communication", "unseen")] = 1_700_000_010.5
        assert ranks(tmp_path) == expected
        expected[rank_series("training_process_standstill_seconds")] = 105
        expected[rank_series("training_process_phase_age_seconds")] = 105
        expected[rank_series("training_process_last_step_age_seconds")] = 106.5
        assert ranks(tmp_path, NOW + 100 * NANOSECONDS) == expected


@pytest.mark.parametrize(
    ("ending", "by", "with_what"),
    [
        (Ending(EndedBy.EXCEPTION, 1, "torch.OutOfMemoryError"), "exception", "torch.OutOfMemoryError"),
        (Ending(EndedBy.EXIT, 3), "exit", "3"),
        (Ending(EndedBy.SIGNAL, signal.SIGTERM), "request", "SIGTERM"),
        (Ending(EndedBy.SIGNAL, signal.SIGINT, "KeyboardInterrupt"), "request", "SIGINT"),
        (Ending(EndedBy.EXIT, 128 + signal.SIGTERM), "request", "SIGTERM"),
        (Ending(EndedBy.EXIT, 128 + signal.SIGABRT), "signal", "SIGABRT"),
        (Ending(EndedBy.EXCEPTION, 128 + signal.SIGTERM, "ValueError"), "exception", "ValueError"),
        (Ending(EndedBy.EXIT, 255), "exit", "255"),
    ],
)
def test_how_a_rank_ended(tmp_path: Path, ending: Ending, by: str, with_what: str) -> None:
    """What the process said of its end is told, with the time at which it said so."""
    words = {**WAITING, statefile.STATE: RankState.FAILED, statefile.ENDED: 21 * NANOSECONDS}
    path = dead_file(tmp_path, words=words)
    with path.open("r+b") as file:
        file.seek(8 * statefile.ENDING)
        file.write(statefile.pack(ending.by, ending.code).to_bytes(8, "little"))
        file.seek(2048)
        file.write(ending.exception.encode())
    samples = collect(tmp_path)
    assert failures(samples) == {failure("communication", by, with_what): 1_700_000_011.5}
    # Its last step was over for so long then; an exception leaves all phases, so they do not tell that.
    last_step = (21 * NANOSECONDS - WAITING[statefile.LAST_STEP]) / NANOSECONDS
    assert samples[rank_series("training_process_failure_last_step_age_seconds")] == pytest.approx(last_step)


def test_when_a_killed_rank_died(tmp_path: Path) -> None:
    """The kernel's word on the end of a process counts to the millisecond, however late the next scrape is."""
    collector = StateCollector(tmp_path)
    facts = fresh(pid_start_ticks=0)
    other = replace(facts, rank=4, pid=4343)
    phase = {statefile.PHASE: statefile.pack(Phase.FORWARD, facts.start_boottime_ns)}
    with live_rank(tmp_path, facts, phase) as first, live_rank(tmp_path, other, phase) as second:
        assert failures(as_dict(collector.collect())) == {}
        ends: dict[str, float] = {}
        for rank, process in (("4", second), ("3", first)):
            time.sleep(0.1)
            ends[rank] = (facts.start_unix_ns + statefile.boottime_ns() - facts.start_boottime_ns) / NANOSECONDS
            process.kill()
            process.wait(10)
        time.sleep(0.3)
        told = failures(as_dict(collector.collect()))
    series = {rank: failure("forward", "unknown", rank=rank) for rank in ends}
    assert told == {series[rank]: pytest.approx(ends[rank], abs=0.05) for rank in ends}
    assert told[series["4"]] < told[series["3"]]


def test_a_restart_does_not_hide_a_failure(tmp_path: Path) -> None:
    """How the process before ended is told for as long as its file is there, whatever its successor does."""
    dead_file(tmp_path, words=WAITING)
    told = {failure("communication", "unseen"): 1_700_000_010.5}
    words = {statefile.PHASE: statefile.pack(Phase.OTHER, 22 * NANOSECONDS), statefile.STATE: RankState.FINISHED}
    dead_file(tmp_path, replace(FACTS, start_boottime_ns=22 * NANOSECONDS, restarts=3), words)
    samples = collect(tmp_path)
    assert samples[rank_series("training_process_condition")] == 1
    assert failures(samples) == told
    # Nobody saw that end, so nobody knows how long its last step was over.
    assert rank_series("training_process_failure_last_step_age_seconds") not in samples
    with live_rank(tmp_path, replace(FACTS, start_boottime_ns=23 * NANOSECONDS, restarts=4)):
        samples = collect(tmp_path)
        assert samples[rank_series("training_process_up")] == 1
        assert failures(samples) == told


def test_a_rank_that_hung_for_long_is_told_once_it_died(tmp_path: Path) -> None:
    """The quarter of an hour for which a dead rank is told begins when it died, not with its last sign of progress."""
    now = [NOW]
    collector = StateCollector(tmp_path, clock=lambda: now[0])
    with live_rank(tmp_path, words=WAITING) as process:
        now[0] = NOW + 1800 * NANOSECONDS
        assert as_dict(collector.collect())[rank_series("training_process_up")] == 1
        process.kill()
        process.wait(10)
        now[0] += 899 * NANOSECONDS
        assert as_dict(collector.collect())[rank_series("training_process_condition")] == 0
        now[0] += 2 * NANOSECONDS
        assert starting_with(as_dict(collector.collect()), "training_process_") == {}


def test_a_finished_rank(tmp_path: Path) -> None:
    """A rank that finished says so after its process is gone: finished is not stuck."""
    dead_file(tmp_path, words={**WAITING, statefile.STATE: RankState.FINISHED})
    samples = ranks(tmp_path)
    assert samples[rank_series("training_process_up")] == 0
    assert samples[rank_series("training_process_condition")] == 1
    assert starting_with(samples, "training_process_state{") == {
        rank_series("training_process_state", training_state="starting"): 0,
        rank_series("training_process_state", training_state="running"): 0,
        rank_series("training_process_state", training_state="finished"): 1,
        rank_series("training_process_state", training_state="failed"): 0,
    }


def test_the_newest_process_of_a_rank_wins(tmp_path: Path) -> None:
    """Of several processes of one run and rank only the newest is exported; other ranks and runs stand beside it."""
    second = NANOSECONDS
    dead_file(tmp_path, replace(FACTS, start_boottime_ns=11 * second), {statefile.STEPS: 11})
    dead_file(tmp_path, replace(FACTS, start_boottime_ns=13 * second), {statefile.STEPS: 13})
    dead_file(tmp_path, replace(FACTS, start_boottime_ns=12 * second), {statefile.STEPS: 12})
    dead_file(tmp_path, replace(FACTS, rank=4), {statefile.STEPS: 4})
    dead_file(tmp_path, replace(FACTS, run="run-2"), {statefile.STEPS: 2})
    samples = collect(tmp_path)
    assert starting_with(samples, "training_process_steps_total") == {
        rank_series("training_process_steps_total"): 13,
        rank_series("training_process_steps_total", rank="4"): 4,
        rank_series("training_process_steps_total", run="run-2"): 2,
    }
    assert results(samples.items()) == {"exported": 3, "superseded": 2}


def test_of_equally_old_processes_the_live_one_wins(tmp_path: Path) -> None:
    """A dead file cannot hide a live process that started at the same time."""
    with live_rank(tmp_path):
        for _ in range(4):
            dead_file(tmp_path)
        assert ranks(tmp_path)[rank_series("training_process_up")] == 1
