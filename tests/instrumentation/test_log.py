"""Numbers given by hand: what is taken, what is refused, and that no device is waited for."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator
from fractions import Fraction
from time import perf_counter_ns
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import laggard
from laggard import _log, _process
from laggard._log import Log


class Reported:
    """Keeps what is reported: gauges' newest values and counters' sums."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, ...], float] = {}

    def measure(self, metric: Any, value: float, *attributes: str) -> None:
        key = (metric.name, *attributes)
        self.values[key] = value if metric.kind == "gauge" else self.values.get(key, 0) + value

    def telemetry(self, _self_time: int, dropped: dict[str, int]) -> None:
        for reason, count in dropped.items():
            self.values["dropped", reason] = count


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    """The log of a process that is instrumented but for torch."""
    process = _process.Process()
    process.log.installed = True
    process.log._patch(torch)
    monkeypatch.setattr(_process, "_current", process)
    yield process.log
    process.log.installed = False


def reported(log: Log) -> dict[tuple[str, ...], float]:
    """One drain's report."""
    report = Reported()
    log.report(report)  # pyright: ignore[reportArgumentType] - stands for a report
    return report.values


def test_gauges_keep_the_newest_and_counters_the_sum(log: Log) -> None:
    """Numbers of any kind are taken, a value that is not given is not there, and nothing is reported twice."""
    laggard.log(loss=2.5, gradient_norm=1, learning_rate=np.float32(0.5), samples=8, tokens=np.int64(100), flops=1e15)
    laggard.log(loss=torch.tensor(1.5, requires_grad=True), samples=torch.tensor([8]), tokens=Fraction(50), flops=None)
    assert reported(log) == {
        ("training.loss",): 1.5,
        ("training.gradient.norm",): 1.0,
        ("training.learning_rate",): 0.5,
        ("training.samples",): 16.0,
        ("training.tokens",): 150.0,
        ("training.flops",): 1e15,
        ("training.nonfinite", "loss"): 0,
        ("training.nonfinite", "gradient"): 0,
    }
    assert reported(log) == {}


def test_a_tensor_is_read_as_it_was(log: Log) -> None:
    """A loss that the script changes in place after the call is reported with the value that it had."""
    loss = torch.tensor(1.5)
    laggard.log(loss=loss)
    loss.zero_()
    assert reported(log)["training.loss",] == 1.5


