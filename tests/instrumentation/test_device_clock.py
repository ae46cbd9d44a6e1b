"""The device's clock, on a simulated stream: a step is what the device did, not what the host handed over."""

from __future__ import annotations

import pytest

from laggard import _device
from laggard._device import DeviceClock
from laggard._events import UPDATE
from laggard._partition import StepPartition
from laggard._recorder import Recorder
from laggard._steps import Step
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
