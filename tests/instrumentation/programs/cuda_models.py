"""What laggard does to real models on a real GPU: run by a person who has one, with ``make test-cuda``.

A GPT of 124 million parameters trains in bfloat16, eager, compiled, as CUDA graphs and in DDP over NCCL, by turns with
laggard and without: losses are the same to the last bit, and forward and backward are what the program's own events
say. Transformers' and Lightning's trainers train a smaller one, where they are installed. ``--json FILE`` keeps the
figures, ``--trace FILE`` a trace of torch's profiler. Ends with 1 if a check fails, and with 0 where there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("LAGGARD_RUN", "cuda-models")
os.environ.setdefault("LAGGARD_STATE_DIR", tempfile.mkdtemp(prefix="laggard-"))
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what torch asks of whoever wants the same bits twice

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import DataLoader, Dataset

import laggard
from laggard import _process
from laggard.shared.phases import Phase

#: Two drains, and a reserve.
DRAINS_SECONDS = 3.0
VOCABULARY = 8192
Figures = dict[str, Any]
Event = torch.cuda.Event


class Block(nn.Module):
    """A layer of a GPT."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend to the past."""
        batch, length, width = x.shape
        parts = self.attention(self.before_attention(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.before_mlp(x))


class Gpt(nn.Module):
    """A GPT that returns its loss."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(1024, width)
        self.blocks = nn.Sequential(*(Block(width, width // 64) for _ in range(layers)))
        self.last = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the mean cross-entropy of the next token."""
        inputs, targets = rows[:, :-1], rows[:, 1:]
        x = self.tokens(inputs) + self.positions.weight[: inputs.shape[1]]
        logits = self.head(self.last(self.blocks(x)))
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class Rows(Dataset[torch.Tensor]):
    """Rows of tokens, each the same whenever it is asked for."""

    def __init__(self, count: int, length: int) -> None:
        self.count, self.length = count, length

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randint(VOCABULARY, (self.length + 1,), generator=torch.Generator().manual_seed(index))


def steps_since(number: int) -> list[Any]:
    """Return the steps after this one, measured or not."""
    process: Any = _process.current()
    return [step for step in process.trace._steps if step.number > number]


def newest() -> int:
    """Return the number of the last step."""
    steps = steps_since(0)
    return steps[-1].number if steps else 0


def unavailable() -> list[str]:
    """Return the signals that are not to be trusted now."""
    process: Any = _process.current()
    return [hook.name for hook in process._parts if hook.signal and not hook.available]


class Loop:
    """A model, its optimizer and its data; the model is made once, and its turns go on training it."""

    def __init__(self, wrap: Callable[[nn.Module], nn.Module], *, layers: int = 12, width: int = 768) -> None:
        torch.manual_seed(0)
        self.model = wrap(Gpt(layers, width).cuda())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.losses: list[torch.Tensor] = []
        self.marks: list[list[Event]] = []

    def train(self, steps: int, *, marked: bool = False) -> float:
        """Train and return the seconds of a step by the clock, device included."""
        loader = DataLoader(Rows(steps * 32, 512), batch_size=32, num_workers=2, pin_memory=True)
        self.marks.clear()
        iterator = iter(loader)
        rows = next(iterator, None)
        torch.cuda.synchronize()
        began = time.perf_counter()
        while rows is not None:
            marks = [Event(enable_timing=True) for _ in range(4)] if marked else []
            rows = rows.to("cuda", non_blocking=True)
            if marked:
                marks[0].record()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = self.model(rows)
            if marked:
                marks[1].record()
                marks[2].record()
            loss.backward()
            if marked:
                marks[3].record()
                self.marks.append(marks)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.losses.append(loss.detach().clone())
            rows = next(iterator, None)
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / steps

    def times(self) -> list[tuple[float, float]]:
        """Return the milliseconds of forward and backward of each step by this program's own events."""
        return [(a.elapsed_time(b), c.elapsed_time(d)) for a, b, c, d in self.marks]


def agree(name: str, own: float, theirs: float, share: float = 0.02) -> None:
    """Agree to 2 % or 0.2 ms."""
    assert abs(own - theirs) <= max(0.2, share * own), f"{name} is {theirs:.3f} ms where it is {own:.3f} ms"


def turns(wrap: Callable[[nn.Module], nn.Module], *, rounds: int = 8, steps: int = 40) -> Figures:
    """Train by turns with laggard and without; return what a step takes, and what is added."""
    times: dict[bool, list[float]] = {True: [], False: []}
    loop = Loop(wrap)
    for _ in range(2):  # compiles, and lets the drain find the device
        loop.train(15)
        time.sleep(DRAINS_SECONDS)
    before = newest()
    loop.train(30, marked=True)
    time.sleep(DRAINS_SECONDS)
    # The same steps of both, counted from the last.
    found = [step for step in steps_since(before)[-20:] if not step.excluded]
    assert len(found) >= 18, f"{len(found)} of 20 steps were measured"
    own = dict(zip(("forward", "backward"), map(statistics.median, zip(*loop.times()[-20:], strict=True)), strict=True))
    medians = {p.label: statistics.median(s.phases[p] for s in found) / 1e6 for p in Phase}
    assert not unavailable(), f"{unavailable()} are unavailable"
    agree("forward", own["forward"], medians["forward"])
    # The exposed wait of DDP is in its backward.
    agree("backward", own["backward"], medians["backward"] + medians["communication"])
    for number in range(rounds):
        with_laggard = number % 4 in {0, 3}
        if with_laggard != (_process.current() is not None):
            (laggard.instrument if with_laggard else laggard.uninstrument)()
        loop.train(10)
        if with_laggard:
            time.sleep(DRAINS_SECONDS / 2)
        times[with_laggard].append(1e3 * loop.train(steps))
    if _process.current() is None:
        laggard.instrument()
    took = {label: statistics.median(times[key]) for key, label in ((True, "with"), (False, "without"))}
    return {
        "own": own,
        "laggard": {name: value for name, value in medians.items() if value > 0.005},
        **took,
        "added %": 100 * (took["with"] / took["without"] - 1),
        "range without": [min(times[False]), max(times[False])],
        "range with": [min(times[True]), max(times[True])],
    }


def eager() -> Figures:
    """As it is written."""
    return turns(lambda model: model)


def compiled() -> Figures:
    """Compiled as a whole."""
    return turns(torch.compile)


def graphs() -> Figures:
    """Compiled, and replayed as CUDA graphs."""
    return turns(lambda model: torch.compile(model, mode="reduce-overhead"))


def replicated() -> Figures:
    """In DDP over NCCL, one rank."""
    return turns(nn.parallel.DistributedDataParallel)


def same_losses() -> Figures:
    """Thirty steps with laggard and without have the same losses to the last bit."""
    torch.use_deterministic_algorithms(True)
    losses: dict[bool, list[str]] = {}
    try:
        for with_laggard in (True, False):
            if not with_laggard:
                laggard.uninstrument()
            loop = Loop(lambda model: model, layers=4, width=256)
            # Where torch prefers cuDNN's attention, as on an H100, no two runs have the same bits.
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                loop.train(30)
            losses[with_laggard] = [float(loss).hex() for loss in loop.losses]
    finally:
        torch.use_deterministic_algorithms(False)
        if _process.current() is None:
            laggard.instrument()
    assert losses[True] == losses[False], "losses differ"
    return {"losses": len(losses[True])}


class Noted(nn.Module):
    """A small GPT that notes its forwards by events."""

    def __init__(self) -> None:
        super().__init__()
        self.gpt = Gpt(4, 512)
        self.forwards: list[tuple[Event, Event]] = []

    def forward(self, rows: torch.Tensor, **_: Any) -> Any:
        """Return the loss as Transformers' models do."""
        begin, end = Event(enable_timing=True), Event(enable_timing=True)
        begin.record()
        loss = self.gpt(rows)
        end.record()
        if torch.is_grad_enabled():
            self.forwards.append((begin, end))
        return {"loss": loss}


def compare(model: Noted, before: int, updates: int, accumulated: int) -> Figures:
    """Compare laggard's steps with the forwards that a model noted."""
    time.sleep(DRAINS_SECONDS)
    kept = steps_since(before)
    assert len(kept) in {updates, updates - 1}, f"{len(kept)} steps where there are {updates} updates"
    assert len(model.forwards) == updates * accumulated, f"{len(model.forwards)} forwards"
    found = [s for s in kept if not s.excluded][2:]
    own = statistics.median(
        sum(b.elapsed_time(e) for b, e in model.forwards[i : i + accumulated])
        for i in range(3 * accumulated, len(model.forwards), accumulated)
    )
    medians = {p.label: statistics.median(s.phases[p] for s in found) / 1e6 for p in Phase}
    agree("forward", own, medians["forward"], 0.05)
    assert not unavailable(), f"{unavailable()} are unavailable"
    return {"steps": len(kept), "forward": own, "laggard": {n: v for n, v in medians.items() if v > 0.005}}


class Mappings(Rows):
    """Rows as mappings."""

    def __getitem__(self, index: int) -> Any:
        return {"rows": super().__getitem__(index)}


def transformers_trainer() -> Figures:
    """Transformers' Trainer: four accumulated batches, an evaluation every five updates, a checkpoint every ten."""
    from transformers import Trainer, TrainingArguments  # noqa: PLC0415 - where it is installed

    model, before = Noted(), newest()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, max_steps=20, per_device_train_batch_size=4, per_device_eval_batch_size=4,
            gradient_accumulation_steps=4, eval_strategy="steps", eval_steps=5, save_steps=10, report_to=[], bf16=True,
            disable_tqdm=True, remove_unused_columns=False, logging_strategy="no", dataloader_num_workers=1,
        )  # fmt: skip
        Trainer(model, arguments, train_dataset=Mappings(320, 256), eval_dataset=Mappings(16, 256)).train()
    return compare(model, before, 20, 4)


