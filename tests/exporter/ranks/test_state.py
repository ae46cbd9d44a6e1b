"""The state collector against real state files, of ranks that live, hang and are stopped."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from laggard.shared import process_metrics, statefile
from laggard.shared.phases import Phase
from laggard.shared.process_metrics import PROCESS_METRICS
from laggard_exporter.ranks import state
from laggard_exporter.ranks.state import StateCollector
from tests.exporter.ranks.state_files import NOW, WAITING, WAITING_SERIES, collect, rank_series, ranks
from tests.exporter.support import FACTS, NANOSECONDS, as_dict, dead_file, live_rank, starting_with
from tests.exporter.trees import write_tree


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
            return {series: value for series, value in samples.items() if "_failure_" not in series}

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


@pytest.mark.parametrize(
    ("group", "files", "expected"),
    [
        ("0::/job/step", {"job/step/cgroup.events": "populated 1\nfrozen 1\n"}, 1),
        ("0::/job/step", {"job/step/cgroup.events": "populated 1\nfrozen 0\n"}, 0),
        ("0::/job/step", {}, 0),
        ("0::/../job/step", {"../job/step/cgroup.events": "frozen 1\n"}, 0),
        ("9:name=systemd:/job/step\n6:freezer:/job/step\n0::/", {"freezer/job/step/freezer.state": "FROZEN\n"}, 1),
        ("6:devices,freezer:/job/step\n0::/", {"freezer/job/step/freezer.state": "FROZEN\n"}, 1),
        ("6:freezer:/job/step", {"freezer/job/step/freezer.state": "THAWED\n"}, 0),
        ("6:freezer:/job/step", {"job/step/cgroup.events": "frozen 1\n"}, 0),
    ],
)
def test_a_process_in_a_frozen_control_group_is_stopped(
    tmp_path: Path, group: str, files: dict[str, str], expected: int
) -> None:
    """A paused container and a job that its scheduler suspends so seem to sleep: their control group says it."""
    procfs = tmp_path / "proc"
    sysfs = write_tree(tmp_path / "sys", {f"fs/cgroup/{name}": text for name, text in files.items()})
    with live_rank(tmp_path / "files") as process:
        entry = {"stat": f"{process.pid} (python) S" + " 1" * 49, "cgroup": f"{group}\n"}
        write_tree(procfs / str(process.pid), entry)
        collector = StateCollector(tmp_path / "files", procfs=procfs, sysfs=sysfs, clock=lambda: NOW)
        samples = as_dict(collector.collect())
    assert samples[rank_series("training_process_stopped")] == expected
    assert samples[rank_series("training_process_condition")] == (2 if expected else 3)


def test_before_the_first_step(tmp_path: Path) -> None:
    """A rank without a finished step has no age of the newest step, and its phase is as old as the process."""
    dead_file(tmp_path)
    samples = ranks(tmp_path)
    assert starting_with(samples, "training_process_last_step_age_seconds") == {}
    assert samples[rank_series("training_process_phase_age_seconds")] == 15
    assert samples[rank_series("training_process_state", training_state="starting")] == 1


def test_every_metric_of_the_contract_has_a_value() -> None:
    """The collector knows each rank metric of the contract, and no other."""
    failure = [process_metrics.PROCESS_FAILURE_TIMESTAMP, process_metrics.PROCESS_FAILURE_LAST_STEP_AGE]
    assert [*state.SERIES, *failure] == list(PROCESS_METRICS)
