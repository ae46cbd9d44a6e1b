"""The device's clock, on a simulated stream: a step is what the device did, not what the host handed over."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from laggard import _device
from laggard._device import DeviceClock
from laggard._events import LOST, UPDATE
from laggard._hooks import device as device_hook
from laggard._hooks.ddp import DistributedDataParallelHook
from laggard._hooks.device import DeviceHook
from laggard._hooks.exposure import Exposure
from laggard._hooks.groups import Groups
from laggard._partition import Step, StepPartition
from laggard._recorder import Recorder
from laggard._signals import available
from laggard.shared.phases import Phase
from tests.support.stream import MS, Stream, StreamEvent

pytestmark = pytest.mark.timed


class Run:
    """Steps on a stream, their events as a recorder would make them."""

    def __init__(self, pool: int = 64) -> None:
        self.stream = Stream(now=1000 * MS)
        self.recording = True
        self.clock = DeviceClock(self.stream.make, lambda: self.recording, pool, now=lambda: self.stream.now)
        self.partition = StepPartition(warmup_steps=0)
        self.events: list[tuple[int, int, int]] = []
        self.steps: list[Step] = []

    def phase(self, phase: Phase, host: float, device: float = 0) -> None:
        started = self.stream.now
        self.clock.edge(started)
        self.stream.hand_over(device)
        self.stream.host_works(host)
        ended = self.stream.now
        self.clock.edge(ended)
        self.events.append((phase, started, ended))
        self.stream.host_works(0.001)

    def step(self, data: float = 1) -> None:
        self.phase(Phase.DATA, data)
        self.phase(Phase.FORWARD, 1, 10)
        self.phase(Phase.BACKWARD, 1, 20)
        self.phase(Phase.OPTIMIZER, 1, 5)
        self.events.append((UPDATE, self.events[-1][2], self.events[-1][2]))

    def drain(self) -> list[Step]:
        new = self.partition.feed(self.clock.translate(self.events))
        self.events.clear()
        self.steps += new
        return new


def milliseconds(step: Step) -> dict[str, float]:
    """The phases of a step that took any time, in milliseconds."""
    return {phase.label: round(step.phases[phase] / MS, 1) for phase in Phase if step.phases[phase] > 0.05 * MS}


def test_a_fetch_that_the_device_does_not_wait_for_takes_nothing() -> None:
    """The host is a step ahead: its fetch is hidden behind the device's work, whose phases are as long as they are."""
    run = Run()
    for _ in range(6):
        run.step(data=3)
    run.stream.host_works(500)
    run.step()
    run.stream.host_works(500)
    steps = run.drain()
    expected = {"forward": 10.0, "backward": 20.0, "optimizer": 5.0}
    assert [milliseconds(step) for step in steps[1:5]] == [expected] * 4
    assert all(step.duration == sum(step.phases) for step in steps)


def test_a_fetch_takes_what_the_device_waits_for_it() -> None:
    """Of a fetch of 50 ms the device sees what is left of it when it has nothing more to do."""
    run = Run()
    for _ in range(4):
        run.step(data=50)
    run.stream.host_works(100)
    step = run.drain()[2]
    assert milliseconds(step) == {"data": 18.0, "forward": 10.0, "backward": 20.0, "optimizer": 5.0}


def test_nothing_is_taken_before_the_device_has_passed_it() -> None:
    """While the device is behind, steps wait; each comes once, in order, when it is done."""
    run = Run()
    for _ in range(3):
        run.step()
    assert run.drain() == []
    run.stream.host_works(40)
    assert len(run.drain()) == 1
    run.stream.host_works(200)
    run.step()
    run.stream.host_works(200)
    assert len(run.drain()) == 2
    assert [step.number for step in run.steps] == [1, 2, 3]


def test_an_empty_pool_drops_and_counts_and_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    """What finds no event is counted, its step is kept out; the pool doubles, up to a bound, and steps are whole."""
    monkeypatch.setattr(_device, "MAX_POOL", 20)
    run = Run(pool=10)
    run.step()
    run.step()
    assert run.clock.dropped == 6
    run.stream.host_works(200)
    run.drain()
    run.step()
    run.step()
    run.stream.host_works(200)
    run.drain()
    assert run.clock.dropped == 6
    assert run.steps[1].excluded == "incomplete"
    assert run.steps[-1].excluded == ""
    for _ in range(3):
        run.step()
    run.stream.host_works(200)
    run.drain()
    assert run.clock.dropped == 6 + 3 * 8 - 19  # one event is the newest, from which time is measured
    assert run.clock._pool == 20


