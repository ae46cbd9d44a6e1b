"""What laggard does on a real GPU: run by a person who has one, with ``make test-cuda``.

Each check compares what laggard says with events, statistics and libraries that this program asks itself. Prints one
line a check with its figures; ``--json FILE`` keeps them. Ends with 1 if a check fails, and with 0 and one line where
torch finds no GPU.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ.setdefault("LAGGARD_RUN", "cuda-check")
os.environ.setdefault("LAGGARD_STATE_DIR", tempfile.mkdtemp(prefix="laggard-"))

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import laggard
from laggard import _process, _runtime
from laggard.shared.phases import Phase
from laggard_exporter.nvml import table
from laggard_exporter.nvml.child.activity import SHORTEST_WINDOW
from laggard_exporter.nvml.child.driver import Driver
from laggard_exporter.nvml.collector import NvmlCollector
from laggard_exporter.nvml.library import FIELD_VALUES
from laggard_exporter.nvml.plan import Plan
from tests.support.measured import measure

#: Two drains, and a reserve.
DRAINS_SECONDS = 3.0
STEPS = 20
Figures = dict[str, Any]


class Warnings(logging.Handler):
    """Keeps what laggard complains of: here that is a failure."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one line."""
        self.lines.append(record.getMessage())


warnings = Warnings()


def calibrate() -> float:
    """Return the cycles of a millisecond on the device."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    cycles = 50_000_000
    for _ in range(2):  # the first one wakes the device up
        begin.record()
        torch.cuda._sleep(cycles)
        end.record()
        end.synchronize()
    return cycles / begin.elapsed_time(end)


class Sleep(torch.autograd.Function):
    """Keeps the device busy, for a time in forward and another one in backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward: int, backward: int) -> torch.Tensor:
        """Work."""
        ctx.cycles = backward
        torch.cuda._sleep(forward)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Work."""
        torch.cuda._sleep(ctx.cycles)
        return gradients[0].clone(), None, None


class Net(nn.Module):
    """A linear layer and so many milliseconds."""

    def __init__(self, forward_ms: float, backward_ms: float, cycles: float) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.cycles = round(forward_ms * cycles), round(backward_ms * cycles)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Work."""
        return Sleep.apply(self.linear(x), *self.cycles)


class Batches(IterableDataset[torch.Tensor]):
    """The same pinned batch again and again, each after so many milliseconds on the host."""

    def __init__(self, count: int, host_ms: float, batch: torch.Tensor) -> None:
        self.count, self.host_ms, self.batch = count, host_ms, batch

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(self.count):
            time.sleep(self.host_ms / 1000)
            yield self.batch


class Bench:
    """A training loop on the device, with events of its own around its parts."""

    def __init__(self) -> None:
        self.cycles = calibrate()
        self.process: Any = _process.current()
        self.batch = torch.randn(32, 64).pin_memory()

    def hook(self, name: str) -> Any:
        """Return a hook of the process."""
        return next(hook for hook in self.process._parts if hook.name == name)

    def train(
        self,
        steps: int,
        *,
        data_ms: float = 1.0,
        forward_ms: float = 4.0,
        backward_ms: float = 8.0,
        wrap: Callable[[nn.Module], nn.Module] = lambda model: model,
        before: Callable[[torch.Tensor], Any] = lambda _: None,
        log: bool = True,  # laggard.log is part of the step
    ) -> dict[str, float]:
        """Train; return the medians of this program's own events, in milliseconds."""
        model = wrap(Net(forward_ms, backward_ms, self.cycles).cuda())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        marks: list[list[torch.cuda.Event]] = []
        for batch in DataLoader(Batches(steps, data_ms, self.batch), batch_size=None):
            before(batch)
            x = batch.to("cuda", non_blocking=True)
            marks.append([torch.cuda.Event(enable_timing=True) for _ in range(4)])
            marks[-1][0].record()
            out = model(x)
            marks[-1][1].record()
            loss = out.square().mean()
            marks[-1][2].record()
            loss.backward()
            marks[-1][3].record()
            optimizer.step()
            optimizer.zero_grad()
            if log:
                laggard.log(loss=loss, samples=32)
        torch.cuda.synchronize()
        return {
            "forward": statistics.median(a.elapsed_time(b) for a, b, _, _ in marks[2:]),
            "backward": statistics.median(c.elapsed_time(d) for _, _, c, d in marks[2:]),
            "step": statistics.median(m[0].elapsed_time(n[0]) for m, n in pairwise(marks[2:])),
        }

    def measured(self, steps: int = STEPS, **options: Any) -> tuple[dict[str, float], dict[str, float]]:
        """Train; return this program's medians and laggard's."""
        time.sleep(DRAINS_SECONDS)
        kept = self.process.trace._steps
        newest = kept[-1].number if kept else 0
        own = self.train(steps, **options)
        time.sleep(DRAINS_SECONDS)
        # Without the first ones, whose begin may stand in an earlier loop.
        found = [step for step in kept if step.number > newest + 2 and not step.excluded]
        assert len(found) >= steps - 5, f"{len(found)} of {steps} steps were measured: {[s.excluded for s in kept]}"
        theirs = {p.label: statistics.median(step.phases[p] for step in found) / 1e6 for p in Phase}
        return own, {**theirs, "step": statistics.median(step.duration for step in found) / 1e6}


