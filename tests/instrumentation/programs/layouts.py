"""Ranks train in one of the usual layouts while one of them is slow, in one place after the other.

Nothing in here knows of laggard. Arguments: the layout, the slow rank and a folder, into which each rank writes the
stopwatch of its steps: begin and end of each part, read by hand. Each configuration of a layout (eager or compiled,
mixed precision or gradient accumulation) goes through a segment of steps for every place of the delay, the first of
them healthy.
"""

# ruff: noqa: ARG001, D103, FBT001 - layouts are a table of functions of one kind, whose names say what they are

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

PLACES = ("none", "data", "forward", "backward", "optimizer", "host")
#: Seconds that the slow rank takes longer in a step.
EXTRA = 0.050
#: Steps of a segment; and those before the first one, in which a compiler works.
STEPS = 6
#: Of layouts whose own work is mostly Python on a processor that is shared: more of them, so that one is undisturbed.
MORE_STEPS = {"fsdp2": 8, "tensor_parallel": 8}
WARMUP = 3
WIDTH = 64
#: Microbatches of a pipeline, and passes of a step that accumulates gradients.
PASSES = 2

#: Seconds that this rank takes longer, by place.
delay = dict.fromkeys(PLACES, 0.0)
#: Begins and ends of a step's parts, in nanoseconds. A pipeline calls forward and backward itself, out of reach.
PARTS = ("data", "trained", "forward", "backward", "optimizer")
watch: dict[str, list[tuple[int, int]]] = {part: [] for part in PARTS}


@contextlib.contextmanager
def clocked(part: str) -> Iterator[None]:
    """Read the clock before and after a part of the step."""
    began = time.perf_counter_ns()
    yield
    watch[part].append((began, time.perf_counter_ns()))


@torch.library.custom_op("layouts::busy", mutates_args=())
def busy(x: torch.Tensor, layer: int) -> torch.Tensor:
    """Take 2 ms, like a kernel of that length, inside of compiled graphs too."""
    time.sleep(0.002 + (delay["forward"] if layer == 1 else 0.0))
    return x.clone()


@torch.library.custom_op("layouts::busy_backward", mutates_args=())
def busy_backward(gradient: torch.Tensor, layer: int) -> torch.Tensor:
    """Take 4 ms in backward."""
    time.sleep(0.004 + (delay["backward"] if layer == 1 else 0.0))
    return gradient.clone()


busy.register_fake(lambda x, _layer: torch.empty_like(x))
busy_backward.register_fake(lambda gradient, _layer: torch.empty_like(gradient))


