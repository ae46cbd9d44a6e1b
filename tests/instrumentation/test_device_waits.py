"""What is found afterwards, and FSDP's waits, on the simulated clock of a device."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import fsdp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.data import DataLoader

from laggard._device import DeviceClock
from laggard._events import UPDATE
from laggard._hooks.operations import KINDS
from laggard._hooks.streams import StreamsHook
from laggard._hooks.transfer import TransferHook
from laggard._partition import StepPartition
from laggard._process import Process
from laggard._steps import Step
from laggard.shared.phases import Phase
from tests.instrumentation.inside import hook_named
from tests.support.stream import MS, Stream

pytestmark = [pytest.mark.timed, pytest.mark.filterwarnings("ignore::UserWarning:torch.*")]

COMPUTE, GATHER = 10.0, 30.0


class Device:
    """A device for this process: everything that is recorded stands on the clock of its stream."""

    def __init__(self, process: Process) -> None:
        self.stream = Stream()
        self._clock = DeviceClock(self.stream.make, lambda: True)
        self._process = process
        self._partition = StepPartition(warmup_steps=0)
        process.recorder.device = self._clock.edge
        process.exposure.compute_stream = self._clock.stream = self.stream
        process.exposure.current_stream = torch.cpu.current_stream

    def steps(self) -> list[Step]:
        """Whole steps so far, once the device is done; the first one meets the device."""
        self.stream.host_works((self.stream.passes() - self.stream.now) / MS + 1)
        return self._partition.feed(self._clock.translate(self._process.recorder.drain()))


@pytest.fixture
def device(process: Process, monkeypatch: pytest.MonkeyPatch) -> Device:
    """The device of this process, with torch's streams of the CPU as its streams."""
    device = Device(process)
    monkeypatch.setattr(torch.cpu, "_current_stream", device.stream)
    monkeypatch.setattr(torch.cpu, "Stream", lambda priority=0: Stream())  # noqa: ARG005 - as torch's
    return device


@pytest.fixture
def fake_group() -> Iterator[None]:
    """Two ranks, of which this process is one and the other does not exist; collectives do nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


class Compute(torch.autograd.Function):
    """Keeps the current stream busy, twice as long in backward."""

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
        torch.cpu.current_stream().hand_over(COMPUTE)  # pyright: ignore[reportAttributeAccessIssue] - the test's own
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        torch.cpu.current_stream().hand_over(2 * COMPUTE)  # pyright: ignore[reportAttributeAccessIssue] - as above
        return gradients[0].clone()


class Block(nn.Module):
    """A linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(Compute.apply(x))


def milliseconds(step: Step) -> dict[str, int]:
    """The phases that took more of the step than the host needs between them."""
    return {phase.label: round(step.phases[phase] / MS) for phase in Phase if step.phases[phase] > 3 * MS}


def first_kind() -> nn.Module:
    """A model of two blocks, each wrapped, and wrapped as a whole."""
    blocks = [FullyShardedDataParallel(Block(), device_id=torch.device("cpu")) for _ in range(2)]
    return FullyShardedDataParallel(nn.Sequential(*blocks), device_id=torch.device("cpu"))


def second_kind() -> nn.Module:
    """A model of two blocks, sharded in place."""
    model = nn.Sequential(Block(), Block())
    mesh = init_device_mesh("cpu", (2,))
    for module in (*model, model):
        fully_shard(module, mesh=mesh)
    return model


#: Functions by which FSDP communicates, as several versions of torch call them.
COLLECTIVES = (
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_single",
    "reduce_scatter_tensor",
    "reduce_scatter_single",
)


