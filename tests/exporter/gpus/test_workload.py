"""Which rank, pod and job the processes on a GPU belong to."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from laggard_exporter.gpus.pci import NVIDIA, count_gpus
from laggard_exporter.gpus.workload import GpuProcess, GpuWorkload, Workloads, live_ranks
from laggard_exporter.nvml.child.shares import SAMPLE_SECONDS
from laggard_exporter.ranks.files import RankFiles
from tests.exporter.gpus.support import failures
from tests.exporter.nvml.support import BUSY, IDLE
from tests.exporter.support import as_dict, dead_file, fresh, live_rank, nvml_probe, series_name, starting_with
from tests.fake_nvml.fake import EVERYTHING, Scenario

POD = "1f0d5fbc-6f2a-4b8e-9a55-0123456789ab"
CONTAINER = "c" * 64
GIB = 1 << 30

CGROUPS = {
    "systemd": f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD.replace('-', '_')}.slice/"
    f"cri-containerd-{CONTAINER}.scope\n",
    "cgroupfs": f"12:memory:/kubepods/burstable/pod{POD}/{CONTAINER}\n1:name=systemd:/other\n",
    "from another container": f"0::/../../kubepods-pod{POD.replace('-', '_')}.slice/cri-containerd-{CONTAINER}.scope\n",
}
SLURM = {
    "version 2": "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0\n",
    "version 1": "9:freezer:/slurm/uid_1000/job_4711/step_batch\n1:name=systemd:/other\n",
}


def info(uuid: str = BUSY, **labels: str) -> str:
    """Return the name of a workload's info series, labels that are not given being empty."""
    names = ("mig_uuid", "training_run", "training_rank", "pod_uid", "slurm_job_id")
    names = (*names, "namespace", "pod", "container", "slurm_user")
    return series_name("gpu_workload_info", {"uuid": uuid, **dict.fromkeys(names, ""), **labels}.items())


def make_process(procfs: Path, pid: int, cgroup: str, start: int = 5, **variables: str) -> None:
    """Make a process that procfs shows."""
    folder = procfs / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    fields = " ".join(["S", *map(str, range(1, 19)), str(start), "0"])
    (folder / "stat").write_text(f"{pid} (a) b (c) {fields}\n")
    (folder / "cgroup").write_text(cgroup)
    (folder / "environ").write_bytes(b"\0".join(f"{name}={value}".encode() for name, value in variables.items()))


def found(procfs: Path, *processes: GpuProcess) -> dict[str, float]:
    """Return the samples of these processes on the busy GPU, on a node without ranks."""
    return as_dict(Workloads(list, procfs)([GpuWorkload(BUSY, [], list(processes))]))


@pytest.mark.parametrize("cgroup", CGROUPS)
def test_a_pod(tmp_path: Path, cgroup: str) -> None:
    """Pod and container come from the control group in all its spellings, the names from the environment."""
    make_process(tmp_path, 7, CGROUPS[cgroup], POD_NAME="train-0", POD_NAMESPACE="ml")
    labels = {"pod_uid": POD, "container": CONTAINER, "pod": "train-0", "namespace": "ml"}
    assert starting_with(found(tmp_path, GpuProcess(7, "", GIB)), "gpu_workload_info") == {info(**labels): 1}


@pytest.mark.parametrize("cgroup", SLURM)
def test_a_slurm_job(tmp_path: Path, cgroup: str) -> None:
    """A job comes from the control group of its step; a job that the environment claims does not replace it."""
    make_process(tmp_path, 7, SLURM[cgroup], SLURM_JOB_ID="1", SLURM_JOB_USER="ann")
    assert starting_with(found(tmp_path, GpuProcess(7, "", GIB)), "gpu_workload_info") == {
        info(slurm_job_id="4711", slurm_user="ann"): 1
    }


def test_a_job_without_control_groups(tmp_path: Path) -> None:
    """Where Slurm uses no control groups the environment of the process tells the job."""
    make_process(tmp_path, 7, "0::/user.slice\n", SLURM_JOB_ID="4711")
    assert info(slurm_job_id="4711") in found(tmp_path, GpuProcess(7, "", None))


