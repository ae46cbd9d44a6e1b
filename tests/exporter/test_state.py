"""The state collector against real state files, of ranks that live, end, hang, die and lie."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from laggard.shared import process_metrics, statefile
from laggard.shared.phases import Phase, RankState
from laggard.shared.process_metrics import PROCESS_METRICS
from laggard.shared.statefile import EndedBy, Ending
from laggard_exporter.ranks import files as rank_files
from laggard_exporter.ranks import state
from laggard_exporter.ranks.state import StateCollector
from tests.exporter.support import FACTS, NANOSECONDS, as_dict, dead_file, fresh, live_rank, series_name, starting_with

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
    rank_series("training_process_phase", training_phase="other"): 0,
    rank_series("training_process_phase", training_phase="data"): 0,
    rank_series("training_process_phase", training_phase="h2d"): 0,
    rank_series("training_process_phase", training_phase="forward"): 0,
    rank_series("training_process_phase", training_phase="backward"): 0,
    rank_series("training_process_phase", training_phase="optimizer"): 0,
    rank_series("training_process_phase", training_phase="communication"): 1,
    rank_series("training_process_phase", training_phase="checkpoint"): 0,
    rank_series("training_process_phase", training_phase="evaluation"): 0,
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


def test_a_live_rank(tmp_path: Path) -> None:
    """A live rank is exported with every metric of the contract, in base units, and nothing else."""
    with live_rank(tmp_path, words=WAITING):
        samples = collect(tmp_path)
    assert samples == WAITING_SERIES | {
        "laggard_exporter_state_directory_exists": 1,
        'laggard_exporter_state_files{result="exported"}': 1,
        'laggard_exporter_state_files{result="superseded"}': 0,
        'laggard_exporter_state_files{result="expired"}': 0,
        'laggard_exporter_state_files{result="rejected"}': 0,
        'laggard_exporter_state_files{result="no_run"}': 0,
    }


def test_a_rank_that_goes_on(tmp_path: Path) -> None:
    """Where a rank stands is said from a second without progress on, and until two minutes after the last such."""
    detail = {
        series
        for series in WAITING_SERIES
        if series.removeprefix("training_process_").startswith(
            ("condition", "standstill", "stopped", "phase{", "collective", "in_collective")
        )
    }
    now = [NOW - 4 * NANOSECONDS]
    collector = StateCollector(tmp_path, clock=lambda: now[0])

    def after(words: dict[int, int], time_ns: int) -> dict[str, float]:
        now[0] = time_ns
        newer = replace(FACTS, start_boottime_ns=FACTS.start_boottime_ns + time_ns - NOW + 5 * NANOSECONDS)
        with live_rank(tmp_path, newer, words):
            samples = starting_with(as_dict(collector.collect()), "training_process_")
            # Of those before, which this test ends by SIGKILL.
            return {series: value for series, value in samples.items() if series not in failures(samples)}

    condition = rank_series("training_process_condition")
    assert set(after(WAITING, NOW - 4 * NANOSECONDS)) == set(WAITING_SERIES) - detail
    assert after(WAITING, NOW - 4 * NANOSECONDS + 1)[condition] == 3
    # Long enough for whoever looks a minute back: it goes on again, though another process of it may.
    later = {**WAITING, statefile.PHASE: statefile.pack(Phase.FORWARD, NOW + 116 * NANOSECONDS)}
    assert after(later, NOW + 116 * NANOSECONDS + 1)[condition] == 4
    assert set(after(later, NOW + 116 * NANOSECONDS + 2)) == set(WAITING_SERIES) - detail


def test_a_rank_whose_steps_are_long(tmp_path: Path) -> None:
    """Once the exporter has seen how long a step takes, a rank stands still after that, and not after a second."""
    now = [NOW]
    collector = StateCollector(tmp_path, clock=lambda: now[0])
    condition = rank_series("training_process_condition")
    begun = {**WAITING, statefile.PHASE: statefile.pack(Phase.FORWARD, NOW - NANOSECONDS // 2)}
    last = WAITING[statefile.LAST_STEP] + 20 * NANOSECONDS
    # Two steps later, of ten seconds each.
    later = {
        **WAITING,
        statefile.STEPS: 14,
        statefile.LAST_STEP: last,
        statefile.PHASE: statefile.pack(Phase.BACKWARD, last),
    }
    with live_rank(tmp_path, words=begun):
        assert condition not in as_dict(collector.collect())
    newer = replace(FACTS, start_boottime_ns=FACTS.start_boottime_ns + 1)
    with live_rank(tmp_path, newer, later):
        now[0] = last + 10 * NANOSECONDS
        assert condition not in as_dict(collector.collect())
        now[0] += 1
        assert as_dict(collector.collect())[condition] == 3
    # A process that has made fewer steps is another one: nothing is known of its steps.
    restarted = replace(FACTS, start_boottime_ns=FACTS.start_boottime_ns + 2)
    fewer = {**later, statefile.STEPS: 1, statefile.PHASE: statefile.pack(Phase.FORWARD, now[0] - 2 * NANOSECONDS)}
    with live_rank(tmp_path, restarted, fewer):
        assert as_dict(collector.collect())[condition] == 3


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


def test_a_stopped_rank(tmp_path: Path) -> None:
    """A rank under SIGSTOP is up and stopped, and no longer stopped after SIGCONT."""
    stopped, up = rank_series("training_process_stopped"), rank_series("training_process_up")

    def wait_until(value: int) -> dict[str, float]:
        # The kernel stops and continues a process a moment after the signal was sent.
        for _ in range(100):
            samples = ranks(tmp_path)
            if samples[stopped] == value:
                return samples
            time.sleep(0.02)
        raise AssertionError(f"{stopped} never became {value}")

    with live_rank(tmp_path) as process:
        process.send_signal(signal.SIGSTOP)
        samples = wait_until(1)
        assert samples[up] == 1
        assert samples[rank_series("training_process_condition")] == 2
        process.send_signal(signal.SIGCONT)
        assert wait_until(0)[up] == 1


@pytest.mark.parametrize(
    ("stat", "expected"),
    [
        ("{pid} (python) S" + " 1" * 49, 0),
        ("{pid} (python) T" + " 1" * 49, 1),
        ("{pid} (python) t" + " 1" * 49, 1),
        ("{pid} (a) T (b) R" + " 1" * 49, 0),
        ("{pid} (python) T 1 2", None),
        ("", None),
        (None, None),
    ],
)
def test_stopped_is_read_from_procfs(tmp_path: Path, stat: str | None, expected: int | None) -> None:
    """Stopped follows the state that procfs shows, whatever the command is called, and is absent where it cannot."""
    files, procfs = tmp_path / "files", tmp_path / "proc"
    with live_rank(files) as process:
        if stat is not None:
            entry = procfs / str(process.pid) / "stat"
            entry.parent.mkdir(parents=True)
            entry.write_text(stat.format(pid=process.pid))
        samples = as_dict(StateCollector(files, procfs=procfs, clock=lambda: NOW).collect())
    assert samples.get(rank_series("training_process_stopped")) == expected


def test_before_the_first_step(tmp_path: Path) -> None:
    """A rank without a finished step has no age of the newest step, and its phase is as old as the process."""
    dead_file(tmp_path)
    samples = ranks(tmp_path)
    assert starting_with(samples, "training_process_last_step_age_seconds") == {}
    assert samples[rank_series("training_process_phase_age_seconds")] == 15
    assert samples[rank_series("training_process_state", training_state="starting")] == 1


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


def test_a_dead_file_expires(tmp_path: Path) -> None:
    """A dead file is exported until 15 minutes after its last sign of life; then it is removed."""
    path = dead_file(tmp_path, words=WAITING)
    last_moment = 20 * NANOSECONDS + 900 * NANOSECONDS
    assert results(collect(tmp_path, last_moment).items()) == {"exported": 1}
    assert path.exists()
    samples = collect(tmp_path, last_moment + 1)
    assert starting_with(samples, "training_process_") == {}
    assert results(samples.items()) == {"expired": 1}
    assert not path.exists()
    assert results(collect(tmp_path, last_moment + 1).items()) == {}


def test_a_live_file_never_expires(tmp_path: Path) -> None:
    """A rank that hangs for a day is exported for a day."""
    with live_rank(tmp_path, words=WAITING):
        samples = ranks(tmp_path, 20 * NANOSECONDS + 86_400 * NANOSECONDS)
        assert samples[rank_series("training_process_phase_age_seconds")] == 86_400


def test_an_expired_file_of_somebody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An expired file that may not be removed stays without harm."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    path = dead_file(tmp_path)
    monkeypatch.setattr(os, "unlink", refuse)
    assert results(collect(tmp_path, 10_000 * NANOSECONDS).items()) == {"expired": 1}
    assert path.exists()


def test_a_run_that_is_not_known_yet(tmp_path: Path) -> None:
    """A rank that does not know its run yet is counted and not exported."""
    dead_file(tmp_path, replace(FACTS, run=""))
    samples = collect(tmp_path)
    assert starting_with(samples, "training_process_") == {}
    assert results(samples.items()) == {"no_run": 1}


def test_a_vanished_file_leaves_nothing(tmp_path: Path) -> None:
    """The scrape after a file vanished has none of its series, from the same collector."""
    collector = StateCollector(tmp_path, clock=lambda: NOW)
    path = dead_file(tmp_path)
    assert rank_series("training_process_up") in as_dict(collector.collect())
    path.unlink()
    assert starting_with(as_dict(collector.collect()), "training_process_") == {}


def test_a_folder_that_comes_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A missing folder is a normal state, said in a metric and once in the log; ranks that come are found."""
    caplog.set_level(logging.INFO)
    directory = tmp_path / "later"
    collector = StateCollector(directory, clock=lambda: NOW)
    for _ in range(2):
        samples = as_dict(collector.collect())
        assert samples["laggard_exporter_state_directory_exists"] == 0
        assert results(samples.items()) == {}
    assert [record.getMessage() for record in caplog.records] == [
        f"state folder {directory} does not exist yet: no rank has started here"
    ]
    dead_file(directory)
    samples = as_dict(collector.collect())
    assert samples["laggard_exporter_state_directory_exists"] == 1
    assert results(samples.items()) == {"exported": 1}


