"""What the instrumentation costs a process beside the step: start-up, memory, series and bytes of a scrape.

    python lab/benchmarks/process.py STEPS          prints one line of JSON

Starts training processes with and without laggard, in turns.
"""

from __future__ import annotations

import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

BINARIES = Path(sys.executable).parent
ROUNDS = 5

IMPORT = "import time; began = time.perf_counter(); import torch; print(time.perf_counter() - began)"

TRAIN = """
import sys, torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
steps = int(sys.argv[1])
for inputs, in DataLoader(TensorDataset(torch.randn(8 * steps, 64)), batch_size=8):
    model(inputs).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
import time; time.sleep(1.5)
status = open("/proc/self/status").read()
print([line for line in status.splitlines() if line.startswith("VmRSS")][0].split()[1], flush=True)
sys.stdin.readline()
"""


def environment(folder: str, port: int, *, on: bool) -> dict[str, str]:
    """Return the environment of a process, with laggard or with all but laggard."""
    return {
        **os.environ,
        "LAGGARD_STATE_DIR": folder,
        "LAGGARD_RUN": "bench",
        "OTEL_METRICS_EXPORTER": "laggard_prometheus",
        "OTEL_TRACES_EXPORTER": "none",
        "OTEL_LOGS_EXPORTER": "none",
        "OTEL_EXPORTER_PROMETHEUS_PORT": str(port),
        **({} if on else {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "laggard"}),
    }


def free_port() -> int:
    """Return a port of loopback on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main() -> None:
    """Measure and print."""
    steps = sys.argv[1]
    instrument = str(BINARIES / "opentelemetry-instrument")
    starts: dict[bool, list[float]] = {True: [], False: []}
    imports: dict[bool, list[float]] = {True: [], False: []}
    resident: dict[bool, list[int]] = {True: [], False: []}
    scrape: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(ROUNDS):
            for on in (True, False):
                port = free_port()
                env = environment(folder, port, on=on)
                began = time.perf_counter()
                done = subprocess.run(
                    [instrument, sys.executable, "-c", IMPORT], env=env, capture_output=True, text=True, check=True
                )
                starts[on].append(time.perf_counter() - began)
                imports[on].append(float(done.stdout))
                process = subprocess.Popen(
                    [instrument, sys.executable, "-c", TRAIN, steps],
                    env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                )  # fmt: skip
                assert process.stdout is not None
                resident[on].append(int(process.stdout.readline()))
                if on:
                    text = urllib.request.urlopen(f"http://localhost:{port}/metrics", timeout=5).read()
                    series = re.findall(rb"^[a-z]", text, re.MULTILINE)
                    scrape = {"series": len(series), "scrape_bytes": len(text)}
                process.communicate("\n", timeout=30)
    median = statistics.median
    print(
        json.dumps(
            {
                "start_seconds": round(median(starts[True]) - median(starts[False]), 3),
                "import_torch_seconds": round(median(imports[True]) - median(imports[False]), 3),
                "import_torch_bare_seconds": round(median(imports[False]), 3),
                "resident_mib": round((median(resident[True]) - median(resident[False])) / 1024, 1),
                **scrape,
            }
        )
    )


if __name__ == "__main__":
    main()
