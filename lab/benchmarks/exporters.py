"""What an exporter costs a node of eight GPUs, side by side with two peers on the same fake of NVML.

    python lab/benchmarks/exporters.py SCRAPES [--days] [--only NAME,NAME]         prints one line of JSON

``laggard-amd`` is laggard on a node of eight GPUs of AMD, over the fake of AMD SMI.
Each runs alone and is scraped in turns of 20 a second: memory of all its processes, time of a scrape, series and
bytes. Then nobody scrapes for a while: processor time of an exporter that idles. ``--days`` scrapes laggard as often as
Prometheus would in three days at every 15 seconds, back to back, and tells how its memory grew on the last of them:
the allocator settles within the first two.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.fake_amd_smi import fake as amd
from tests.fake_nvml.fake import Scenario, build, copies

AMD = "laggard-amd"
BINARIES = Path(sys.executable).parent
GPUS = 8
IDLE_SECONDS = 12
PAUSE_SECONDS = 0.05
DAYS = 3
#: Scrapes of so many days at every 15 seconds.
SCRAPES = DAYS * 24 * 3600 // 15
_TICKS = os.sysconf("SC_CLK_TCK")


def commands(port: int, folder: Path) -> dict[str, list[str]]:
    """Return the command of each exporter that is installed, serving on a port of loopback."""
    ours = [
        str(BINARIES / "laggard-exporter"),
        f"--web.listen-address=127.0.0.1:{port}",
        f"--state.directory={folder / 'ranks'}",
    ]
    found = {"laggard": ours, AMD: [*ours, f"--path.sysfs={folder / 'amd-sys'}"]}
    nvitop = BINARIES / "nvitop-exporter"
    if nvitop.exists():
        found["nvitop"] = [str(nvitop), "--bind-address", "127.0.0.1", "--port", str(port)]
    if node := shutil.which("prometheus-node-exporter"):
        found["node_exporter"] = [node, f"--web.listen-address=127.0.0.1:{port}"]
    return found


def free_port() -> int:
    """Return a port of loopback on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def family(pid: int) -> list[int]:
    """Return the process and all below it."""
    pids = [pid]
    for parent in pids:
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            pids += map(int, children.read_text().split())
    return pids


def resident(pids: list[int], field: str = "Rss") -> float:
    """Return the memory of all processes in MB, by a line of smaps_rollup."""
    total = 0
    for pid in pids:
        line = next(
            line for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() if line.startswith(field + ":")
        )
        total += int(line.split()[1])
    return total * 1024 / 1e6


def processor_seconds(pids: list[int]) -> float:
    """Return the processor time that the processes have used."""
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(stat[11]) + int(stat[12]) for stat in stats) / _TICKS


@contextlib.contextmanager
def running(name: str, folder: Path, library: Path) -> Iterator[tuple[int, str]]:
    """Run an exporter and give its process and the address of its metrics."""
    port = free_port()
    if name == AMD:
        # In a folder of its own: the node has no NVML.
        place = folder / "amd"
        place.mkdir()
        library = amd.build(place)
        amd.sysfs(folder / "amd-sys", GPUS)
        scenario: Scenario = amd.Scenario(folder / "scenario")
        scenario.write(*amd.copies(GPUS))
    else:
        scenario = Scenario(folder / "scenario")
        scenario.write(*copies(GPUS))
    url = f"http://127.0.0.1:{port}/metrics"
    process = subprocess.Popen(
        commands(port, folder)[name],
        env={**os.environ, **scenario.environment(library)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(100):
            with contextlib.suppress(OSError):
                scrape(url)
                break
            time.sleep(0.1)
        yield process.pid, url
    finally:
        process.terminate()
        process.wait(10)


def scrape(url: str) -> bytes:
    """Return the metrics as Prometheus would ask for them, without compression."""
    with urllib.request.urlopen(url, timeout=10) as response:
        return response.read()


def measure(name: str, scrapes: int, folder: Path, library: Path) -> dict[str, Any]:
    """Return the figures of one exporter."""
    with running(name, folder, library) as (pid, url):
        for _ in range(20):
            scrape(url)
        times: list[float] = []
        text = b""
        used = processor_seconds(family(pid))
        for _ in range(scrapes):
            time.sleep(PAUSE_SECONDS)
            began = time.perf_counter()
            text = scrape(url)
            times.append((time.perf_counter() - began) * 1000)
        pids = family(pid)
        own = (processor_seconds(pids) - used) / scrapes * 1000
        figures = {
            "processes": len(pids),
            "rss_mb": round(resident(pids), 1),
            "pss_mb": round(resident(pids, "Pss"), 1),
            "scrape_ms_median": round(statistics.median(times), 1),
            "scrape_ms_p99": round(statistics.quantiles(times, n=100)[98], 1),
            # Of an exporter that works between scrapes too this includes that work.
            "processor_ms_per_scrape": round(own, 1),
            "series": len(re.findall(rb"^[a-z]", text, re.MULTILINE)),
            "series_of_gpus": len(re.findall(rb"^[a-z].*(?:uuid|UUID)=\"GPU-", text, re.MULTILINE)),
            "bytes": len(text),
        }
        used = processor_seconds(pids)
        time.sleep(IDLE_SECONDS)
        figures["idle_percent"] = round((processor_seconds(family(pid)) - used) / IDLE_SECONDS * 100, 2)
        figures["load"] = round(os.getloadavg()[0], 1)
        return figures


def days(scrapes: int, folder: Path, library: Path) -> dict[str, Any]:
    """Return how the memory of laggard's processes grew over the scrapes of some days."""
    with running("laggard", folder, library) as (pid, url):
        samples: list[float] = []
        for number in range(scrapes):
            scrape(url)
            if number % (scrapes // 60) == 0:
                samples.append(resident(family(pid)))
        last = samples[-len(samples) // DAYS :]
        slope = statistics.linear_regression(range(len(last)), last).slope * len(last)
        return {
            "scrapes": scrapes,
            "rss_mb_first": round(samples[1], 2),
            "rss_mb_last": round(samples[-1], 2),
            "growth_last_day_mb": round(slope, 3),
        }


def main() -> None:
    """Measure and print."""
    scrapes = int(sys.argv[1])
    only = sys.argv[sys.argv.index("--only") + 1].split(",") if "--only" in sys.argv else []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        library = build(folder)
        found: dict[str, Any] = {
            exporter: measure(exporter, scrapes, folder, library)
            for exporter in commands(0, folder)
            if not only or exporter in only
        }
        if "--days" in sys.argv:
            found["laggard"]["days"] = days(SCRAPES, folder, library)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