def agree(own: float, theirs: float) -> None:
    """Agree to 1 % or 0.2 ms."""
    assert abs(own - theirs) <= max(0.2, 0.01 * own), f"{theirs:.3f} ms where it is {own:.3f} ms"


def events(bench: Bench) -> Figures:
    """Forward, backward and step are what the device's own events say; a hidden fetch takes nothing."""
    own, theirs = bench.measured(data_ms=2)
    for name, value in own.items():
        agree(value, theirs[name])
    assert theirs["data"] < 0.3, f"a hidden fetch took {theirs['data']:.3f} ms"
    assert bench.hook("device").clock is not None
    return {"own": own, "laggard": theirs}


def exposed_fetch(bench: Bench) -> Figures:
    """Of a fetch that is longer than the device's work, what the device waits for is data."""
    own, theirs = bench.measured(data_ms=40)
    agree(own["step"], theirs["step"])
    expected = own["step"] - own["forward"] - own["backward"]
    assert abs(theirs["data"] - expected) < 1.5, f"data is {theirs['data']:.2f} ms, the device waits {expected:.2f} ms"
    return {"expected": expected, "data": theirs["data"]}


def no_synchronization(bench: Bench) -> Figures:
    """With torch made to refuse every synchronization, the loop runs as before, numbers of laggard.log included."""
    bench.train(5)
    # Moving a model waits for the device, whoever does it.
    model = Net(1, 1, bench.cycles).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.cuda.set_sync_debug_mode("error")
    try:
        until = time.monotonic() + DRAINS_SECONDS
        steps = 0
        while time.monotonic() < until:
            for batch in DataLoader(Batches(10, 1, bench.batch), batch_size=None):
                loss = model(batch.to("cuda", non_blocking=True)).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                laggard.log(loss=loss, gradient_norm=loss)
                steps += 1
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    return {"steps": steps}


def copies(bench: Bench) -> Figures:
    """A pageable copy of 256 MB is h2d for as long as the device copies."""
    big = torch.empty(1 << 28, dtype=torch.uint8)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    taken: list[float] = []

    def copy(_batch: torch.Tensor) -> None:
        begin.record()
        big.to("cuda")
        end.record()
        end.synchronize()
        taken.append(begin.elapsed_time(end))

    _, theirs = bench.measured(before=copy)
    own = statistics.median(taken)
    assert abs(theirs["h2d"] - own) < max(0.5, 0.05 * own), f"h2d is {theirs['h2d']:.2f} ms, the copy {own:.2f} ms"
    return {"copy": own, "h2d": theirs["h2d"]}


def side_stream(bench: Bench) -> Figures:
    """A copy in a stream of its own that nobody waits for takes next to nothing."""
    big = torch.empty(1 << 28, dtype=torch.uint8).pin_memory()
    target = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    stream = torch.cuda.Stream()

    def copy(batch: torch.Tensor) -> None:
        with torch.cuda.stream(stream):
            target.copy_(big, non_blocking=True)
            batch.to("cuda", non_blocking=True)

    own, theirs = bench.measured(before=copy, forward_ms=20)
    agree(own["step"], theirs["step"])
    assert theirs["h2d"] < 0.5, f"h2d is {theirs['h2d']:.2f} ms"
    return {"h2d": theirs["h2d"], "step": theirs["step"]}