def lightning_trainer() -> Figures:
    """Lightning's Trainer: two accumulated batches, a validation and a checkpoint each epoch."""
    import lightning  # noqa: PLC0415 - where it is installed

    model, before = Noted(), newest()

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, rows: torch.Tensor, _index: int) -> torch.Tensor:
            return self.model(rows)["loss"]

        def validation_step(self, rows: torch.Tensor, _index: int) -> Any:
            return self.model(rows)["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator="gpu", devices=1, max_epochs=3, accumulate_grad_batches=2, logger=False, precision="bf16-mixed",
            default_root_dir=folder, enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        loaders = DataLoader(Rows(64, 256), batch_size=4), DataLoader(Rows(16, 256), batch_size=4)
        trainer.fit(Module(), *loaders)
    return compare(model, before, 24, 2)


def profiled(file: Path) -> Figures:
    """Six steps in a trace of torch's profiler; laggard and the profiler do not disturb each other."""
    loop = Loop(nn.parallel.DistributedDataParallel, layers=4, width=512)
    loop.train(10)
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        loop.train(6)
    profiler.export_chrome_trace(str(file))
    return {"bytes": file.stat().st_size}


def evaluation() -> Figures:
    """Forwards without gradients between stretches of training are evaluation, all of their time on the device."""
    loop = Loop(lambda model: model, layers=4, width=512)
    loop.train(10)
    time.sleep(DRAINS_SECONDS)
    before = newest()
    own = 0.0
    for _ in range(3):
        loop.train(8)
        begin, end = Event(enable_timing=True), Event(enable_timing=True)
        begin.record()
        with torch.no_grad():
            for rows in DataLoader(Rows(96, 512), batch_size=32):
                loop.model(rows.cuda())
        end.record()
        end.synchronize()
        own += begin.elapsed_time(end)
    loop.train(8)
    time.sleep(DRAINS_SECONDS)
    kept = steps_since(before)
    evaluated = sum(step.phases[Phase.EVALUATION] for step in kept) / 1e6
    assert len(kept) in {31, 32}, f"{len(kept)} steps where there are 32 updates"
    agree("evaluation", own, evaluated, 0.1)
    return {"steps": len(kept), "own": own, "evaluation": evaluated}


def signals() -> Figures:
    """In every layout all signals are there, and a step adds up to what it takes."""
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415 - the other checks do without
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard  # noqa: PLC0415 - as above

    def fsdp2(model: nn.Module) -> nn.Module:
        mesh = init_device_mesh("cuda", (1,))
        for block in (*model.blocks, model):
            fully_shard(block, mesh=mesh)
        return model

    layouts: dict[str, Callable[[Any], Any]] = {
        "ddp": nn.parallel.DistributedDataParallel,
        "ddp compiled": lambda model: torch.compile(nn.parallel.DistributedDataParallel(model)),
        "ddp static": lambda model: nn.parallel.DistributedDataParallel(model, static_graph=True),
        "fsdp1": lambda model: FullyShardedDataParallel(model, device_id=0),
        "fsdp2": fsdp2,
    }
    found: Figures = {}
    missing: dict[str, list[str]] = {}
    for name, wrap in layouts.items():
        loop = Loop(wrap, layers=4, width=512)
        loop.train(10)
        before = newest()
        took = loop.train(20)
        time.sleep(DRAINS_SECONDS)
        steps = [step for step in steps_since(before) if not step.excluded]
        step = statistics.median(step.duration for step in steps) / 1e6
        found[name] = {"step": 1e3 * took, "laggard": step, "unavailable": " ".join(unavailable())}
        if unavailable():
            missing[name] = unavailable()
    assert not missing, f"{missing} of {rounded(found)}"
    return found


def rounded(figures: Any) -> Any:
    """Return figures with three digits after the point."""
    if isinstance(figures, dict):
        return {name: rounded(value) for name, value in figures.items()}
    if isinstance(figures, list):
        return [rounded(value) for value in figures]
    return round(figures, 3) if isinstance(figures, float) else figures


def checks(trace: Path | None) -> Iterator[tuple[str, Callable[[], Figures]]]:
    """Yield the checks by name."""
    for check in (
        eager,
        compiled,
        graphs,
        replicated,
        same_losses,
        signals,
        transformers_trainer,
        lightning_trainer,
        evaluation,
    ):
        yield check.__name__, check
    if trace:
        yield "profiled", lambda: profiled(trace)


def main() -> int:
    """Run the checks."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--trace", type=Path, help="write a trace of torch's profiler to this file")
    parser.add_argument("checks", nargs="*", metavar="CHECK")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print(f"skipped: torch {torch.__version__} finds no CUDA device here")
        return 0
    laggard.instrument()
    store = Path(tempfile.mkdtemp(), "store")
    dist.init_process_group(
        "nccl", init_method=f"file://{store}", rank=0, world_size=1, device_id=torch.device("cuda", 0)
    )
    rows: list[dict[str, Any]] = []
    for name, check in checks(arguments.trace):
        if arguments.checks and name not in arguments.checks:
            continue
        began = time.monotonic()
        try:
            figures, failure = rounded(check()), ""
        except ImportError as error:
            figures, failure = {"skipped": str(error)}, ""
        except Exception as error:  # the other checks are worth having
            traceback.print_exc()
            figures, failure = {}, str(error) or repr(error)
        rows.append({"check": name, "ok": not failure, "failure": failure, **figures})
        took = time.monotonic() - began
        print(f"{'FAILED' if failure else 'ok':8}{name:22}{took:5.0f} s  {failure or figures}", flush=True)
        if arguments.json:
            arguments.json.write_text(
                json.dumps({"device": torch.cuda.get_device_name(), "checks": rows}, indent=2) + "\n"
            )
    dist.destroy_process_group()
    return 0 if all(row["ok"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
