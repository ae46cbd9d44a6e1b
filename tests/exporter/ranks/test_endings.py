"""The state collector against real state files, of ranks that end, die and start again."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from laggard.shared import statefile
from laggard.shared.phases import Phase, RankState
from laggard.shared.statefile import EndedBy, Ending
from laggard_exporter.kernel_log import OOM_KILL, KernelLog
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
from tests.support.kernel import said
from tests.support.waiting import until


def heard(collector: StateCollector, ranks: int = 1) -> dict[str, float]:
    """Return the failures once the collector has heard how each of some ranks ended."""

    def told() -> dict[str, float]:
        found = failures(as_dict(collector.collect()))
        return found if len(found) == ranks and not any("unseen" in series for series in found) else {}

    return until(told)


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


@pytest.mark.parametrize(
    ("ending", "seconds", "by", "with_what"),
    [
        (Ending(EndedBy.EXCEPTION, 1, "RuntimeError"), 60, "request", "SIGTERM"),
        (Ending(EndedBy.EXIT, 1), 60, "request", "SIGTERM"),
        (Ending(EndedBy.EXIT, 1), 1000, "exit", "1"),
        (Ending(EndedBy.SIGNAL, signal.SIGABRT), 60, "signal", "SIGABRT"),
    ],
)
def test_who_was_asked_to_end(tmp_path: Path, ending: Ending, seconds: int, by: str, with_what: str) -> None:
    """What a handler of SIGTERM makes of it is an end on request; a fault is none, nor an end after 15 minutes."""
    ended = 2000 * NANOSECONDS
    words = {
        **WAITING,
        statefile.STATE: RankState.FAILED,
        statefile.ENDED: ended,
        statefile.ENDING: statefile.pack(ending.by, ending.code),
        statefile.ASKED: statefile.pack(signal.SIGTERM, ended - seconds * NANOSECONDS),
    }
    with dead_file(tmp_path, words=words).open("r+b") as file:
        file.seek(2048)
        file.write(ending.exception.encode())
    (series,) = failures(collect(tmp_path, ended))
    assert series == failure("communication", by, with_what)


def test_an_unseen_end_is_no_earlier_than_the_last_step(tmp_path: Path) -> None:
    """A script that names its steps and no phase may be in one phase from its start on; its steps are signs of life."""
    start = FACTS.start_boottime_ns
    dead_file(tmp_path, words={statefile.STEPS: 9, statefile.LAST_STEP: start + 7 * NANOSECONDS})
    told = failures(collect(tmp_path, start + 60 * NANOSECONDS))
    assert told == {failure("other", "unseen"): FACTS.start_unix_ns / NANOSECONDS + 7}


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
        told = heard(collector, 2)
    series = {rank: failure("forward", "unknown", said(signal.SIGKILL.name), rank=rank) for rank in ends}
    assert told == {series[rank]: pytest.approx(ends[rank], abs=0.05) for rank in ends}
    assert told[series["4"]] < told[series["3"]]


def test_who_died_while_the_exporter_was_held_up(tmp_path: Path) -> None:
    """An end that is heard of too late is unseen, with when it lived: else who lost its peer would have ended first."""
    held_up = [0]
    collector = StateCollector(tmp_path, clock=lambda: statefile.boottime_ns() + held_up[0])
    facts = fresh()
    with live_rank(tmp_path, facts) as process:
        assert failures(as_dict(collector.collect())) == {}
        lived = (facts.start_unix_ns + statefile.boottime_ns() - facts.start_boottime_ns) / NANOSECONDS
        time.sleep(0.3)
        held_up[0] = 12 * NANOSECONDS
        process.kill()
        process.wait(10)
        time.sleep(0.2)
        told = failures(as_dict(collector.collect()))
    assert told == {failure("other", "unseen", said("SIGKILL")): pytest.approx(lived, abs=0.1)}


def test_when_a_rank_died_that_proc_hides(tmp_path: Path) -> None:
    """Where /proc shows nobody else's processes (hidepid), the end of a rank is seen all the same."""
    collector = StateCollector(tmp_path, procfs=tmp_path / "hidden")
    with live_rank(tmp_path, fresh()) as process:
        assert failures(as_dict(collector.collect())) == {}
        process.kill()
        process.wait(10)
        assert list(heard(collector)) == [failure("other", "unknown", said("SIGKILL"))]


