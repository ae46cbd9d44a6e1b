"""DDP's wait on a simulated stream: from the last bucket on, where that is known."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from laggard._device import DeviceClock
from laggard._events import UPDATE
from laggard._hooks.ddp import DistributedDataParallelHook
from laggard._hooks.groups import Groups
from laggard._partition import StepPartition
from laggard.shared.phases import Phase
from tests.instrumentation.device_host import Host
from tests.support.stream import MS, Stream

pytestmark = pytest.mark.timed


class Reducer:
    """What the hook asks of DistributedDataParallel's reducer after each backward."""

    def __init__(self) -> None:
        self._passes = 0

    def get_backward_stats(self) -> list[int]:
        self._passes += 1
        return [self._passes]


def test_the_wait_of_ddp_begins_where_the_last_bucket_is_issued(monkeypatch: pytest.MonkeyPatch) -> None:
    """Backward is what the device computes, communication what its stream then waits for the last bucket."""
    monkeypatch.setattr(torch._C, "_current_graph_task_id", lambda: 0)
    stream = Stream()
    clock = DeviceClock(stream.make, lambda: True)
    host = Host()
    recorder = host.recorder
    recorder.device = clock.edge
    groups = Groups(recorder, host.exposure)
    group = groups.add(SimpleNamespace(group_name="world"))
    assert group is not None
    hook: Any = DistributedDataParallelHook(host)  # pyright: ignore[reportArgumentType] - stands for a process
    reducer = Reducer()
    for _ in range(3):
        recorder.end(recorder.begin(Phase.DATA))
        hook._prepared(reducer)
        token = recorder.begin(Phase.BACKWARD)
        assert token is not None
        for milliseconds_of_bucket in (4, 6):
            stream.hand_over(milliseconds_of_bucket)
            groups.issue(group, ("all_reduce", 1), [], blocking=False)
        stream.hand_over(20)
        ended = recorder.end(token)
        hook._after_backward(token[2], ended)
        recorder.add(UPDATE, ended, ended)
    stream.host_works(120)
    for step in StepPartition(0).feed(clock.translate(recorder.drain())):
        assert step.phases[Phase.BACKWARD] == pytest.approx(10 * MS, abs=0.5 * MS)
        assert step.phases[Phase.COMMUNICATION] == pytest.approx(20 * MS, abs=0.5 * MS)
    assert (host.exposure.in_backward, host.exposure.reduced, group.started) == (6, 3, 6)
    hook.installed = True
    assert hook.available
    # Where nothing tells when a bucket is issued, the wait is missing and nobody takes it for none.
    hook._prepared(reducer)
    hook._after_backward(time.perf_counter_ns(), time.perf_counter_ns())
    assert not hook.available


class Busy(torch.autograd.Function):
    """Has a stream work for 10 ms in backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, stream: Stream) -> torch.Tensor:
        ctx.stream = stream
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        ctx.stream.hand_over(10)
        return gradients[0], None


def test_without_pre_hooks_the_wait_of_ddp_begins_at_the_last_gradient() -> None:
    """Before torch 2.14 a hook on the gradient that was last at the backward before notes where the wait begins."""
    stream = Stream()
    clock = DeviceClock(stream.make, lambda: True)
    host = Host()
    recorder = host.recorder
    recorder.device = clock.edge
    hook: Any = DistributedDataParallelHook(host)  # pyright: ignore[reportArgumentType] - stands for a process
    hook.installed = hook._follows = True
    layers = torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False)
    times = [0, 0]  # of the gradients of both, by the host
    reducer = type("Reducer", (), {"get_backward_stats": lambda _: times})()
    hook._made(reducer, [layer.weight for layer in layers])
    available: list[bool] = []
    for number in range(4):
        times = [number * 10 + 2, number * 10 + 1]
        recorder.end(recorder.begin(Phase.DATA))
        hook._prepared(reducer)
        loss = layers[1](Busy.apply(layers[0](torch.ones(1, 4)), stream)).sum()
        token = recorder.begin(Phase.BACKWARD)
        assert token is not None
        loss.backward()
        stream.hand_over(20)  # the wait for the last bucket
        ended = recorder.end(token)
        hook._after_backward(token[2], ended)
        available.append(hook.available)
        recorder.add(UPDATE, ended, ended)
    stream.host_works(150)
    steps = StepPartition(0).feed(clock.translate(recorder.drain()))
    assert available == [False, True, True, True]
    assert len(steps) == 3
    for step in steps[1:]:
        assert step.phases[Phase.BACKWARD] == pytest.approx(10 * MS, abs=MS)
        assert step.phases[Phase.COMMUNICATION] == pytest.approx(20 * MS, abs=MS)
    # Another gradient is last: the wait of this backward is missing, and nobody takes it for none.
    times = [1, 1000]
    hook._prepared(reducer)
    hook._after_backward(time.perf_counter_ns(), time.perf_counter_ns())
    assert (hook.available, hook._clocks[0].last) == (False, 1)
    hook.uninstall()
    before = host.exposure.issued_at
    layers[1](torch.ones(1, 4)).sum().backward()
    assert host.exposure.issued_at == before


def test_a_model_that_was_wrapped_before_has_no_wait_that_is_guessed() -> None:
    """Its parameters are not known: an edge that another model noted says nothing of it."""
    host = Host()
    host.recorder.device = lambda _at: None
    hook: Any = DistributedDataParallelHook(host)  # pyright: ignore[reportArgumentType] - stands for a process
    hook.installed = hook._follows = True
    hook._prepared(reducer := Reducer())
    started = time.perf_counter_ns()
    host.exposure.issued_at = started + 1
    hook._after_backward(started, started + 2)
    assert reducer.get_backward_stats() == [2]
    assert (hook.available, host.recorder.drain()) == (False, [])
