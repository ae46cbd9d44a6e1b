"""Training-thread time of one step with five phases, with warm and with cold caches.

Three levels: the recorder alone, with the state file, and with the wait statistics of a real DistributedDataParallel
of 300 parameters. Cold means that 96 MB are read before each step, as the step's own work would.

    python lab/benchmarks/hot_path.py [ROUNDS]          prints JSON, microseconds for each step
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from time import perf_counter_ns

import torch
import torch.distributed as dist

from laggard import _process
from laggard._hot_path import CAPACITY
from laggard._recorder import Recorder
from laggard.shared import statefile
from laggard.shared.phases import Phase

#: Plain numbers, as the hooks pass them.
DATA, FORWARD, BACKWARD = int(Phase.DATA), int(Phase.FORWARD), int(Phase.BACKWARD)
PHASES = (DATA, FORWARD, BACKWARD, int(Phase.OPTIMIZER), int(Phase.COMMUNICATION))
HOT_STEPS, COLD_STEPS = 500, 8
PARAMETERS = 300

FACTS = statefile.Facts(
    pid=1, pid_start_ticks=1, start_boottime_ns=1, start_unix_ns=1, boot_id=statefile.boot_id(), run="bench",
    host="host", peer_group="", workload="bench", hardware_id="", rank=0, local_rank=0, world_size=1, restarts=0,
    metrics_port=0,
)  # fmt: skip


def floor(_folder: Path) -> Callable[[], None]:
    """Ten readings of the clock and nothing else."""

    def step() -> None:
        for _ in PHASES:
            perf_counter_ns()
            perf_counter_ns()

    return step


def recorder_alone(_folder: Path) -> Callable[[], None]:
    """Five phases, recorded."""
    return _step(_recorder())


def with_state_file(folder: Path) -> Callable[[], None]:
    """The same, shown in a state file."""
    recorder = _recorder()
    recorder.words = statefile.StateWriter(folder / "state", FACTS).words
    return _step(recorder)


def with_ddp_statistics(_folder: Path) -> Callable[[], None]:
    """The same, and what the hooks ask a DistributedDataParallel after each backward."""
    _process.instrument()
    process = _process.current()
    assert process is not None
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    layers = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(PARAMETERS // 2)))
    model = torch.nn.parallel.DistributedDataParallel(layers)
    for _ in range(3):
        model(torch.ones(1, 4)).sum().backward()
    recorder = process.recorder
    begin, end = recorder.begin, recorder.end
    clocks = list(next(hook for hook in process._parts if hook.name == "ddp")._clocks)
    inner = PHASES[:2] + PHASES[3:]

    def step() -> None:
        for phase in inner:
            end(begin(phase))
        token = begin(BACKWARD)
        started = token[2]
        ended = end(token)
        for observer in process.backward_observers:
            observer(started, ended)

    def prepared() -> None:
        # What the forward and the backward of a real step leave behind, outside of the time that is taken.
        for clock in clocks:
            clock.started = perf_counter_ns()
            clock.newest_gradient = -1

    step.prepare = prepared
    # Without its model the reducer is gone, and with it what there is to ask.
    step.model = model
    prepared()
    step()
    assert clocks
    assert not any(clock.started for clock in clocks), "the statistics were not read"
    return step


def _recorder() -> Recorder:
    recorder = Recorder()
    recorder.thread = get_ident()
    recorder.capacity = CAPACITY
    return recorder


def _step(recorder: Recorder) -> Callable[[], None]:
    begin, end, drain = recorder.begin, recorder.end, recorder.drain

    def step() -> None:
        for phase in PHASES:
            end(begin(phase))

    step.prepare = drain
    return step


LEVELS = (floor, recorder_alone, with_state_file, with_ddp_statistics)


def measure(rounds: int) -> dict[str, dict[str, float]]:
    """Return the median microseconds of a step at each level, levels interleaved."""
    evicting = torch.ones(96 * 2**17, dtype=torch.float64)
    with tempfile.TemporaryDirectory() as folder:
        steps = {level.__name__: level(Path(folder)) for level in LEVELS}
        taken: dict[str, dict[str, list[float]]] = {name: {"hot": [], "cold": []} for name in steps}
        gc.disable()
        for _ in range(rounds):
            for name, step in steps.items():
                prepare = getattr(step, "prepare", lambda: None)
                for _ in range(20):
                    prepare()
                    step()
                spent: list[int] = []
                for _ in range(HOT_STEPS):
                    prepare()
                    began = perf_counter_ns()
                    step()
                    spent.append(perf_counter_ns() - began)
                # Without the steps in which others had the processor.
                taken[name]["hot"].append(statistics.median(spent) / 1000)
                for _ in range(COLD_STEPS):
                    prepare()
                    evicting.sum()
                    began = perf_counter_ns()
                    step()
                    taken[name]["cold"].append((perf_counter_ns() - began) / 1000)
        return {
            name: {kind: round(statistics.median(values), 2) for kind, values in kinds.items()}
            for name, kinds in taken.items()
        }


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 15)))