@pytest.mark.parametrize(
    ("end", "by", "with_what"),
    [
        (-signal.SIGSEGV, "unknown", "SIGSEGV"),
        (-signal.SIGABRT, "unknown", "SIGABRT"),
        (-signal.SIGTERM, "request", "SIGTERM"),
        (7, "unknown", "exit code 7"),
        (128 + signal.SIGBUS, "unknown", "SIGBUS"),
    ],
)
def test_how_a_rank_died_without_a_word(tmp_path: Path, end: int, by: str, with_what: str) -> None:
    """What a process did not say of its end the kernel does, once its parent has asked."""
    collector = StateCollector(tmp_path)
    with live_rank(tmp_path, fresh(pid_start_ticks=0), ends=end) as process:
        assert failures(as_dict(collector.collect())) == {}
        assert process.stdin is not None
        process.stdin.close()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        time.sleep(0.2)
        early = failures(as_dict(collector.collect()))
        process.wait(10)
        (series,) = heard(collector)
    expected = failure("other", by, with_what) if said(with_what) else failure("other", "unknown")
    assert series == expected
    # Of a process whose parent has not asked the kernel says nothing, so nothing is said that would change.
    assert list(early) == [failure("other", "unseen") if said(with_what) else expected]


@pytest.mark.parametrize("seen", [True, False])
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSEGV])
def test_who_was_killed_after_it_was_asked_to_end(tmp_path: Path, end: int, seen: bool) -> None:  # noqa: FBT001 - a parameter
    """The kill that follows a SIGTERM was asked for; a fault was not."""
    collector = StateCollector(tmp_path)
    words = {statefile.ASKED: statefile.pack(signal.SIGTERM, statefile.boottime_ns())}
    with live_rank(tmp_path, fresh(pid_start_ticks=0), words, ends=-end) as process:
        assert failures(as_dict(collector.collect() if seen else ())) == {}
        assert process.stdin is not None
        process.stdin.close()
        process.wait(10)
        time.sleep(0.2 if seen else 0)
        (series,) = failures(as_dict(collector.collect()))
    at_fault = seen and end == signal.SIGSEGV and said("SIGSEGV")
    assert series == (failure("other", "unknown", "SIGSEGV") if at_fault else failure("other", "request", "SIGTERM"))


def test_who_leaves_with_exit_code_0_has_finished(tmp_path: Path) -> None:
    """`os._exit(0)` is a clean end: nobody wonders which rank failed in a job that ended well."""
    collector = StateCollector(tmp_path)
    with live_rank(tmp_path, fresh(pid_start_ticks=0), ends=0) as process:
        collector.collect()
        assert as_dict(collector.collect())[rank_series("training_process_up")] == 1
        assert process.stdin is not None
        process.stdin.close()
        process.wait(10)
        time.sleep(0.2)
        samples = as_dict(collector.collect())
    assert samples[rank_series("training_process_condition")] == (1 if said("finished") else 0)
    assert len(failures(samples)) == (0 if said("finished") else 1)


@pytest.mark.parametrize(("code", "with_what"), [(0, ""), (7, "exit code 7")])
def test_who_runs_another_program_has_finished(tmp_path: Path, code: int, with_what: str) -> None:
    """A process that lives has not failed, though its training let go of its file (execve); its own end is one."""
    collector = StateCollector(tmp_path)
    program = ["/bin/sh", "-c", f"echo begun; sleep 0.5; exit {code}"]
    with live_rank(tmp_path, fresh(pid_start_ticks=0), ends=program) as process:
        collector.collect()
        assert as_dict(collector.collect())[rank_series("training_process_up")] == 1
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        assert process.stdout.readline() == "begun\n"
        samples = as_dict(collector.collect())
        assert samples[rank_series("training_process_condition")] == 1
        assert failures(samples) == {}
        process.wait(10)
        time.sleep(0.2)
        told = failures(as_dict(collector.collect()))
    if said("known"):
        assert list(told) == ([failure("other", "unknown", with_what)] if code else [])


def test_who_was_killed_for_lack_of_memory(tmp_path: Path) -> None:
    """The kernel's log says which of the ranks that are killed together it was."""
    log = tmp_path / "kmsg"
    log.touch()
    states = tmp_path / "states"
    collector = StateCollector(states, log=KernelLog(log).reader(OOM_KILL))
    facts = fresh(pid_start_ticks=0)
    with live_rank(states, facts) as first, live_rank(states, replace(facts, rank=4, pid=4343)) as second:
        assert failures(as_dict(collector.collect())) == {}
        with log.open("a") as file:
            file.write(f"6,1,1,-;oom-kill:constraint=CONSTRAINT_MEMCG,task=python,pid={second.pid},uid=0\n")
        for process in (first, second):
            process.kill()
            process.wait(10)
        told = heard(collector, 2)
    assert set(told) == {
        failure("other", "unknown", said("SIGKILL")),
        failure("other", "unknown", "out of memory", rank="4"),
    }


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