def test_an_environment_that_lies(tmp_path: Path) -> None:
    """What is no name does not become a label, and nobody names a pod without being in one."""
    hostile = 'x"} 1\nup{a="'
    make_process(tmp_path, 7, "0::/\n", SLURM_JOB_ID=hostile, SLURM_JOB_USER=hostile, POD_NAME="victim", A="\xff" * 9)
    assert info() in found(tmp_path, GpuProcess(7, "", None))


def test_processes_of_one_workload(tmp_path: Path) -> None:
    """Several processes of a workload are one series with their sum, and those that end leave nothing."""
    for pid in (7, 8):
        make_process(tmp_path, pid, SLURM["version 2"])
    make_process(tmp_path, 9, "0::/\n")
    workloads = Workloads(list, tmp_path)
    processes = [GpuProcess(7, "", GIB), GpuProcess(8, "", GIB), GpuProcess(9, "", None), GpuProcess(10, "", 5)]
    samples = as_dict(workloads([GpuWorkload(BUSY, [], processes)]))
    of_job = {series.partition("{")[0]: value for series, value in samples.items() if "4711" in series}
    assert of_job == {
        "gpu_workload_info": 1,
        "gpu_workload_memory_used_bytes": 2 * GIB,
        "gpu_workload_processes": 2,
    }
    assert sum(value for series, value in samples.items() if "processes" in series) == 4
    assert sum(value for series, value in samples.items() if "memory" in series) == 2 * GIB + 5
    assert as_dict(workloads([GpuWorkload(BUSY, [], [])])) == {}


def test_an_environment_is_read_once(tmp_path: Path) -> None:
    """A process that hangs later is not asked again; a new one under the same number is."""
    make_process(tmp_path, 7, SLURM["version 2"])
    workloads = Workloads(list, tmp_path)
    gpu = [GpuWorkload(BUSY, [], [GpuProcess(7, "", None)])]
    assert info(slurm_job_id="4711") in as_dict(workloads(gpu))
    (tmp_path / "7" / "environ").unlink()
    (tmp_path / "7" / "cgroup").unlink()
    assert info(slurm_job_id="4711") in as_dict(workloads(gpu))
    make_process(tmp_path, 7, "0::/\n", start=6)
    assert info() in as_dict(workloads(gpu))


def test_ranks(fake_nvml: Path, scenario: Scenario, tmp_path: Path) -> None:
    """A GPU's processes are joined with the live ranks, and no other series is multiplied by it."""
    dead_file(tmp_path, fresh(rank=9, hardware_id=BUSY))
    workloads = Workloads(lambda: live_ranks(RankFiles(tmp_path)))
    with (
        live_rank(tmp_path, fresh(rank=0, hardware_id="")) as first,
        live_rank(tmp_path, fresh(rank=1, hardware_id="")) as second,
        live_rank(tmp_path, fresh(rank=2, hardware_id=IDLE)),
        nvml_probe(scenario.environment(fake_nvml), workloads=workloads) as probe,
    ):
        before = {series for series in probe.gpus() if not series.startswith("gpu_workload")}
        scenario.write(f"0 nvmlDeviceGetComputeRunningProcesses {first.pid}:{GIB} {second.pid}:{2 * GIB} 4294967294:5")
        samples = probe.gpus()
    ranks = [
        (series.split('training_rank="')[1][0], series.split('uuid="')[-1][:5])
        for series in samples
        if series.startswith("gpu_workload_info") and 'training_run="run-1"' in series
    ]
    assert sorted(ranks) == [("0", "GPU-0"), ("1", "GPU-0"), ("2", "GPU-1")]
    used = starting_with(samples, "gpu_workload_memory_used_bytes")
    assert sorted(used.values()) == [5, GIB, 2 * GIB]
    assert {series for series in samples if not series.startswith("gpu_workload")} == before