def test_what_is_not_finite_is_counted_and_never_set(log: Log) -> None:
    """Infinity and not-a-number leave the gauges at the last good value."""
    for value in (1.0, math.nan, math.inf, torch.tensor(math.nan)):
        laggard.log(loss=value, gradient_norm=-math.inf)
    assert reported(log) == {
        ("training.loss",): 1.0,
        ("training.nonfinite", "loss"): 3,
        ("training.nonfinite", "gradient"): 4,
    }


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"lost": 1.0}, "no such name; known are loss, gradient_norm, learning_rate, samples, tokens, flops"),
        ({"loss": "1.0"}, "it must be a number, got str"),
        ({"loss": True}, "it must be a number, got bool"),
        ({"loss": torch.ones(3)}, "it must be a number, got a tensor of 3 elements"),
        ({"loss": torch.empty((), device="meta")}, "meta"),
        ({"loss": 10**400}, "int too large to convert to float"),
        ({"samples": -1}, "-1.0 cannot be added to a counter"),
        ({"tokens": math.nan}, "nan cannot be added to a counter"),
        ({"learning_rate": math.inf}, "inf is not finite"),
    ],
)
def test_what_is_wrong_is_named_once(
    values: dict[str, Any], reason: str, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is raised, nothing else is lost, and one warning says what is wrong however often it is."""
    for _ in range(3):
        laggard.log(**values)
        laggard.log(loss=1.0)
        assert reported(log)["training.loss",] == 1.0
    (record,) = caplog.records
    assert f"laggard.log({next(iter(values))}=" in record.message
    assert reason in record.message


def test_what_finds_no_room_is_counted(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """The buffer is bounded."""
    monkeypatch.setattr(_log, "_CAPACITY", 3)
    for _ in range(5):
        laggard.log(samples=1)
    assert reported(log) == {("training.samples",): 3, ("dropped", "buffer_full"): 2}


class Device(str):
    """Names a device that torch does not know."""

    __slots__ = ()
    type = "standin"


class OnDevice(torch.Tensor):
    """Stands for a tensor on a device: to read its value on the training thread fails."""

    #: Types that it was changed to, on the device.
    types: ClassVar[list[torch.dtype]] = []

    @property
    def device(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride] - no torch.device
        return Device("standin:0")

    def item(self) -> Any:
        raise AssertionError("this waits for the device")

    __float__ = __int__ = __bool__ = tolist = numpy = cpu = item  # pyright: ignore[reportAssignmentType] - all read it

    def detach(self) -> OnDevice:
        return self

    def reshape(self, *_: Any, **__: Any) -> OnDevice:  # pyright: ignore[reportIncompatibleMethodOverride] - any shape
        return self

    def to(self, dtype: torch.dtype) -> OnDevice:  # pyright: ignore[reportIncompatibleMethodOverride] - by type alone
        OnDevice.types.append(dtype)
        return torch.Tensor._make_subclass(OnDevice, torch.Tensor.to(self.as_subclass(torch.Tensor), dtype))


class Event:
    """A device's event, which is reached when the test says so."""

    done: ClassVar[bool] = False
    made: ClassVar[int] = 0
    threads: ClassVar[list[int]] = []

    def __init__(self) -> None:
        Event.made += 1

    def record(self, stream: str) -> None:
        assert stream == "stream"
        Event.threads.append(threading.get_ident())

    def query(self) -> bool:
        return Event.done

    def synchronize(self) -> None:
        raise AssertionError("this waits for the device")


def on_device(value: float) -> torch.Tensor:
    """A tensor that stands for one on a device."""
    return torch.Tensor._make_subclass(OnDevice, torch.tensor(value))


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A device whose copies arrive when the test says so."""
    module = SimpleNamespace(
        Event=Event, current_stream=lambda _: "stream", capturing=False, is_current_stream_capturing=lambda: None
    )
    module.is_current_stream_capturing = lambda: module.capturing
    empty = torch.empty

    def pinned(*arguments: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        assert pin_memory
        return empty(*arguments, **options)

    monkeypatch.setattr(torch, "get_device_module", lambda _: module)
    monkeypatch.setattr(torch, "empty", pinned)
    Event.done, Event.made, Event.threads = False, 0, []
    OnDevice.types.clear()
    return module


def test_a_value_on_a_device_is_not_waited_for(
    log: Log, device: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    """It is copied without blocking and read by the drain once it is there; what was given later keeps its order."""
    laggard.log(loss=on_device(2.5), samples=4)
    laggard.log(loss=1.5)
    assert reported(log) == {}
    Event.done = True
    assert reported(log) == {("training.loss",): 1.5, ("training.nonfinite", "loss"): 0, ("training.samples",): 4.0}
    laggard.log(loss=on_device(0.5))
    assert reported(log)["training.loss",] == 0.5
    assert Event.threads == [threading.get_ident()] * 2
    # A copy that changes the type as well waits for the device.
    assert OnDevice.types == [torch.float64] * 2
    device.capturing = True
    laggard.log(loss=on_device(9.0))
    assert reported(log) == {("dropped", "buffer_full"): 1}
    assert caplog.records == []


def test_copies_under_way_are_bounded_and_their_memory_is_used_again(log: Log, device: SimpleNamespace) -> None:
    """A device that hangs costs 256 slots and a count; afterwards they serve again."""
    del device
    for _ in range(300):
        laggard.log(loss=on_device(1.0))
    assert reported(log) == {("dropped", "buffer_full"): 44}
    Event.done = True
    for _ in range(3):
        laggard.log(loss=on_device(2.0))
        reported(log)
    assert Event.made == 256


def test_a_part_of_a_distributed_tensor_is_refused(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    """Reading it would need a collective; a replicated one is read from its local part."""

    class Distributed(torch.Tensor):
        placements: ClassVar[list[Any]] = [SimpleNamespace(is_replicate=lambda: False)]

        def detach(self) -> Any:
            return self

        def to_local(self) -> torch.Tensor:
            return torch.tensor(1.5)

    tensor = torch.Tensor._make_subclass(Distributed, torch.tensor(9.0))
    laggard.log(gradient_norm=tensor)
    assert reported(log) == {}
    assert "full_tensor()" in caplog.text
    Distributed.placements = [SimpleNamespace(is_replicate=lambda: True)]
    laggard.log(gradient_norm=tensor)
    assert reported(log)["training.gradient.norm",] == 1.5


@pytest.mark.timed
def test_a_call_costs_less_than_to_write_its_numbers_as_json(log: Log) -> None:
    """With plain numbers, in a hot loop: the best of several rounds, side by side."""

    def write(**numbers: float) -> None:
        json.dumps(numbers)

    def cost(call: Callable[..., None]) -> int:
        log._entries.clear()
        began = perf_counter_ns()
        for _ in range(2000):
            call(loss=1.5, samples=8)
        return perf_counter_ns() - began

    rounds = [(cost(laggard.log), cost(write)) for _ in range(10)]
    assert min(own for own, _ in rounds) < min(other for _, other in rounds)


def test_inside_a_compiled_graph_nothing_is_logged_and_the_graph_stays_whole(log: Log) -> None:
    """A call in a function that is compiled with fullgraph=True breaks nothing."""

    def double(x: torch.Tensor) -> torch.Tensor:
        laggard.log(loss=1.5)
        return x * 2

    compiled = torch.compile(double, fullgraph=True, backend="eager")
    assert torch.equal(compiled(torch.ones(2)), torch.ones(2) * 2)
    assert reported(log) == {}