@pytest.mark.usefixtures("fake_group")
@pytest.mark.parametrize("make", [first_kind, second_kind])
def test_fsdp_on_a_device_shows_what_its_stream_waits_for(
    make: Callable[[], nn.Module], device: Device, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward and backward are what the device computes; what is left of gathers and scatters is communication."""
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    hook = hook_named(process, "streams")
    assert isinstance(hook, StreamsHook)
    hook.uninstall()  # from torch's own class
    hook.installed = True
    hook._patch(fsdp)
    for name in COLLECTIVES:
        if hasattr(dist, name):
            monkeypatch.setattr(dist, name, functools.partial(_slow, device, getattr(dist, name)))
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in DataLoader([torch.ones(4)] * 8, batch_size=2):  # pyright: ignore[reportArgumentType] - a list will do
        model(batch.requires_grad_()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    steps = device.steps()[1:]
    assert len(steps) == 3
    for step in steps:
        phases = milliseconds(step)
        assert phases.pop("forward") == pytest.approx(2 * COMPUTE, abs=2)
        assert phases.pop("backward") == pytest.approx(4 * COMPUTE, abs=2)
        # Forward: all of the first gather, and of the second what the first block does not hide. Backward: a gather,
        # if only of the other block, and at the end the scatter of the first block.
        assert phases.pop("communication") >= GATHER + (GATHER - COMPUTE) + GATHER
        assert phases == {}
        assert step.excluded == ""
    assert hook_named(process, "collectives").available


def _slow(device: Device, collective: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Have a collective keep its stream busy, which is not the one that computes."""
    stream: Any = torch.cpu.current_stream()
    assert stream is not device.stream
    stream.hand_over(GATHER)
    return collective(*args, **kwargs)


def compiled_step(device: Device, takes: float, graphs: list[Any]) -> Any:
    """What keeps the device busy whenever a graph runs."""

    def backend(graph: Any, _inputs: Any) -> Any:
        graphs.append(graph)

        def run(*args: Any) -> Any:
            device.stream.hand_over(takes)
            return graph(*args)

        return run

    return backend


def test_a_compiled_optimizer_is_measured_from_its_first_call(device: Device, process: Process) -> None:
    """By edges around the call, also where nobody knew before the call that it would be an optimizer."""
    torch._dynamo.reset()
    parameter = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([parameter], lr=0.01)
    hook_named(process, "torch_compile").steps_ended([])  # listens again after the reset
    update = torch.compile(optimizer.step, backend=compiled_step(device, 20, []))
    batches = DataLoader([torch.ones(4)] * 6, batch_size=1)  # pyright: ignore[reportArgumentType] - a list will do
    for number, batch in enumerate(batches):
        if number == 1:
            device.stream.hand_over(300)  # from here on the host is ahead
        (parameter * batch).sum().backward()
        update()
        optimizer.zero_grad()
    steps = device.steps()
    assert [step.excluded for step in steps] == ["compile", "", "", "", "", ""]
    for step in steps[2:]:
        assert milliseconds(step) == {"optimizer": 20}


def test_a_train_step_in_one_graph_is_a_step_of_the_device(device: Device) -> None:
    """Without a loader its begin and end are the step's, as the device passes them."""
    torch._dynamo.reset()
    parameter = torch.ones(4)
    parameter.grad = torch.ones(4)
    optimizer = torch.optim.SGD([parameter], lr=0.01)
    graphs: list[Any] = []

    @torch.compile(backend=compiled_step(device, 20, graphs))
    def train(x: torch.Tensor) -> torch.Tensor:
        loss = (parameter * x).sum()
        optimizer.step()
        return loss

    train(torch.ones(4))
    device.stream.hand_over(300)  # from here on the host is ahead
    for _ in range(5):
        train(torch.ones(4))
    durations = [step.duration / MS for step in device.steps()[2:]]
    assert durations == [pytest.approx(20 * len(graphs), abs=2)] * 3


def test_streams_wait_as_they_did(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments may be named, an error is the caller's, and what is not FSDP's is not communication."""

    class Strict(Stream):
        def wait_stream(self, stream: Stream) -> None:
            super().wait_stream(stream)

    monkeypatch.setattr(torch.cuda, "Stream", Strict)
    hook = hook_named(process, "streams")
    assert isinstance(hook, StreamsHook)
    hook.uninstall()
    hook.installed = True
    hook._patch(fsdp)
    process.recorder.device = lambda _: None
    busy, waiting = Strict(now=0), Strict(now=0)
    busy.hand_over(5)
    wait: Any = waiting.wait_stream
    wait(stream=busy)
    assert waiting.passes() == 5 * MS
    with pytest.raises(TypeError, match="unexpected keyword"):
        wait(streams=busy)
    assert process.recorder.drain() == []
    hook.uninstall()
    assert "__wrapped__" not in vars(Strict.wait_stream)


def test_an_update_and_a_wait_on_autograds_thread_have_edges(
    device: Device, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs there stands inside of backward; a thread of the script's own that communicates meanwhile does not."""
    work = SimpleNamespace(wait=lambda: device.stream.hand_over(7))
    hook: Any = hook_named(process, "collectives")
    wait = hook._wrap_wait(lambda waiting: waiting.wait())
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    optimizer.register_step_post_hook(lambda *_: device.stream.hand_over(11))
    recorder = process.recorder

    def autograd() -> None:
        monkeypatch.setattr(torch._C, "_current_graph_task_id", lambda: 0)
        device.stream.hand_over(5)
        wait(work)
        optimizer.step()

    def saving() -> None:
        monkeypatch.setattr(torch._C, "_current_graph_task_id", lambda: -1)
        wait(work)

    torch.ones(1, requires_grad=True).sum().backward()
    device.steps()
    device.stream.hand_over(300)  # from here on the host is ahead
    for _ in range(3):
        recorder.end(recorder.begin(Phase.DATA))
        token = recorder.begin(Phase.BACKWARD)
        for target in (autograd, saving):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
        recorder.end(token)
    _, step = device.steps()
    # The optimizer's own hooks run inside of ours; what the other thread waits for is part of backward.
    assert milliseconds(step) == {"backward": 5 + 7, "communication": 7, "optimizer": 11}
    assert (process.exposure.waited, process.exposure.waited_in_backward) == (3, 3)


def by_methods(hook: Any, run: Callable[[], None]) -> Callable[[], Any]:
    """A blocking all-reduce as versions of torch without hooks on groups see it; it returns no work, as NCCL's."""
    issue = hook._wrap_method(lambda *_: run(), KINDS["ALLREDUCE"], 0)
    return lambda: issue(dist.group.WORLD, [torch.ones(2)], SimpleNamespace(asyncOp=False))


def by_hooks(hook: Any, run: Callable[[], None]) -> Callable[[], Any]:
    """The same as versions with hooks on groups see it."""
    groups = hook._groups
    before = groups.pre_hook(groups.find(dist.group.WORLD), KINDS, pytest.fail)

    def all_reduce() -> None:
        before(SimpleNamespace(name="ALLREDUCE", async_op=False, input_tensors=[torch.ones(2)]))
        run()
        hook._issued(SimpleNamespace(async_op=False, work=None))

    return all_reduce


@pytest.mark.usefixtures("fake_group")
@pytest.mark.parametrize("blocking", [by_methods, by_hooks])
def test_a_blocking_collective_that_returns_no_work_is_waited_for(
    blocking: Callable[..., Callable[[], None]], device: Device, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs in the current stream: that is communication, in backward too, and the signal stays available."""
    hook: Any = hook_named(process, "collectives")
    all_reduce = blocking(hook, lambda: device.stream.hand_over(30))
    recorder = process.recorder

    def autograd() -> None:
        monkeypatch.setattr(torch._C, "_current_graph_task_id", lambda: 0)
        device.stream.hand_over(20)
        all_reduce()

    torch.ones(1, requires_grad=True).sum().backward()
    device.steps()
    device.stream.hand_over(300)  # from here on the host is ahead
    for _ in range(4):
        recorder.end(recorder.begin(Phase.DATA))
        token = recorder.begin(Phase.FORWARD)
        device.stream.hand_over(10)
        all_reduce()
        recorder.end(token)
        all_reduce()
        token = recorder.begin(Phase.BACKWARD)
        thread = threading.Thread(target=autograd)
        thread.start()
        thread.join()
        recorder.end(token)
        recorder.mark(UPDATE)
    steps = device.steps()[1:]
    assert [milliseconds(step) for step in steps] == [{"forward": 10, "backward": 20, "communication": 90}] * 2
    hook.steps_ended(steps)
    assert hook.available
    # Three waits that the histogram has, and whose collective is over for the state file.
    assert [operation for operation, _ in hook._waits] == ["all_reduce", "all_reduce", "asynchronous"] * 4
    assert hook._groups.blocking == ("asynchronous", None)


@pytest.mark.usefixtures("fake_group")
def test_a_wait_begins_with_its_own_call(device: Device, process: Process) -> None:
    """A blocking call that returned a work, or failed, leaves no begin for a later one that returns none."""
    hook: Any = hook_named(process, "collectives")
    returned: list[Any] = [object(), None, None]
    issue = hook._wrap_method(lambda *_: returned.pop(0), KINDS["ALLREDUCE"], 0)
    for asynchronous in (False, True):
        issue(dist.group.WORLD, [torch.ones(2)], SimpleNamespace(asyncOp=asynchronous))
    token = process.recorder.begin(Phase.COMMUNICATION)
    issue(dist.group.WORLD, [torch.ones(2)], SimpleNamespace(asyncOp=False))
    process.recorder.end(token)
    groups = hook._groups
    before = groups.pre_hook(groups.find(dist.group.WORLD), KINDS, pytest.fail)
    for name in ("ALLREDUCE", "SEND"):
        before(SimpleNamespace(name=name, async_op=False, input_tensors=[torch.ones(2)]))
    hook._issued(SimpleNamespace(async_op=False, work=None))
    assert (process.exposure.waited, hook._waits) == (0, [])
    assert device.steps() == []


@pytest.mark.skipif(not hasattr(dist.ProcessGroup, "register_post_hook"), reason="this version of torch has no hooks")
def test_hooks_leave_the_groups(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each collective of a group is seen before and after it is issued, until the hook goes."""
    hook: Any = hook_named(process, "collectives")
    seen: list[Any] = []
    monkeypatch.setattr(hook, "_issued", seen.append)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        dist.all_reduce(torch.ones(2))
        assert [(each.async_op, each.work is None) for each in seen] == [(False, False)]
        watched = hook._groups.watched[0]
        assert watched.started == 1
        hook.uninstall()
        dist.all_reduce(torch.ones(2))
        assert (len(seen), watched.started) == (1, 1)
    finally:
        dist.destroy_process_group()


@pytest.mark.usefixtures("fake_group")
def test_a_collective_of_a_stream_of_its_own_holds_nobody_up(device: Device, process: Process) -> None:
    """What returns no work in another stream than the one that computes is no wait, and is seen."""
    hook: Any = hook_named(process, "collectives")
    process.exposure.current_stream = Stream
    by_hooks(hook, lambda: None)()
    assert process.exposure.waited == 1
    assert hook._waits == []
    assert device.steps() == []


def test_a_copy_to_the_device_and_a_loaded_checkpoint_have_edges(
    device: Device, process: Process, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """A step with a copy is a step like any other; what stays on the CPU puts nothing into the stream."""
    torch.ones(1, requires_grad=True).sum().backward()
    hook = hook_named(process, "transfer")
    assert isinstance(hook, TransferHook)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    hook.steps_ended([])
    recorder = process.recorder
    edges: list[int] = []
    note = recorder.device
    assert note is not None
    x = torch.ones(2)
    recorder.device = edges.append
    stay: Any = x.to
    for stays in ((torch.float64,), ("cpu",), (torch.device("cpu"),), (torch.ones(1),), (None, torch.float64), ()):
        stay(*stays)
    assert edges == []
    move: Any = x.to
    for moves in ({"device": "meta"}, {"tensor": torch.ones(1, device="meta")}):
        move(**moves)
    assert len(edges) == 4
    recorder.drain()
    recorder.device = note
    torch.save({"x": x}, tmp_path / "x.pt")
    for _ in range(2):
        recorder.end(recorder.begin(Phase.DATA))
        x.to("meta")
        recorder.mark(UPDATE)
    torch.load(tmp_path / "x.pt")
    recorder.end(recorder.begin(Phase.DATA))
    recorder.mark(UPDATE)
    recorder.end(recorder.begin(Phase.DATA))
    assert [step.excluded for step in device.steps()] == ["", "resume", ""]
