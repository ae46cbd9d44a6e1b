"""What the node says of the processes of a rank: a real state file and a made-up procfs, with exact values."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from laggard_exporter.host.oom import OOM_KILLED, OomCollector
from laggard_exporter.kernel_log import KernelLog
from laggard_exporter.ranks.cgroup import CgroupCollector
from laggard_exporter.ranks.children import Children
from laggard_exporter.ranks.files import RankFiles
from laggard_exporter.ranks.scheduling import SchedulingCollector
from laggard_exporter.ranks.workers import WorkersCollector
from laggard_exporter.runner import UnsupportedError
from tests.exporter.ranks.support import Node, read
from tests.exporter.support import REPOSITORY, TIMEOUT, running
from tests.exporter.trees import stat, write_tree

TICK = 1 / os.sysconf("SC_CLK_TCK")
NO_WORKERS = {f'workers{{state="{state}"}}': 0 for state in ("running", "sleeping", "disk", "stopped", "dead")}


def short(values: dict[str, float]) -> dict[str, float]:
    """Return values with the accuracy of a clock tick's sum."""
    return {series: round(value, 6) for series, value in values.items()}


def test_workers(node: Node) -> None:
    """A rank's data workers are those of all its threads and of its fork server; other children are none."""
    assert short(read(WorkersCollector(node.files, node.procfs).collect())) == short(
        {
            **NO_WORKERS,
            'workers{state="running"}': 1,
            'workers{state="disk"}': 1,
            'workers{state="sleeping"}': 1,
            "worker_cpu_seconds_total": 351 * TICK,
            "worker_io_wait_seconds_total": 70 * TICK,
        }
    )


def test_workers_that_end(node: Node) -> None:
    """The totals never go back: a worker that ended stays in, and a new process with its number is another one."""
    collector = WorkersCollector(node.files, node.procfs)
    list(collector.collect())
    worker = f"{node.pid + 1}/stat"
    write_tree(node.procfs, {worker: stat(node.pid + 1, user=160, system=20, io_wait=35)})
    list(collector.collect())
    write_tree(node.procfs, {worker: stat(node.pid + 1, user=3, start=900)})
    samples = read(collector.collect())
    assert samples["worker_cpu_seconds_total"] == pytest.approx((351 + 60 + 3) * TICK)
    assert samples["worker_io_wait_seconds_total"] == pytest.approx(75 * TICK)
    for child in range(1, 5):
        shutil.rmtree(node.procfs / str(node.pid + child))
    samples = read(collector.collect())
    assert samples["worker_cpu_seconds_total"] == pytest.approx((351 + 60 + 3) * TICK)
    assert {series: value for series, value in samples.items() if series.startswith("workers")} == NO_WORKERS


def test_a_kernel_that_does_not_count_io_wait(node: Node) -> None:
    """Without delay accounting the kernel says 0 for every process: the wait is absent."""
    write_tree(node.procfs, {"sys/kernel/task_delayacct": "0\n"})
    assert "worker_io_wait_seconds_total" not in read(WorkersCollector(node.files, node.procfs).collect())


def test_a_rank_that_ended(node: Node) -> None:
    """A rank whose process ended has no series of its processes, in any collector."""
    node.process.kill()
    node.process.wait(TIMEOUT)
    for collector in (
        WorkersCollector(node.files, node.procfs),
        SchedulingCollector(node.files, node.procfs),
        CgroupCollector(node.files, node.procfs, node.sysfs),
    ):
        assert list(collector.collect()) == []


def test_children_are_found_cheaply(node: Node) -> None:
    """Threads that never started a process are looked at every half minute; a new worker of theirs is found then."""
    now = 100.0
    family = Children(node.procfs, clock=lambda: now)
    (rank,) = node.files.processes()
    workers = [node.pid + child for child in (1, 2, 3, 4)]
    assert sorted(family.of([rank])[rank]) == workers
    write_tree(node.procfs, {f"{node.pid}/task/{node.pid + 51}/children": f"{node.pid + 9} "})
    now = 129.0
    assert sorted(family.of([rank])[rank]) == workers
    now = 130.0
    assert sorted(family.of([rank])[rank]) == sorted([*workers, node.pid + 9])


