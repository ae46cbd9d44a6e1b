"""The hook of the device: when its clock starts, and what ends it."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from laggard._events import LOST
from laggard._hooks import device as device_hook
from laggard._hooks.device import DeviceHook
from laggard._signals import available
from laggard._steps import Step
from laggard.shared.phases import Phase
from tests.instrumentation.device_host import Host
from tests.support.stream import Stream, StreamEvent

pytestmark = pytest.mark.timed


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
