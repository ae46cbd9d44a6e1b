"""Made-up trees of procfs and sysfs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def write_tree(root: Path, files: Mapping[str, str]) -> Path:
    """Write files by their names below ``root`` and return it."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


#: As Linux 6.8 shows them.
HOST_PROCFS = {
    "stat": "cpu  1000 20 300 40000 50 6 70 8 9 10\ncpu0 500 10 150 20000 25 3 35 4 4 5\n"
    "cpu1 500 10 150 20000 25 3 35 4 5 5\nintr 1 2 3\nctxt 99\nbtime 1700000000\n",
    "meminfo": "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    600 kB\nSwapTotal:      50 kB\n"
    "SwapFree:       40 kB\nHugePages_Total:       0\n",
    "vmstat": "nr_free_pages 123\noom_kill 7\npgfault 5\n",
    "diskstats": " 259       0 nvme0n1 100 5 2000 3000 200 6 4000 9000 0 7000 12000 1 0 8 2 3 4\n"
    " 259       1 nvme0n1p1 90 5 1900 2900 190 6 3900 8900 0 6900 11000 1 0 8 2 3 4\n"
    "   8       0 sda 1 0 8 4 0 0 0 0 0 4 4\n"
    "   7       0 loop0 1 0 8 4 0 0 0 0 0 4 4\n",
    "pressure/cpu": "some avg10=0.00 avg60=0.10 avg300=0.20 total=1500000\n"
    "full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
    "pressure/io": "some avg10=0.00 avg60=0.10 avg300=0.20 total=2500000\n"
    "full avg10=0.00 avg60=0.00 avg300=0.00 total=2000000\n",
    "pressure/memory": "some avg10=0.00 avg60=0.10 avg300=0.20 total=0\n"
    "full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
    "pressure/irq": "full avg10=0.00 avg60=0.00 avg300=0.00 total=12\n",
}

#: A ConnectX-7 with one port of InfiniBand and an EFA adapter.
INFINIBAND_SYSFS = {
    "class/infiniband/mlx5_0/fw_ver": "28.39.1002\n",
    "class/infiniband/mlx5_0/hca_type": "MT4129\n",
    "class/infiniband/mlx5_0/device/numa_node": "1\n",
    "class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand\n",
    "class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
    "class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)\n",
    "class/infiniband/mlx5_0/ports/1/counters/port_rcv_data": "1000\n",
    "class/infiniband/mlx5_0/ports/1/counters/port_xmit_data": "2000\n",
    "class/infiniband/mlx5_0/ports/1/counters/port_rcv_packets": "30\n",
    "class/infiniband/mlx5_0/ports/1/counters/port_xmit_packets": "40\n",
    "class/infiniband/mlx5_0/ports/1/counters/port_xmit_wait": "5\n",
    "class/infiniband/mlx5_0/ports/1/counters/symbol_error": "0\n",
    "class/infiniband/mlx5_0/ports/1/counters/link_downed": "2\n",
    "class/infiniband/mlx5_0/ports/1/counters/VL15_dropped": "9\n",
    "class/infiniband/mlx5_0/ports/1/counters/port_rcv_errors": "N/A (no PMA)\n",
    "class/infiniband/mlx5_0/ports/1/hw_counters/out_of_sequence": "3\n",
    "class/infiniband/mlx5_0/ports/1/hw_counters/np_cnp_sent": "11\n",
    "class/infiniband/efa_0/fw_ver": "0.0.0.0\n",
    "class/infiniband/efa_0/ports/1/link_layer": "Unspecified\n",
    "class/infiniband/efa_0/ports/1/state": "1: DOWN\n",
    "class/infiniband/efa_0/ports/1/rate": "soon\n",
    "class/infiniband/efa_0/ports/1/hw_counters/rx_bytes": "77\n",
    "class/infiniband/efa_0/ports/1/hw_counters/retrans_pkts": "4\n",
}


def stat(
    pid: int, *, state: str = "S", user: int = 0, system: int = 0, faults: int = 0, start: int = 500, io_wait: int = 0
) -> str:
    """Return a process's entry ``stat``; times are in ticks. The name of the command is a hostile one."""
    fields = [state, *"0" * 49]
    for place, value in ((9, faults), (11, user), (12, system), (19, start), (39, io_wait)):
        fields[place] = str(value)
    return f"{pid} (a) R (b) {' '.join(fields)}\n"


def rank_procfs(pid: int) -> dict[str, str]:
    """Return the entry of a rank with a thread, two data workers, a fork server with a third, and another child."""
    children = {pid + 1: "pt_data_worker", pid + 2: "pt_data_worker", pid + 3: "python", pid + 4: "pt_data_worker"}
    return {
        f"{pid}/stat": stat(pid, user=1000, system=500, faults=7),
        f"{pid}/schedstat": "5000000000 1250000000 42\n",
        f"{pid}/status": "Name:\tpython\nCpus_allowed:\tff\nCpus_allowed_list:\t0-3,8\n"
        "voluntary_ctxt_switches:\t10\nnonvoluntary_ctxt_switches:\t4\n",
        f"{pid}/cgroup": "0::/job.slice/rank3.scope\n",
        f"{pid}/task/{pid}/children": f"{pid + 1} ",
        f"{pid}/task/{pid + 50}/children": f"{pid + 2} {pid + 3} ",
        f"{pid}/task/{pid + 51}/children": "",
        f"{pid + 3}/task/{pid + 3}/children": f"{pid + 4} ",
        **{f"{child}/comm": f"{name}\n" for child, name in children.items()},
        f"{pid + 1}/stat": stat(pid + 1, state="R", user=100, system=20, io_wait=30),
        f"{pid + 2}/stat": stat(pid + 2, state="D", user=200, system=30, io_wait=40),
        f"{pid + 3}/stat": stat(pid + 3, user=7777),
        f"{pid + 4}/stat": stat(pid + 4, user=1),
        "sys/kernel/task_delayacct": "1\n",
    }


CGROUP_SYSFS = {
    "fs/cgroup/cgroup.controllers": "cpu io memory\n",
    "fs/cgroup/job.slice/cpu.max": "150000 100000\n",
    "fs/cgroup/job.slice/memory.max": "1000000\n",
    "fs/cgroup/job.slice/cpu.stat": "usage_usec 9\nnr_periods 5\nnr_throttled 1\nthrottled_usec 250000\n",
    "fs/cgroup/job.slice/rank3.scope/cpu.max": "max 100000\n",
    "fs/cgroup/job.slice/rank3.scope/memory.max": "2000000\n",
    "fs/cgroup/job.slice/rank3.scope/memory.current": "123456\n",
    "fs/cgroup/job.slice/rank3.scope/memory.events": "low 0\nhigh 0\nmax 3\noom 1\noom_kill 2\noom_group_kill 0\n",
    "fs/cgroup/job.slice/rank3.scope/cpu.stat": "usage_usec 9\nnr_periods 5\nnr_throttled 2\nthrottled_usec 2500000\n",
    "fs/cgroup/job.slice/rank3.scope/cpu.pressure": "some avg10=0 avg60=0 avg300=0 total=3000000\n"
    "full avg10=0 avg60=0 avg300=0 total=1000000\n",
    "fs/cgroup/job.slice/rank3.scope/io.pressure": "some avg10=0 avg60=0 avg300=0 total=500000\n",
}