def test_scheduling(node: Node) -> None:
    """A rank's processor time, its wait for a processor, its switches and faults, and the processors it may use."""
    assert read(SchedulingCollector(node.files, node.procfs).collect()) == {
        'cpu_seconds_total{mode="user"}': 1000 * TICK,
        'cpu_seconds_total{mode="system"}': 500 * TICK,
        "major_page_faults_total": 7,
        "run_delay_seconds_total": 1.25,
        "cpus_allowed": 5,
        'context_switches_total{kind="voluntary"}': 10,
        'context_switches_total{kind="involuntary"}': 4,
    }


def test_children_that_are_not_shown_are_not_none(node: Node, tmp_path: Path) -> None:
    """Without the kernel's file of children, or behind hidepid, workers and killed children are absent, not 0."""
    for file in node.procfs.glob("*/task/*/children"):
        file.unlink()
    assert list(WorkersCollector(node.files, node.procfs).collect()) == []
    log = tmp_path / "kmsg"
    log.touch()
    collector = OomCollector(node.files, node.procfs, "node-7", KernelLog(log))
    victims = {sample.labels[-1] for sample in collector.collect() if sample.family is OOM_KILLED}
    assert victims == {"rank"}


def test_a_kernel_that_does_not_count_run_delay(node: Node) -> None:
    """Zeros in place of the scheduler's statistics are no measurement."""
    for text in ("0 0 0\n", "\n"):
        write_tree(node.procfs, {f"{node.pid}/schedstat": text})
        assert "run_delay_seconds_total" not in read(SchedulingCollector(node.files, node.procfs).collect())


def test_cgroup(node: Node) -> None:
    """What the rank's control group and those above it cost it, and the least limit of all of them."""
    assert read(CgroupCollector(node.files, node.procfs, node.sysfs).collect()) == {
        "cgroup_throttled_seconds_total": 2.75,
        "cgroup_oom_kills_total": 2,
        "cgroup_memory_used_bytes": 123456,
        'cgroup_pressure_seconds_total{resource="cpu",tasks="some"}': 3,
        'cgroup_pressure_seconds_total{resource="cpu",tasks="full"}': 1,
        'cgroup_pressure_seconds_total{resource="io",tasks="some"}': 0.5,
        "cgroup_cpu_limit": 1.5,
        "cgroup_memory_limit_bytes": 1_000_000,
    }


@pytest.mark.parametrize("text", ["0::/../other\n", "9:memory:/job\n", "", "0::/missing\n"])
def test_a_group_out_of_sight(node: Node, text: str) -> None:
    """A group that the exporter's own view does not hold is absent, never another's."""
    write_tree(node.procfs, {f"{node.pid}/cgroup": text})
    assert list(CgroupCollector(node.files, node.procfs, node.sysfs).collect()) == []


@pytest.mark.parametrize("unified", [True, False], ids=["beside version 2", "alone"])
def test_control_groups_of_version_1(node: Node, tmp_path: Path, *, unified: bool) -> None:
    """Version 1 says the same, but for pressure: time in ns, a quota in two files, a huge number for no limit."""
    write_tree(
        node.procfs, {f"{node.pid}/cgroup": "9:cpuacct,cpu:/job/rank3\n8:memory:/job/rank3\n" + "0::/\n" * unified}
    )
    sysfs = write_tree(
        tmp_path / "version-1",
        {
            "fs/cgroup/unified/cgroup.controllers": "",
            "fs/cgroup/cpu/job/cpu.stat": "nr_periods 31\nnr_throttled 18\nthrottled_time 250000000\n",
            "fs/cgroup/cpu/job/cpu.cfs_quota_us": "150000\n",
            "fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n",
            "fs/cgroup/cpu/job/rank3/cpu.stat": "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n",
            "fs/cgroup/cpu/job/rank3/cpu.cfs_quota_us": "-1\n",
            "fs/cgroup/cpu/job/rank3/cpu.cfs_period_us": "100000\n",
            "fs/cgroup/memory/job/memory.limit_in_bytes": "1000000\n",
            "fs/cgroup/memory/job/rank3/memory.limit_in_bytes": "9223372036854771712\n",
            "fs/cgroup/memory/job/rank3/memory.usage_in_bytes": "123456\n",
            "fs/cgroup/memory/job/rank3/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
        },
    )
    assert read(CgroupCollector(node.files, node.procfs, sysfs).collect()) == {
        "cgroup_throttled_seconds_total": 0.25,
        "cgroup_oom_kills_total": 2,
        "cgroup_memory_used_bytes": 123456,
        "cgroup_cpu_limit": 1.5,
        "cgroup_memory_limit_bytes": 1_000_000,
    }