def _keep_layer(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.layer = inputs[1]


busy.register_autograd(lambda ctx, gradient: (busy_backward(gradient, ctx.layer), None), setup_context=_keep_layer)


class Block(nn.Module):
    """Two linear layers, which tensor parallelism splits."""

    def __init__(self, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + busy(self.down(torch.relu(self.up(x))), self.layer)


class Net(nn.Module):
    """Two blocks; the second one takes the delay."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(layer) for layer in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Batches(Dataset[torch.Tensor]):
    """Items without end."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(WIDTH)


def collate(items: list[torch.Tensor]) -> torch.Tensor:
    """Take 4 ms to make a batch."""
    time.sleep(0.004 + delay["data"])
    return torch.stack(items)


class SlowSGD(torch.optim.SGD):
    """An optimizer whose update takes 2 ms longer."""

    def step(self, closure: Any = None) -> Any:
        time.sleep(0.002 + delay["optimizer"])
        return super().step(closure)


def _loss(output: torch.Tensor, _target: torch.Tensor | None = None) -> torch.Tensor:
    return output.float().square().mean()


Train = Callable[[torch.Tensor, bool], None]
"""Forward and backward of one batch; told whether gradients are reduced after it."""

Layout = Callable[[bool, Any], tuple[Any, Train]]
"""Told whether to compile, and with which gradient scaler; returns the parameters and the training of a batch."""


def _plain(model: nn.Module, accumulate: Callable[[bool], Any], scaler: Any, *, scaled: bool = True) -> Train:
    def train(batch: torch.Tensor, last: bool) -> None:
        with accumulate(last):
            with torch.autocast("cpu", torch.bfloat16, enabled=scaler is not None):
                with clocked("forward"):
                    output = model(batch)
                loss = _loss(output)
            if scaler is not None and scaled:
                loss = scaler.scale(loss)
            with clocked("backward"):
                loss.backward()

    return train


def _compile_blocks(net: nn.Module, compiled: bool) -> nn.Module:
    if compiled:
        for block in net.blocks:
            block.compile(backend="aot_eager")
    return net


def _accumulating(model: Any, *, always: bool = False) -> Callable[[bool], Any]:
    """Return the contexts of passes: gradients are reduced in the last one of a step, or in each."""
    return lambda last: contextlib.nullcontext() if last or always else model.no_sync()


def single(compiled: bool, scaler: Any) -> tuple[Any, Train]:
    net = Net()
    model = torch.compile(net, backend="aot_eager") if compiled else net
    return net.parameters(), _plain(model, lambda _: contextlib.nullcontext(), scaler)


def ddp(compiled: bool, scaler: Any) -> tuple[Any, Train]:
    model = DistributedDataParallel(Net())
    called = torch.compile(model, backend="aot_eager") if compiled else model
    return model.parameters(), _plain(called, _accumulating(model), scaler)


def _ddp_variant(*, unused: bool = False, hook: Any = None, **options: Any) -> Layout:
    def build(compiled: bool, scaler: Any) -> tuple[Any, Train]:
        net = Net()
        if unused:
            net.unused = nn.Linear(4, 4)
        net.register_buffer("statistics", torch.zeros(8))
        model = DistributedDataParallel(net, **options)
        if hook is not None:
            model.register_comm_hook(None, hook)
        # A static graph is one in which every backward reduces.
        always = options.get("static_graph", False)
        return model.parameters(), _plain(model, _accumulating(model, always=always), scaler)

    return build


def _average(_state, bucket):  # noqa: ANN001, ANN202 - DDP compares annotations, and takes no strings for them
    """Reduce a bucket as a user would in a hook of their own."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda future: future.value()[0] / dist.get_world_size())


def ddp_two(compiled: bool, scaler: Any) -> tuple[Any, Train]:
    """Two replicated models: both forwards, then a backward each."""
    models = [DistributedDataParallel(Net()) for _ in range(2)]

    def train(batch: torch.Tensor, last: bool) -> None:
        losses: list[torch.Tensor] = []
        for model in models:
            with clocked("forward"):
                output = model(batch)
            losses.append(_loss(output))
        for loss in losses:
            with clocked("backward"):
                loss.backward()

    return itertools.chain(*(model.parameters() for model in models)), train


def fsdp1(compiled: bool, scaler: Any) -> tuple[Any, Train]:
    net = _compile_blocks(Net(), compiled)
    for index, block in enumerate(net.blocks):
        net.blocks[index] = FullyShardedDataParallel(block, device_id=torch.device("cpu"))
    model = FullyShardedDataParallel(net, device_id=torch.device("cpu"))
    return model.parameters(), _plain(model, _accumulating(model), scaler)


def _shard(net: nn.Module, mesh: Any, *, reshard: bool) -> Callable[[bool], Any]:
    for block in net.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(net, mesh=mesh, reshard_after_forward=reshard)

    def accumulate(last: bool) -> Any:
        net.set_requires_gradient_sync(last)
        return contextlib.nullcontext()

    return accumulate


def fsdp2(compiled: bool, scaler: Any, *, reshard: bool = True) -> tuple[Any, Train]:
    net = _compile_blocks(Net(), compiled)
    accumulate = _shard(net, init_device_mesh("cpu", (dist.get_world_size(),)), reshard=reshard)
    return net.parameters(), _plain(net, accumulate, scaler)


def fsdp2_keep(compiled: bool, scaler: Any) -> tuple[Any, Train]:
    return fsdp2(compiled, scaler, reshard=False)


def tensor_parallel(compiled: bool, scaler: Any) -> tuple[Any, Train]:
    """Two tensor-parallel pairs, each rank replicated in the other pair."""
    # DDP puts local tensors in the place of the parameters after each forward. Torch's own compiled backward fails with
    # that at the second step, so where blocks are compiled the data dimension is sharded.
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    net = Net()
    for block in net.blocks:
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    if compiled:
        accumulate = _shard(_compile_blocks(net, compiled), mesh["dp"], reshard=True)
        return net.parameters(), _plain(net, accumulate, scaler, scaled=False)
    model = DistributedDataParallel(net, device_mesh=mesh["dp"])
    return model.parameters(), _plain(model, _accumulating(model), scaler, scaled=False)


def pipeline(compiled: bool, scaler: Any) -> tuple[Any, Train]:
    """Two stages, each on two ranks that average their gradients by hand."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    group, peers = mesh.get_group("pp"), mesh.get_group("dp")
    net = Net()
    model = torch.compile(net, backend="aot_eager") if compiled else net
    stage = PipelineStage(model, dist.get_rank(group), 2, torch.device("cpu"), group=group)
    # The first exchange opens NCCL's channels. In torch 2.9 it sends eight bytes into four, which gloo refuses.
    stage._get_init_p2p_neighbors_ops = list
    schedule = ScheduleGPipe(stage, PASSES, loss_fn=_loss)
    first = dist.get_rank(group) == 0

    def train(batch: torch.Tensor, last: bool) -> None:
        # No cache: torch 2.9 infers shapes without gradients in here, and would go on with the weights of that pass.
        with torch.autocast("cpu", torch.bfloat16, enabled=scaler is not None, cache_enabled=False):
            if first:
                schedule.step(batch)
            else:
                schedule.step(target=batch)
        if last:
            gradients = torch.cat([parameter.grad.flatten() for parameter in net.parameters()])
            dist.all_reduce(gradients, group=peers)

    return net.parameters(), train


LAYOUTS: dict[str, Layout] = {
    "single": single,
    "ddp": ddp,
    "fsdp1": fsdp1,
    "fsdp2": fsdp2,
    "fsdp2_keep": fsdp2_keep,
    "ddp_static": _ddp_variant(static_graph=True),
    "ddp_unused": _ddp_variant(unused=True, find_unused_parameters=True),
    "ddp_view": _ddp_variant(gradient_as_bucket_view=True),
    "ddp_fp16": _ddp_variant(hook=fp16_compress_hook),
    "ddp_hook": _ddp_variant(hook=_average),
    "ddp_two": ddp_two,
    "tensor_parallel": tensor_parallel,
    "pipeline": pipeline,
}
#: Layouts with mixed precision but no scaler: it cannot reach the loss of a schedule, and is slow on many DTensors.
UNSCALED = ("pipeline", "tensor_parallel")


def run(layout: str, configuration: str, places: list[str], *, slow: bool) -> list[dict[str, Any]]:
    """Train in one configuration and return the stopwatch of its steps, in nanoseconds."""
    torch.manual_seed(0)
    compiled, mode = configuration.startswith("compiled-"), configuration.partition("-")[2]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0) if mode == "amp" else None
    parameters, train = LAYOUTS[layout](compiled, scaler)
    if layout in UNSCALED:
        scaler = None
    optimizer = SlowSGD(parameters, lr=1e-3)
    batches = iter(DataLoader(Batches(), batch_size=4, collate_fn=collate))
    passes = PASSES if mode == "accumulation" else 1
    # How often the place is passed in a step: by each microbatch, and by each of two models.
    often = PASSES if layout in ("pipeline", "ddp_two") else 1
    calls = {"data": passes, "forward": passes * often, "backward": passes * often}
    rows: list[dict[str, Any]] = []
    for place in ("warmup", *places):
        delay.update(dict.fromkeys(PLACES, 0.0))
        if slow and place != "warmup":
            delay[place] = EXTRA / calls.get(place, 1)
        for _ in range(WARMUP if place == "warmup" else MORE_STEPS.get(layout, STEPS)):
            started = time.perf_counter_ns()
            watch.update({part: [] for part in PARTS})
            for number in range(passes):
                with clocked("data"):
                    batch = next(batches)
                with clocked("trained"):
                    train(batch, number == passes - 1)
            with clocked("optimizer"):
                if scaler is None:
                    optimizer.step()
                else:
                    scaler.step(optimizer)
                    scaler.update()
            optimizer.zero_grad()
            if delay["host"]:
                time.sleep(delay["host"])
            ended = time.perf_counter_ns()
            rows.append(
                {
                    "layout": layout,
                    "configuration": configuration,
                    "place": place,
                    "started": started,
                    "ended": ended,
                    **watch,
                }
            )
    return rows


def main() -> None:
    """Go through every configuration of the layouts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("layouts")
    parser.add_argument("--slow-rank", type=int, required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--configurations", required=True)
    parser.add_argument("--places", default=",".join(PLACES))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rank = 0
    if arguments.layouts != "single":
        dist.init_process_group("gloo")
        rank = dist.get_rank()
    rows: list[dict[str, Any]] = []
    for layout in arguments.layouts.split(","):
        for configuration in arguments.configurations.split(","):
            rows += run(layout, configuration, arguments.places.split(","), slow=rank == arguments.slow_rank)
    Path(arguments.out, f"stopwatch-{rank}.json").write_text(json.dumps(rows))
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
