"""A real small training loop for as long as it is told to: does the process grow, is anything dropped?

    python lab/benchmarks/soak.py --minutes 20

Everything of laggard is in use: the Prometheus endpoint, traces, ``laggard.log``, and every ten seconds a trace of the
last steps. Prints one JSON object: the slope of the resident memory after a warm-up, in bytes a minute with its
standard error and in bytes a step, the longest buffer seen, what was dropped, and a verdict of it: ``steady``,
``grows`` or ``drops``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from array import array
from pathlib import Path
from typing import Any

os.environ.setdefault("OTEL_EXPORTER_PROMETHEUS_HOST", "127.0.0.1")

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import laggard
from laggard import _process

#: Share of the time that is left to allocators and caches before growth counts.
WARMUP = 1 / 3
#: Growth that counts: 1 MB an hour, and more than the noise of the samples.
LIMIT_BYTES_A_MINUTE = 1_000_000 / 60
_SAMPLE_SECONDS = 1.0


def resident_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def slope(times: list[float], values: list[float]) -> tuple[float, float]:
    """Slope of a line through the values and its standard error, both a second."""
    line = statistics.linear_regression(times, values)
    rest = [value - line.intercept - line.slope * at for at, value in zip(times, values, strict=True)]
    spread = sum((at - statistics.fmean(times)) ** 2 for at in times)
    return line.slope, (sum(error**2 for error in rest) / max(1, len(times) - 2) / spread) ** 0.5


def train(minutes: float, folder: Path) -> dict[str, Any]:
    """Train, and sample once a second."""
    laggard.instrument()
    process = _process.current()
    assert process is not None
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    loader = DataLoader(TensorDataset(torch.randn(4096, 64)), batch_size=8)
    # All of it beforehand: a list of them would grow by some 8 KB a minute itself.
    room = int(minutes * 60 / _SAMPLE_SECONDS) + 1
    at, resident = array("d", bytes(8 * room)), array("d", bytes(8 * room))
    taken = 0
    began = time.monotonic()
    next_sample = next_dump = began
    steps = longest = 0
    while (now := time.monotonic()) < began + minutes * 60:
        for (batch,) in loader:
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            laggard.log(loss=loss, samples=8, tokens=512)
            steps += 1
            now = time.monotonic()
            if now >= next_sample and taken < room:
                next_sample = now + _SAMPLE_SECONDS
                at[taken], resident[taken] = now - began, resident_bytes()
                taken += 1
                longest = max(longest, process.recorder.waiting)
            if now >= next_dump:
                next_dump = now + 10
                laggard.dump_trace(folder / "trace.json")
    drain = process._drain
    assert drain is not None
    dropped = {reason: count for reason, count in drain._publisher._dropped.items() if count}
    first = next(index for index in range(taken) if at[index] >= minutes * 60 * WARMUP)
    a_second, error = slope(list(at[first:taken]), list(resident[first:taken]))
    grows = a_second * 60 > LIMIT_BYTES_A_MINUTE and a_second > 3 * error
    verdict = "drops" if dropped else "grows" if grows else "steady"
    return {
        "verdict": verdict,
        "minutes": round((time.monotonic() - began) / 60, 2),
        "steps": steps,
        "resident_bytes": [int(resident[first]), int(resident[taken - 1])],
        "slope_bytes_per_minute": round(a_second * 60),
        "slope_error_bytes_per_minute": round(error * 60),
        "slope_bytes_per_step": round(a_second * at[taken - 1] / steps, 3),
        "longest_buffer": longest,
        "dropped": dropped,
        "self_time_us_per_step": round(process.recorder.self_time_ns / steps / 1000, 2),
    }


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20)
    minutes = parser.parse_args().minutes
    with tempfile.TemporaryDirectory() as name:
        os.environ["LAGGARD_STATE_DIR"] = os.environ.get("LAGGARD_STATE_DIR", name)
        result = train(minutes, Path(name))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