def capture(bench: Bench) -> Figures:
    """A graph is captured while laggard works, its replay computes what it should, and steps are whole afterwards."""
    model = Net(0.1, 0.1, bench.cycles).cuda()
    x = torch.randn(32, 64, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            model(x).sum().backward()
    torch.cuda.current_stream().wait_stream(side)
    model.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = model(x)
        out.sum().backward()
        laggard.log(loss=out.detach().sum())
        time.sleep(DRAINS_SECONDS)  # the drain asks for events meanwhile
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    expected = nn.functional.linear(x, model.linear.weight, model.linear.bias)
    assert torch.allclose(out, expected, atol=1e-2), "the replay computes something else"
    dropped = bench.hook("device").clock.dropped
    assert dropped > 0, "no edge was left out during the capture"
    own, theirs = bench.measured()
    agree(own["step"], theirs["step"])
    return {"edges left out": dropped}


def memory(bench: Bench) -> Figures:
    """Usage, peak, limit and out-of-memory errors are what torch itself says."""
    hook = bench.hook("device_memory")
    block = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    measure(hook)
    with suppress(torch.OutOfMemoryError):
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    # The drain may be between the two: what it took is not here.
    found = {"/".join(key): values[0] for key, values in measure(hook).items()}
    own = {
        "training.memory.usage/device_allocated": torch.cuda.memory_allocated(),
        "training.memory.usage/device_reserved": torch.cuda.memory_reserved(),
        "training.memory.usage/device_peak": torch.cuda.max_memory_allocated(),
        "training.memory.limit/device": torch.cuda.get_device_properties(0).total_memory,
    }
    del block
    assert {name: found[name] for name in own} == own, f"{found} where torch says {own}"
    assert found["training.memory.out_of_memory"] <= 1
    assert torch.cuda.memory_stats()["num_ooms"] >= 1
    return found


def mixed_precision(bench: Bench) -> Figures:
    """An update that the scaler leaves out is counted, one step later."""
    model = nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda", init_scale=4.0)
    time.sleep(DRAINS_SECONDS)
    kept = bench.process.trace._steps
    newest = kept[-1].number if kept else 0
    for number, batch in enumerate(DataLoader(Batches(8, 1, bench.batch), batch_size=None)):
        factor = float("inf") if number == 4 else 1.0
        scaler.scale(model(batch.to("cuda")).square().mean() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    time.sleep(DRAINS_SECONDS)
    steps = [step for step in kept if step.number > newest]
    assert sum(step.skipped for step in steps) == 1, [step.skipped for step in steps]
    return {"steps": len(steps), "skipped": 1}


def replicated(bench: Bench) -> Figures:
    """DDP over NCCL, one rank: its phases are there, and what is waited for is next to nothing."""
    store = Path(tempfile.mkdtemp(), "store")
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=0, world_size=1)
    try:
        own, theirs = bench.measured(wrap=nn.parallel.DistributedDataParallel)
        agree(own["step"], theirs["step"])
        assert abs(own["backward"] - theirs["backward"] - theirs["communication"]) < 0.5
        assert theirs["communication"] < 0.5, f"one rank waits {theirs['communication']:.2f} ms"
        assert bench.hook("ddp").available, "communication is unavailable"
        return {"communication": theirs["communication"], "available": bench.hook("ddp").available}
    finally:
        dist.destroy_process_group()


def nvml(_bench: Bench) -> Figures:
    """The exporter reads the real NVML, and names the device as the training process does."""
    samples = list(NvmlCollector(host="here").collect())
    families = {sample.family.name for sample in samples}
    assert "gpu_info" in families, f"only {sorted(families)}"
    uuids = {label for sample in samples if sample.family.name == "gpu_info" for label in sample.labels}
    assert _runtime.hardware_id() in uuids, f"{_runtime.hardware_id()} is none of {sorted(uuids)}"
    slowest = dict(sorted(nvml_calls().items(), key=lambda call: -call[1])[:12])
    return {"series": len(samples), "families": len(families), "device": _runtime.hardware_id(), "slowest": slowest}


def nvml_calls() -> dict[str, float]:
    """Return how long each call of a scrape takes the driver, in milliseconds: the median of ten."""
    import pynvml  # noqa: PLC0415 - where there is a GPU

    pynvml.nvmlInit()
    driver = Driver(pynvml, lambda *_: None)
    driver.call("nvmlDeviceGetHandleByIndex", None, (0,))
    plan = Plan(details=False)
    fields, _ = plan.fields_of(9_999)
    calls = {f"{call.function}{call.arguments or ''}": (call.function, call.arguments) for call in plan.first_calls}
    calls |= {FIELD_VALUES: (FIELD_VALUES, (fields,)), table.GPM: (table.GPM, (plan.gpm_numbers, None))}
    calls |= {f"field {number}": (FIELD_VALUES, (((number, scope),),)) for number, scope in fields}
    taken: dict[str, float] = {}
    for name, (function, arguments) in calls.items():
        times: list[float] = []
        for _ in range(10):
            if function == table.GPM:
                time.sleep(SHORTEST_WINDOW)
            began = time.perf_counter()
            driver.call(function, 0, arguments)
            times.append((time.perf_counter() - began) * 1000)
        taken[name] = statistics.median(times)
    return taken


def overhead(bench: Bench) -> Figures:
    """What a step costs with laggard and without, host and device, in microseconds; alternating, the same process."""
    short: dict[str, Any] = {"data_ms": 0.0, "forward_ms": 0.1, "backward_ms": 0.2, "log": False}
    steps = 3000
    times: dict[str, list[float]] = {"with": [], "without": []}
    recorder = bench.process.recorder
    self_time = 0.0
    for round_ in range(6):
        with_laggard = round_ % 2 == 0
        if not with_laggard:
            laggard.uninstrument()
        elif round_:
            laggard.instrument()
        bench.process = _process.current()
        bench.train(30, **short)
        time.sleep(DRAINS_SECONDS)  # the drain finds CUDA in use
        bench.train(30, **short)
        recorder = bench.process.recorder if with_laggard else recorder
        before = recorder.self_time_ns
        began = time.perf_counter()
        bench.train(steps, **short)
        times["with" if with_laggard else "without"].append((time.perf_counter() - began) / steps * 1e6)
        self_time = max(self_time, (recorder.self_time_ns - before) / steps / 1e3)
    laggard.instrument()
    bench.process = _process.current()
    found = {name: statistics.median(values) for name, values in times.items()}
    return {**found, "added": found["with"] - found["without"], "hooks' own count": self_time}


#: In this order: the last one takes laggard out and in.
CHECKS = (
    events, exposed_fetch, no_synchronization, copies, side_stream, capture, memory, mixed_precision, replicated, nvml,
    overhead,
)  # fmt: skip


def rounded(figures: Any) -> Any:
    """Return figures with three digits after the point."""
    if isinstance(figures, dict):
        return {name: rounded(value) for name, value in figures.items()}
    return round(figures, 3) if isinstance(figures, float) else figures


def main() -> int:
    """Run the checks."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=f"of {', '.join(c.__name__ for c in CHECKS)}")
    arguments = parser.parse_args()
    unknown = set(arguments.checks) - {check.__name__ for check in CHECKS}
    if unknown:
        parser.error(f"no such check: {', '.join(sorted(unknown))}")
    if not torch.cuda.is_available():
        print(f"skipped: torch {torch.__version__} finds no CUDA device here")
        return 0
    machine = {
        "device": torch.cuda.get_device_name(),
        "python": platform.python_version(),
        **_runtime.facts("cuda-check", ""),
    }
    print(machine)
    logging.getLogger("laggard").addHandler(warnings)
    laggard.instrument()
    bench = Bench()
    bench.train(5)
    time.sleep(DRAINS_SECONDS)  # the drain finds CUDA in use
    bench.train(5)
    rows: list[dict[str, Any]] = []
    for check in CHECKS:
        if arguments.checks and check.__name__ not in arguments.checks:
            continue
        warnings.lines.clear()
        try:
            figures, failure = rounded(check(bench)), ""
        except Exception as error:  # the other checks are worth having
            traceback.print_exc()
            figures, failure = {}, str(error) or repr(error)
        failure = failure or "; ".join(line for line in warnings.lines if "failed" in line)
        rows.append({"check": check.__name__, "ok": not failure, "failure": failure, **figures})
        print(f"{'FAILED' if failure else 'ok':8}{check.__name__:20}{failure or figures}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": machine, "checks": rows}, indent=2) + "\n")
    return 0 if all(row["ok"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