def test_a_folder_that_can_not_be_listed(tmp_path: Path) -> None:
    """A folder that is a file or a symbolic link fails the collector: that is not the same as no ranks."""
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("file", "link"):
        with pytest.raises(OSError, match=name):
            collect(tmp_path / name)


def _corrupt(path: Path, offset: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[offset : offset + len(data)] = data
    path.write_bytes(content)


def make_hostile_files(directory: Path) -> int:
    """Fill the folder with everything that is no state file of ours and return how many there are."""
    good = dead_file(directory / "elsewhere")
    (directory / "link.state").symlink_to(good)
    (directory / "dangling.state").symlink_to(directory / "nothing")
    os.mkfifo(directory / "fifo.state")
    (directory / "folder.state").mkdir()
    (directory / "empty.state").touch()
    (directory / "truncated.state").write_bytes(good.read_bytes()[:2048])
    (directory / "longer.state").write_bytes(good.read_bytes() + b"\0")
    (directory / "random.state").write_bytes(os.urandom(statefile.SIZE))
    (directory / "line\nbreak.state").touch()
    _corrupt(dead_file(directory), 8, b"\xff")  # another version
    _corrupt(dead_file(directory), statefile.PHASE * 8 + 7, b"\x7f")  # no phase of ours
    _corrupt(dead_file(directory), statefile.STATE * 8, b"\x09")  # no state of ours
    _corrupt(dead_file(directory), 16, b"\1")  # facts that are being written for ever
    dead_file(directory, replace(FACTS, boot_id=bytes(16)))
    future = NOW + 1
    dead_file(directory, replace(FACTS, start_boottime_ns=future))
    dead_file(directory, words={statefile.PHASE: statefile.pack(Phase.DATA, future)})
    dead_file(directory, words={statefile.LAST_STEP: future})
    return sum(path.name.endswith(".state") for path in directory.iterdir())


def test_hostile_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever else lies in the folder is counted, logged once per file, and costs no rank its series."""
    hostile = make_hostile_files(tmp_path)
    assert hostile == 17
    dead_file(tmp_path, replace(FACTS, rank=0))
    collector = StateCollector(tmp_path, clock=lambda: NOW)
    for _ in range(2):
        samples = as_dict(collector.collect())
        assert results(samples.items()) == {"exported": 1, "rejected": hostile}
        assert rank_series("training_process_up", rank="0") in samples
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == len(set(messages)) == hostile
    assert all(message.isprintable() and ".state" in message for message in messages)


def test_one_user_can_not_fill_the_scrape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a number of files a user's oldest files are rejected, so the scrape stays bounded."""
    monkeypatch.setattr(rank_files, "FILES_PER_USER", 3)
    for rank, age in enumerate((40, 0, 10, 30, 20)):
        path = dead_file(tmp_path, replace(FACTS, rank=rank))
        os.utime(path, (1000 - age, 1000 - age))
    samples = collect(tmp_path)
    assert results(samples.items()) == {"exported": 3, "rejected": 2}
    present = [str(rank) for rank in range(5) if rank_series("training_process_up", rank=str(rank)) in samples]
    assert present == ["1", "2", "4"]


def test_a_file_that_others_can_write(tmp_path: Path) -> None:
    """A file that its group or everybody can write is not believed."""
    for mode, result in ((0o644, "exported"), (0o664, "rejected"), (0o646, "rejected"), (0o600, "exported")):
        path = dead_file(tmp_path)
        path.chmod(mode)
        assert results(collect(tmp_path).items()) == {result: 1}
        path.unlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files to others")
def test_a_rank_of_somebody_else(tmp_path: Path) -> None:
    """A newer file of another user does not take over a live rank."""
    with live_rank(tmp_path, words={statefile.STEPS: 7}) as process:
        for number in range(4):  # whatever their random names are
            path = dead_file(tmp_path, replace(FACTS, start_boottime_ns=(20 + number) * NANOSECONDS))
            os.chown(path, 65534, 65534)
        samples = collect(tmp_path)
        assert results(samples.items())["exported"] == 1
        assert results(samples.items())["rejected"] >= 1
        assert samples[rank_series("training_process_steps_total")] == 7
        assert samples[rank_series("training_process_up")] == 1
        assert process.poll() is None


def test_every_metric_of_the_contract_has_a_value() -> None:
    """The collector knows each rank metric of the contract, and no other."""
    failure = [process_metrics.PROCESS_FAILURE_TIMESTAMP, process_metrics.PROCESS_FAILURE_LAST_STEP_AGE]
    assert [*state.SERIES, *failure] == list(PROCESS_METRICS)