def test_no_control_groups(node: Node, tmp_path: Path) -> None:
    """A node without control groups is said to be one."""
    with pytest.raises(UnsupportedError, match="no control groups"):
        list(CgroupCollector(node.files, node.procfs, tmp_path / "none").collect())


def kill_line(pid: int, task: str = "python") -> str:
    """Return what the kernel writes when it kills a process for lack of memory."""
    return (
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/job,"
        f"task_memcg=/job/rank,task={task},pid={pid},uid=1000"
    )


def kills(collector: OomCollector) -> dict[str, float]:
    """Return the counts."""
    return read(collector.collect())


def test_oom_kills(node: Node, tmp_path: Path) -> None:
    """The kernel's count is there, and a killed worker or rank is counted for its rank, from 0 and once."""
    now, log = 0.0, tmp_path / "kmsg"

    def say(*messages: str) -> None:
        with log.open("a") as file:
            file.writelines(f"6,1,100,-;{message}\n SUBSYSTEM=memory\n" for message in messages)

    say(kill_line(node.pid + 2))
    collector = OomCollector(node.files, node.procfs, "node-7", KernelLog(log), clock=lambda: now)
    host = 'host_oom_kills_total{host_name="node-7"}'
    assert kills(collector) == {host: 7, 'oom_kills_total{victim="rank"}': 0, 'oom_kills_total{victim="child"}': 0}
    say(
        "some driver: oom-kill",
        kill_line(1),
        kill_line(node.pid + 2),
        kill_line(node.pid + 4, task="a,task=b,pid=1,uid=0"),
        f"Memory cgroup out of memory: Killed process {node.pid + 2} (python)",
    )
    assert kills(collector) == {host: 7, 'oom_kills_total{victim="rank"}': 0, 'oom_kills_total{victim="child"}': 2}
    node.process.kill()
    node.process.wait(TIMEOUT)
    say(kill_line(node.pid))
    expected = {host: 7, 'oom_kills_total{victim="rank"}': 1, 'oom_kills_total{victim="child"}': 2}
    assert kills(collector) == expected
    now = 899.0
    assert kills(collector) == expected
    now = 901.0
    assert kills(collector) == {host: 7}


def test_a_kernel_log_that_may_not_be_read(node: Node, tmp_path: Path) -> None:
    """Without the kernel log the ranks' kills are absent, with the reason, until it may be read."""
    path = tmp_path / "kmsg"
    collector = OomCollector(node.files, node.procfs, "node-7", KernelLog(path))
    assert kills(collector) == {'host_oom_kills_total{host_name="node-7"}': 7}
    assert collector.notes == [
        f"kills are not told by rank: {path}: No such file or directory; give the exporter CAP_SYSLOG"
    ]
    write_tree(node.procfs, {"vmstat": "nr_free_pages 1\n"})
    with pytest.raises(UnsupportedError, match="does not count oom_kill"):
        kills(collector)
    path.touch()
    assert kills(collector) == {'oom_kills_total{victim="rank"}': 0, 'oom_kills_total{victim="child"}': 0}
    assert collector.notes == []


def test_no_folder_yet(tmp_path: Path) -> None:
    """Before the first rank there is nothing, in every collector."""
    ranks = RankFiles(tmp_path / "missing")
    assert ranks.processes() == []
    assert list(WorkersCollector(ranks, tmp_path).collect()) == []


def test_real_data_workers(tmp_path: Path) -> None:
    """The workers of torch's own DataLoader are found by their name, and their processor time is counted."""
    command = [sys.executable, "-m", "tests.exporter.ranks.loading_process", str(tmp_path)]
    with running(command, cwd=REPOSITORY) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "loading\n"
        collector = WorkersCollector(RankFiles(tmp_path), Path("/proc"))
        first = read(collector.collect())
        assert process.stdin is not None
        process.stdin.close()
        process.wait(TIMEOUT)
    states = {series: value for series, value in first.items() if series.startswith("workers")}
    assert states.keys() == NO_WORKERS.keys()
    assert sum(states.values()) == 2
    assert first["worker_cpu_seconds_total"] > 0