@pytest.mark.parametrize("speed", [0.99, 1.01])
def test_a_device_whose_clock_differs_stays_with_the_host(speed: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """No time of the device is before its edge was noted or after it was seen, however long a job runs."""
    elapsed = StreamEvent.elapsed_time
    monkeypatch.setattr(StreamEvent, "elapsed_time", lambda event, end: speed * elapsed(event, end))
    run = Run()
    for _ in range(100):
        run.step()
        run.stream.host_works(40)
        run.drain()
    # A step is 44 ms, of which the last 7 are idle; in all of them together the clocks are 44 ms apart.
    for number, step in enumerate(run.steps):
        assert step.started == pytest.approx(1000 * MS + number * 44 * MS, abs=10 * MS)


def test_all_edges_are_those_of_the_stream_of_backward() -> None:
    """A copy in another stream takes nothing, until the stream of backward has to wait for it."""
    run = Run()
    copies = Stream(now=run.stream.now)

    def copy(milliseconds: float, *, waits: bool) -> None:
        copies.host_works((run.stream.now - copies.now) / MS)
        run.clock.stream = run.stream
        started = run.stream.now
        run.clock.edge(started)
        copies.hand_over(milliseconds)
        if waits:
            run.stream.wait_stream(copies)
        run.stream.host_works(0.1)
        ended = run.stream.now
        run.clock.edge(ended)
        run.events.append((Phase.H2D, started, ended))

    # The current stream is the one of the copies.
    run.clock._free.clear()
    run.clock._free.extend(copies.make() for _ in range(64))
    for waits in (False, True, True):
        run.phase(Phase.DATA, 0.01)
        copy(30, waits=waits)
        run.phase(Phase.FORWARD, 1, 10)
        run.phase(Phase.OPTIMIZER, 1, 5)
        run.events.append((UPDATE, run.events[-1][2], run.events[-1][2]))
    run.phase(Phase.DATA, 0.01)
    run.stream.host_works(300)
    copies.host_works(1300)
    h2d = [milliseconds(step).get("h2d", 0.0) for step in run.drain()]
    # The second one begins when the first has ended: the stream of copies is busy from 1000 to 1060 ms, then to 1090.
    assert h2d == [pytest.approx(0.1), pytest.approx(60 - 15, abs=1), pytest.approx(30 - 15, abs=1)]


def test_nothing_is_put_into_a_stream_that_is_captured() -> None:
    """During a capture no event is recorded."""
    run = Run()
    run.recording = False
    run.step()
    assert run.clock.dropped == 8
    assert len(run.clock._free) == 64


def test_a_recorder_notes_its_edges() -> None:
    """With the recorder's own begin and end, in real time: three steps whose host is ahead of the device."""
    stream = Stream()
    clock = DeviceClock(stream.make, lambda: True)
    recorder = Recorder()
    recorder.device = clock.edge
    for _ in range(4):
        recorder.end(recorder.begin(Phase.DATA))
        token = recorder.begin(Phase.FORWARD)
        stream.hand_over(30)
        ended = recorder.end(token)
        recorder.add(UPDATE, ended, ended)
    stream.host_works(150)
    steps = StepPartition(0).feed(clock.translate(recorder.drain()))
    assert len(steps) == 3
    for step in steps:
        assert step.phases[Phase.FORWARD] == pytest.approx(30 * MS, abs=0.5 * MS)
        assert step.phases[Phase.DATA] < 0.5 * MS


def test_a_device_that_fails_costs_nothing_but_itself() -> None:
    """An event that raises is the last one; the recorder goes on with the host's clock."""

    def fail(_at: int) -> None:
        raise RuntimeError("device-side assert triggered")

    recorder = Recorder()
    recorder.device = fail
    recorder.end(recorder.begin(Phase.FORWARD))
    recorder.end(recorder.begin(Phase.FORWARD))
    assert (recorder.device, recorder.failures, len(recorder.drain())) == (None, 1, 2)


class Host:
    """A host for one hook."""

    def __init__(self) -> None:
        self.backward_observers: list[Any] = []
        self.recorder = Recorder()
        self.exposure = Exposure()
        self.failed: list[str] = []

    def part_failed(self, hook: Any, error: Exception) -> None:
        hook.uninstall()
        self.failed.append(repr(error))


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


def hook_on(monkeypatch: pytest.MonkeyPatch, stream: Stream) -> tuple[DeviceHook, Host, SimpleNamespace]:
    """A hook in a process whose torch seems to have a device."""
    cuda = SimpleNamespace(
        initialized=False,
        is_initialized=lambda: cuda.initialized,
        is_current_stream_capturing=lambda: False,
        current_stream=lambda: stream,
        Event=lambda enable_timing: stream.make() if enable_timing else None,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, version=SimpleNamespace(cuda="13.0")))
    host = Host()
    hook: Any = DeviceHook(host)  # pyright: ignore[reportArgumentType] - stands for a process
    hook.installed = True
    return hook, host, cuda


