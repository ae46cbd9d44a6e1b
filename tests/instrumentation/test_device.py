"""The device's clock, on a simulated stream: a step is what the device did, not what the host handed over."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from laggard._device import DeviceClock
from laggard._hooks import device as device_hook
from laggard._hooks.ddp import DistributedDataParallelHook
from laggard._hooks.device import DeviceHook
from laggard._hooks.exposure import Exposure
from laggard._hooks.groups import Groups
from laggard._partition import Step, StepPartition
from laggard._recorder import LOST, UPDATE, Recorder
from laggard.conventions import Phase

MS = 1_000_000


class Stream:
    """A stream in which work takes as long as one says; the host's clock is set by hand, or the real one."""

    def __init__(self, now: int | None = None) -> None:
        self._now = now
        self._busy_until = 0

    @property
    def now(self) -> int:
        return time.perf_counter_ns() if self._now is None else self._now

    def host_works(self, milliseconds: float) -> None:
        if self._now is None:
            time.sleep(milliseconds / 1000)
        else:
            self._now += round(milliseconds * MS)

    def hand_over(self, milliseconds: float) -> None:
        self._busy_until = max(self._busy_until, self.now) + round(milliseconds * MS)

    def passes(self) -> int:
        return max(self._busy_until, self.now)

    def make(self) -> StreamEvent:
        return StreamEvent(self)


class StreamEvent:
    """What ``torch.cuda.Event`` does, on such a stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.at = -1

    def record(self) -> None:
        self.at = self._stream.passes()

    def query(self) -> bool:
        return self._stream.now >= self.at

    def elapsed_time(self, end_event: Any, /) -> float:
        return (end_event.at - self.at) / MS


class Run:
    """Steps on a stream, their events as a recorder would make them."""

    def __init__(self, pool: int = 64) -> None:
        self.stream = Stream(now=1000 * MS)
        self.recording = True
        self.clock = DeviceClock(self.stream.make, lambda: self.recording, pool)
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


def test_an_empty_pool_drops_and_counts() -> None:
    """What finds no event is counted, its step is kept out, and when events are back the steps are whole again."""
    run = Run(pool=10)
    run.step()
    run.step()
    assert run.clock.dropped == 6
    run.stream.host_works(200)
    run.drain()
    for _ in range(3):
        run.step()
        run.stream.host_works(200)
        run.drain()
    assert run.clock.dropped == 6
    assert run.steps[1].excluded == "incomplete"
    assert [step.excluded for step in run.steps[-2:]] == ["", ""]


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
    steps = StepPartition(0).feed(clock.translate(recorder.take()))
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
    assert (recorder.device, recorder.failures, len(recorder.take())) == (None, 1, 2)


class Host:
    """A host for one hook."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.exposure = Exposure()
        self.backward_observers: list[Any] = []
        self.failed: list[str] = []

    def hook_failed(self, hook: Any, error: Exception) -> None:
        hook.uninstall()
        self.failed.append(repr(error))


class Reducer:
    """What the hook asks of DistributedDataParallel's reducer after each backward."""

    def __init__(self) -> None:
        self._passes = 0

    def get_backward_stats(self) -> list[int]:
        self._passes += 1
        return [self._passes]


def test_the_wait_of_ddp_begins_where_the_last_bucket_is_issued() -> None:
    """Backward is what the device computes, communication what its stream then waits for the last bucket."""
    stream = Stream()
    clock = DeviceClock(stream.make, lambda: True)
    host = Host()
    recorder = host.recorder
    recorder.device = clock.edge
    groups = Groups(recorder, host.exposure)
    group = groups.add(SimpleNamespace(group_name="world"))
    assert group is not None
    hook: Any = DistributedDataParallelHook(host)  # pyright: ignore[reportArgumentType]
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
    for step in StepPartition(0).feed(clock.translate(recorder.take())):
        assert step.phases[Phase.BACKWARD] == pytest.approx(10 * MS, abs=0.5 * MS)
        assert step.phases[Phase.COMMUNICATION] == pytest.approx(20 * MS, abs=0.5 * MS)
    assert (host.exposure.in_backward, host.exposure.reduced, group.started) == (6, 3, 6)


def hook_on(monkeypatch: pytest.MonkeyPatch, stream: Stream) -> tuple[DeviceHook, Host, SimpleNamespace]:
    """A hook in a process whose torch seems to have a device."""
    cuda = SimpleNamespace(
        initialized=False,
        is_initialized=lambda: cuda.initialized,
        is_current_stream_capturing=lambda: False,
        Event=lambda enable_timing: stream.make() if enable_timing else None,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, version=SimpleNamespace(cuda="13.0")))
    host = Host()
    hook: Any = DeviceHook(host)  # pyright: ignore[reportArgumentType]
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
    assert [event[0] for event in hook.translate(host.recorder.take())] == [Phase.FORWARD]
    hook.uninstall()
    assert host.recorder.device is None
    assert host.failed == []


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
    assert hook.translate(host.recorder.take()) == [(LOST, 0, 0)]
    assert host.failed == ["RuntimeError('unspecified launch failure')"]
    assert host.recorder.device is None
