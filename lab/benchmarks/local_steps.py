"""A job by itself, with ``laggard run``, and with ``laggard run --local``: time of a step, and the losses, bit by bit.

    python -m lab.benchmarks.local_steps --rounds 3

Two ranks train with gloo. The ways take turns, each in processes of its own; stated is the median over the rounds of
what a way adds to the step of another in the same round: on the clock, which needs a machine without other
work, and in processor time of the thread that trains, which does not. Losses are compared as they are in memory.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

RANKS = 2
STEPS = 4000
#: Steps of each rank while the servers start.
WARM_UP = 2500
BARE, RUN, LOCAL = "by itself", "laggard run", "laggard run --local"
#: By what a way is called, the words before the job's.
WAYS = {
    BARE: (),
    RUN: ("-m", "laggard_cli.main", "run"),
    LOCAL: ("-m", "laggard_cli.main", "run", "--local", "--quiet"),
}
_RANK = """
import json, os, sys, time
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
torch.set_num_threads(1)
steps = int(sys.argv[1])
rank = int(os.environ["RANK"])
store = "file://" + os.path.abspath("store")
torch.distributed.init_process_group("gloo", store, rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 512), nn.Dropout(), nn.ReLU(), nn.Linear(512, 1)))
optimizer = torch.optim.AdamW(model.parameters())
torch.manual_seed(rank)
loader = DataLoader(TensorDataset(torch.randn(steps * 64, 256)), batch_size=64, shuffle=True)
losses, lengths = [], []
before = time.perf_counter(), time.thread_time()
for (batch,) in loader:
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item().hex())
    now = time.perf_counter(), time.thread_time()
    lengths.append((now[0] - before[0], now[1] - before[1]))
    before = now
torch.distributed.destroy_process_group()
with open(f"{rank}.json", "w") as file:
    json.dump({"losses": losses, "lengths": lengths}, file)
"""
_JOB = f"""
import os, subprocess, sys
def start(rank):
    own = {{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "{RANKS}", "LOCAL_WORLD_SIZE": "{RANKS}"}}
    return subprocess.Popen([sys.executable, "rank.py", sys.argv[1]], env={{**os.environ, **own}})
sys.exit(max(rank.wait() for rank in [start(rank) for rank in range({RANKS})]))
"""


class Trained(NamedTuple):
    """What a job did."""

    losses: list[list[str]]
    """Of each rank, step by step, in hexadecimal."""
    step_seconds: float
    """The median of the first rank, after the warm-up."""
    processor_seconds: float
    """The same, of the processor that the training thread takes in a step."""


def train(way: str, steps: int = STEPS) -> Trained:
    """Run the job in one of :data:`WAYS`. Raises :class:`subprocess.CalledProcessError` where it fails."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "rank.py").write_text(_RANK)
        Path(folder, "job.py").write_text(_JOB)
        foreign = ("LAGGARD_", "OTEL_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        state = {} if way == LOCAL else {"LAGGARD_STATE_DIR": folder}
        program = (sys.executable, *WAYS[way]) if WAYS[way] else ()
        command = [*program, sys.executable, "job.py", str(steps)]
        subprocess.run(command, cwd=folder, env={**inherited, **state}, check=True, capture_output=True)
        found = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(RANKS)]
    measured = found[0]["lengths"][WARM_UP:] or found[0]["lengths"]
    step, processor = (statistics.median(lengths) for lengths in zip(*measured, strict=True))
    return Trained([each["losses"] for each in found], step, processor)


def main() -> None:
    """Print what each way adds to a step, and whether the losses are the same."""
    parser = argparse.ArgumentParser(prog="python -m lab.benchmarks.local_steps")
    parser.add_argument("--rounds", type=int, default=3, help="(default %(default)d)")
    parser.add_argument("--steps", type=int, default=STEPS, help="of a job (default %(default)d)")
    options = parser.parse_args()
    ways = list(WAYS)
    rounds: list[dict[str, Trained]] = []
    for number in range(options.rounds):
        # Who comes first changes, so that a trend of the machine cancels.
        first = number % len(ways)
        rounds.append({way: train(way, options.steps) for way in ways[first:] + ways[:first]})
    losses = rounds[0][BARE].losses
    for way, beside in ((BARE, BARE), (RUN, BARE), (LOCAL, BARE), (LOCAL, RUN)):
        parts = [f"{way:19}  beside {beside:11}"]
        for name, measured in (("step", "step_seconds"), ("processor", "processor_seconds")):
            pairs = [(getattr(each[way], measured), getattr(each[beside], measured)) for each in rounds]
            own = statistics.median(seconds for seconds, _ in pairs)
            added = statistics.median(seconds - other for seconds, other in pairs)
            parts.append(f"{name} {own * 1e3:5.2f} ms {added * 1e6:+5.0f} µs ({added / own:+.1%})")
        same = all(each[way].losses == losses for each in rounds)
        print("  ".join([*parts, f"losses {'identical' if same else 'DIFFER'}"]))
    if any(each[way].losses != losses for each in rounds for way in ways):
        sys.exit("the losses differ")


if __name__ == "__main__":
    main()