def test_the_clock_starts_with_the_first_use_of_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then the host's clock counts; uninstall goes back to it."""
    monkeypatch.setattr(device_hook, "_keep_out_of_captures", lambda: None)
    hook, host, cuda = hook_on(monkeypatch, Stream())
    hook.guarded(hook.steps_ended)([])
    assert host.recorder.device is None
    assert hook.translate([(Phase.DATA, 1, 2)]) == [(Phase.DATA, 1, 2)]
    cuda.initialized = True
    hook.guarded(hook.steps_ended)([])
    assert host.recorder.device is not None
    host.recorder.end(host.recorder.begin(Phase.FORWARD))
    assert [event[0] for event in hook.translate(host.recorder.drain())] == [Phase.FORWARD]
    for observer in host.backward_observers:
        observer(1, 2)
    assert hook.clock is not None
    assert hook.clock.stream is host.exposure.compute_stream is not None
    hook.steps_ended([])
    assert hook.clock.stream is not None
    hook.steps_ended([Step(1, 0, 1, (1,) + (0,) * 8, ())])  # no backward any more
    assert hook.clock.stream is host.exposure.compute_stream is None
    hook.uninstall()
    assert host.recorder.device is None
    assert (host.failed, host.backward_observers) == ([], [])


def test_a_loop_without_torch_has_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that are marked by hand end without torch, and the hook stays."""
    hook, host, _ = hook_on(monkeypatch, Stream())
    monkeypatch.delitem(sys.modules, "torch")
    hook.guarded(hook.steps_ended)([])
    assert (hook.clock, host.failed) == (None, [])


def test_without_a_way_to_keep_out_of_captures_the_clock_stays_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking for an event could end a capture of the user's: so the hook gives up, and training goes on."""

    def fail() -> None:
        raise OSError("cudaThreadExchangeStreamCaptureMode failed")

    monkeypatch.setattr(device_hook, "_keep_out_of_captures", fail)
    hook, host, cuda = hook_on(monkeypatch, Stream())
    cuda.initialized = True
    hook.guarded(hook.steps_ended)([])
    assert host.recorder.device is None
    assert host.failed == ["OSError('cudaThreadExchangeStreamCaptureMode failed')"]


@pytest.mark.parametrize("hip", [None, "7.0.2"])
def test_rocm_answers_as_cuda_does(monkeypatch: pytest.MonkeyPatch, hip: str | None) -> None:
    """Whether torch has a device's events is asked of its runtime, not of the vendor."""
    monkeypatch.setattr(device_hook, "_keep_out_of_captures", lambda: None)
    hook, host, cuda = hook_on(monkeypatch, Stream())
    monkeypatch.setattr(sys.modules["torch"], "version", SimpleNamespace(cuda=None if hip else "13.0", hip=hip))
    cuda.initialized = True
    hook.guarded(hook.steps_ended)([])
    assert (host.recorder.device is None, host.failed) == (False, [])


def test_stamps_that_are_lower_by_a_hair_take_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """HIP may say that a later event was a little before an earlier one: no interval is negative."""
    stream, elapsed = Stream(), iter([5.0, -0.0001])
    monkeypatch.setattr(StreamEvent, "elapsed_time", lambda _self, _end: next(elapsed))
    clock = DeviceClock(stream.make, lambda: True, 8)
    for at in (1_000, 1_100, 1_150):
        clock.edge(at)
    stream.host_works(1)
    passed = clock.translate([(Phase.DATA, 1_000, 1_100), (Phase.FORWARD, 1_100, 1_150)])
    assert [end - begin for _, begin, end in passed] == [5_000_000, 0]


def test_a_device_in_error_loses_the_interval_and_the_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    """When events can no longer be asked for, the hook is off and says so."""
    monkeypatch.setattr(device_hook, "_keep_out_of_captures", lambda: None)
    hook, host, cuda = hook_on(monkeypatch, Stream())
    cuda.initialized = True
    hook.guarded(hook.steps_ended)([])
    host.recorder.end(host.recorder.begin(Phase.FORWARD))

    def fail(_event: StreamEvent) -> bool:
        raise RuntimeError("unspecified launch failure")

    monkeypatch.setattr(StreamEvent, "query", fail)
    assert hook.translate(host.recorder.drain()) == [(LOST, 0, 0)]
    assert host.failed == ["RuntimeError('unspecified launch failure')"]
    assert host.recorder.device is None


def test_an_edge_that_can_not_be_noted_ends_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """One interval is lost; from then on the host's clock counts, and the signals that need the device's are gone."""
    monkeypatch.setattr(device_hook, "_keep_out_of_captures", lambda: None)
    hook, host, cuda = hook_on(monkeypatch, Stream())
    cuda.initialized = True
    hook.guarded(hook.steps_ended)([])

    def fail(_event: StreamEvent, _stream: Any) -> None:
        raise RuntimeError("the stream is on another device")

    monkeypatch.setattr(StreamEvent, "record", fail)
    host.recorder.end(host.recorder.begin(Phase.FORWARD))
    assert hook.translate(host.recorder.drain()) == [(LOST, 0, 0)]
    assert host.failed == ["RuntimeError('an event could not be recorded')"]
    host.recorder.end(host.recorder.begin(Phase.FORWARD))
    assert [event[0] for event in hook.translate(host.recorder.drain())] == [Phase.FORWARD]
    assert not available([hook], {Phase.FORWARD})["forward"]


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
