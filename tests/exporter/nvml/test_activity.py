"""The windows of the performance monitor, over a library that counts what it gives out."""

# ruff: noqa: N802 - the names are those of nvidia-ml-py

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from laggard_exporter.nvml.child import activity
from laggard_exporter.nvml.child.activity import LONGEST_WINDOW, SHORTEST_WINDOW, Activity


class Library:
    """As much of nvidia-ml-py as a window needs: a sample is its number, a metric the numbers of both samples."""

    NVML_GPM_METRICS_GET_VERSION = 1

    class NVMLError(Exception):
        """An error of the library."""

    def __init__(self) -> None:
        self.taken = 0
        self.held: set[int] = set()
        self.fails = False

    def nvmlGpmQueryDeviceSupport(self, handle: str) -> Any:
        """Support every device but one."""
        return SimpleNamespace(isSupportedDevice=handle != "old")

    def nvmlGpmSampleAlloc(self) -> int:
        """Give out a sample."""
        self.taken += 1
        self.held.add(self.taken)
        return self.taken

    def nvmlGpmSampleGet(self, handle: str, sample: int) -> None:
        """Fill a sample."""
        assert handle == "gpu"
        assert sample in self.held
        if self.fails:
            raise self.NVMLError

    def nvmlGpmSampleFree(self, sample: int) -> None:
        """Take a sample back."""
        self.held.remove(sample)

    def c_nvmlGpmMetricsGet_t(self) -> Any:
        """Return an empty request."""
        return SimpleNamespace(metrics=[SimpleNamespace(nvmlReturn=0) for _ in range(2)])

    def nvmlGpmMetricsGet(self, request: Any) -> None:
        """Answer the first metric, refuse the second."""
        assert {request.sample1, request.sample2} <= self.held
        request.metrics[0].value = request.sample1 * 10 + request.sample2
        request.metrics[1].nvmlReturn = 3


def test_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window is from the question before, none is too short or of long ago, and one sample for each GPU is kept."""
    now = 1000.0
    monkeypatch.setattr(activity, "time", SimpleNamespace(monotonic=lambda: now))
    library = Library()
    windows = Activity(library)

    def ask() -> tuple[float, dict[int, float], bool]:
        return windows.metrics(0, "gpu", (2, 8), None)

    assert ask() == (0, {}, True), "a first window begins"
    now += 15
    assert ask() == (15, {2: 12}, True)
    now += SHORTEST_WINDOW / 2
    assert ask() == (15, {2: 12}, False), "the newest answer again"
    now += LONGEST_WINDOW
    assert ask() == (0, {}, True), "what was ten minutes ago says nothing of now"
    now += 15
    library.fails = True
    with pytest.raises(Library.NVMLError):
        ask()
    library.fails = False
    assert library.held == {3}, "a sample that could not be taken is given back"
    assert ask() == (15, {2: 35}, True)
    assert library.held == {5}
    with pytest.raises(Library.NVMLError):
        windows.metrics(1, "old", (2, 8), None)