def test_what_each_workload_uses(fake_nvml: Path, scenario: Scenario, tmp_path: Path) -> None:
    """The newest new sample of each process counts for its rank; an older or impossible one, or none, is no zero."""
    name = "gpu_workload_sm_utilization_ratio"
    workloads = Workloads(lambda: live_ranks(RankFiles(tmp_path)))
    with (
        live_rank(tmp_path, fresh(rank=0, hardware_id="")) as first,
        live_rank(tmp_path, fresh(rank=1, hardware_id="")) as second,
        nvml_probe(scenario.environment(fake_nvml), workloads=workloads) as probe,
    ):
        one, two, other, last = first.pid, second.pid, 4294967293, 4294967294
        running = " ".join(f"{pid}:{GIB}" for pid in (one, two, other, last))

        def used(samples: str, *, later: float = 0) -> dict[str, float]:
            scenario.write(
                f"0 nvmlDeviceGetComputeRunningProcesses {running}",
                f"0 nvmlDeviceGetProcessUtilization {samples}" if samples else "",
            )
            time.sleep(later)
            ratios = starting_with(probe.collect(), name)
            return {series.split('training_rank="')[1].partition('"')[0]: ratio for series, ratio in ratios.items()}

        assert used(f"{one}:90:1000 {two}:80:1000") == {}, "samples from before the first scrape are of any age"
        new = f"{one}:10:2000 {one}:60:3000 {other}:5:2500 {last}:6:2500 77:99:2500 {two}:80:1000"
        assert used(new) == {"0": 0.6, "": pytest.approx(0.11)}
        assert used(new) == {"0": 0.6, "": pytest.approx(0.11)}, "the driver has sampled nothing since"
        assert used(new, later=SAMPLE_SECONDS) == {}, "what is old is not shown as new"
        assert used(f"{one}:4294967295:4000 {two}:100:4000") == {"1": 1.0}
        assert used("!6", later=SAMPLE_SECONDS) == used("!3") == used("") == {}
        assert failures(probe.collect()).keys() == {name}, "a value that cannot be true is counted, nothing else"


def test_processes_on_mig_devices(fake_nvml: Path, scenario: Scenario) -> None:
    """A process in a MIG device is told with that device."""
    scenario.write(*EVERYTHING)
    with nvml_probe(scenario.environment(fake_nvml), workloads=Workloads(list)) as probe:
        samples = probe.gpus()
    assert samples[info(IDLE, mig_uuid="MIG-0")] == 1


def test_processes_that_come_and_go(fake_nvml: Path, scenario: Scenario) -> None:
    """Under a churn of hundreds of processes the number of series stays that of the workloads."""
    with nvml_probe(scenario.environment(fake_nvml), workloads=Workloads(list)) as probe:
        series: set[str] = set()
        for first in range(0, 400, 40):
            words = " ".join(f"{4294960000 + pid}:1048576" for pid in range(first, first + 40))
            scenario.write(f"0 nvmlDeviceGetComputeRunningProcesses {words}")
            samples = starting_with(probe.collect(), "gpu_workload")
            assert starting_with(samples, "gpu_workload_processes").popitem()[1] == 40
            series |= set(samples)
    assert len(series) == 3


def test_gpus_on_the_bus(tmp_path: Path) -> None:
    """Display controllers of NVIDIA count: no audio function, no switch, no other vendor, no virtual function."""
    assert count_gpus(NVIDIA, tmp_path) is None
    functions = {
        "0000:1b:00.0": ("0x10de", "0x030200"),
        "0000:9d:00.0": ("0x10de", "0x030000"),
        "0000:9d:00.1": ("0x10de", "0x040300"),
        "0000:05:00.0": ("0x10de", "0x068000"),
        "0000:06:00.0": ("0x1a03", "0x030000"),
        "0000:1b:00.4": ("0x10de", "0x030200"),
    }
    for name, (vendor, kind) in functions.items():
        device = tmp_path / "bus/pci/devices" / name
        device.mkdir(parents=True)
        (device / "vendor").write_text(vendor + "\n")
        (device / "class").write_text(kind + "\n")
    (tmp_path / "bus/pci/devices/0000:1b:00.4/physfn").symlink_to("../0000:1b:00.0")
    assert count_gpus(NVIDIA, tmp_path) == 2
    shutil.rmtree(tmp_path / "bus/pci/devices/0000:9d:00.0")
    assert count_gpus(NVIDIA, tmp_path) == 1
