"""Memory of the process, of its control groups and of a device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from laggard._hooks.memory import DeviceMemoryHook, MemoryHook
from laggard._process import Process
from tests.support.measured import measure

PAGE = 4096


def machine(root: Path, groups: str, **limits: str) -> Path:
    """A folder that stands for a machine's /proc and /sys."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/statm").write_text("9000 500 100 1 0 400 0\n")
    (root / "proc/self/cgroup").write_text(groups)
    for name, text in limits.items():
        file = root / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    return root


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        ("0::/\n", {}, None),
        ("0::/job\n", {"job/memory.max": "max"}, None),
        ("0::/job/step\n", {"job/step/memory.max": "max", "job/memory.max": "5000"}, 5000),
        ("0::/job/step\n", {"job/step/memory.max": "4000", "job/memory.max": "5000"}, 4000),
        ("0::/a/host/path\n", {"memory.max": "7000"}, 7000),
        ("3:cpu:/x\n4:memory:/x\n0::/\n", {"memory/x/memory.limit_in_bytes": "6000"}, 6000),
        ("4:memory:/x\n", {"memory/memory.limit_in_bytes": "9223372036854771712"}, None),
    ],
)
def test_the_least_limit_of_the_groups_is_the_limit(
    groups: str, limits: dict[str, str], expected: int | None, tmp_path: Path, process: Process
) -> None:
    """Both versions of control groups, a parent's limit, a container's own view; no limit gives no series."""
    hook = MemoryHook(process, machine(tmp_path, groups, **limits))
    assert measure(hook) == {
        ("training.memory.usage", "host_rss"): [500 * PAGE],
        **({} if expected is None else {("training.memory.limit", "host"): [expected]}),
    }


def test_the_resident_set_is_that_of_this_process(process: Process) -> None:
    """On the real machine the value follows an allocation of 64 MiB."""
    (hook,) = [hook for hook in process._parts if isinstance(hook, MemoryHook)]
    ((before,),) = [v for k, v in measure(hook).items() if k[-1] == "host_rss"]
    block = torch.ones(64 << 18)
    ((after,),) = [v for k, v in measure(hook).items() if k[-1] == "host_rss"]
    assert after - before == pytest.approx(block.nbytes, rel=0.2)


class Backend:
    """Stands for ``torch.cuda``: two devices of which the second is in use."""

    def __init__(self) -> None:
        self.initialized = False
        self.asked: list[int] = []
        self.stats: dict[str, int] = {
            "allocated_bytes.all.current": 10,
            "allocated_bytes.all.peak": 30,
            "reserved_bytes.all.current": 40,
            "num_alloc_retries": 2,
            "num_ooms": 0,
        }

    def is_initialized(self) -> bool:
        return self.initialized

    def device_count(self) -> int:
        assert self.initialized
        return 2

    def memory_stats(self, index: int) -> dict[str, int]:
        assert self.initialized
        self.asked.append(index)
        return self.stats if index == 1 else {}

    def get_device_properties(self, index: int) -> Any:
        assert index == 1
        return type("Properties", (), {"total_memory": 1000})


def test_a_device_in_use_is_reported_and_an_idle_one_is_not_touched(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the device is initialised nothing is asked; then the busiest one is, and counters count on from there."""
    backend = Backend()
    monkeypatch.setattr(torch, "cuda", backend)
    hook = DeviceMemoryHook(process)
    assert measure(hook) == {}
    backend.initialized = True
    expected = {
        ("training.memory.usage", "device_allocated"): [10],
        ("training.memory.usage", "device_reserved"): [40],
        ("training.memory.usage", "device_peak"): [30],
        ("training.memory.limit", "device"): [1000],
        ("training.memory.allocation.retries",): [2],
        ("training.memory.out_of_memory",): [0],
    }
    assert measure(hook) == expected
    assert backend.asked == [0, 1, 1]
    backend.stats |= {"num_alloc_retries": 5, "num_ooms": 1}
    expected |= {("training.memory.allocation.retries",): [3], ("training.memory.out_of_memory",): [1]}
    assert measure(hook) == expected
    # The script may set the allocator's counters back.
    backend.stats["num_alloc_retries"] = 1
    assert measure(hook)["training.memory.allocation.retries",] == [1]
    assert backend.asked == [0, 1, 1, 1, 1]


def test_an_allocator_without_statistics_costs_the_device_signal_only(
    process: Process, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A pluggable allocator raises; that hook is off with one line, and the process's memory is still reported."""
    backend = Backend()
    backend.initialized = True
    monkeypatch.setattr(backend, "memory_stats", lambda _: 1 / 0)
    monkeypatch.setattr(torch, "cuda", backend)
    hooks = {hook.name: hook for hook in process._parts}
    for _ in range(2):
        hooks["device_memory"].guarded(hooks["device_memory"].report)(None)
    assert not hooks["device_memory"].installed
    assert len(caplog.records) == 1
    assert ("training.memory.usage", "host_rss") in measure(hooks["memory"])
