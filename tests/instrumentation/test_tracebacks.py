"""What fails shows the frames that it shows without laggard, and what is patched is still what its name says."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

from laggard._process import Process
from tests.instrumentation.inside import hook_named, instrumented


@pytest.fixture
def process() -> Iterator[Process]:
    """Instrument."""
    with instrumented() as found:
        if found.recorder.native is None:
            pytest.skip("without the native hot path wrappers have frames")
        yield found


def _fails_in_backward() -> None:
    def fail(_gradient: torch.Tensor) -> None:
        raise ValueError("backward")

    value = torch.ones(1, requires_grad=True)
    value.register_hook(fail)
    value.sum().backward()


def _fails_in_the_closure() -> None:
    def closure() -> float:
        raise ValueError("closure")

    torch.optim.SGD([nn.Parameter(torch.ones(1))]).step(closure)


def _fails_to_scale() -> None:
    torch.amp.GradScaler("cpu").step(torch.optim.SGD([nn.Parameter(torch.ones(1))]))


def _fails_to_fetch() -> None:
    list(DataLoader([1, "a"], batch_size=2))  # pyright: ignore[reportArgumentType] - a list will do


def _fails_to_load_a_state() -> None:
    torch.optim.SGD([nn.Parameter(torch.ones(1))]).load_state_dict({"param_groups": [], "state": {}})


def _fails_to_be_saved() -> None:
    torch.save(lambda: None, Path("/nowhere/model.pt"))


FAILURES: dict[str, tuple[Callable[[], Any], type[Exception]]] = {
    "backward": (_fails_in_backward, ValueError),
    "fetch": (_fails_to_fetch, Exception),
    "load": (lambda: torch.load("/nowhere/model.pt"), FileNotFoundError),
    "save": (_fails_to_be_saved, RuntimeError),
    "state": (_fails_to_load_a_state, ValueError),
    "scaler": (_fails_to_scale, AssertionError),
    "closure": (_fails_in_the_closure, ValueError),
    "group": (lambda: dist.init_process_group("no such backend"), ValueError),
    "no group": (dist.destroy_process_group, AssertionError),
}


def frames(fails: Callable[[], Any], kind: type[Exception]) -> list[tuple[str, str]]:
    """Return file and function of each frame of a failure."""
    with pytest.raises(kind) as raised:
        fails()
    return [(str(entry.path), entry.name) for entry in raised.traceback]


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_shows_the_frames_that_it_shows_without_us(name: str) -> None:
    """The traceback is the same, frame by frame."""
    plain = frames(*FAILURES[name])
    with instrumented() as process:
        if process.recorder.native is None:
            pytest.skip("without the native hot path wrappers have frames")
        assert frames(*FAILURES[name]) == plain


def test_a_wait_that_fails_has_no_frame_of_ours(process: Process) -> None:
    """Nor has one that ends; each is a wait."""

    def wait(_work: object, seconds: float) -> bool:
        if seconds < 0:
            raise RuntimeError("a peer is gone")
        return True

    hook: Any = hook_named(process, "collectives")
    timed = hook._wrap_wait(wait)
    assert timed(object(), 1.0)
    assert [name for _, name in frames(lambda: timed(object(), -1.0), RuntimeError)][-1] == "wait"
    assert not [path for path, _ in frames(lambda: timed(object(), -1.0), RuntimeError) if "/laggard/_hooks/" in path]


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize("function", ["save", "load", "init", "destroy", "state"])
def test_what_is_patched_is_pickled_and_copied_by_its_name(function: str) -> None:
    """Under its name another process has its own, whether that is instrumented or not."""
    patched: Any = {
        "save": torch.save,
        "load": torch.load,
        "init": dist.init_process_group,
        "destroy": dist.destroy_process_group,
        "state": torch.optim.Optimizer.load_state_dict,
    }[function]
    assert pickle.loads(pickle.dumps(patched)) is patched
    assert copy.deepcopy(patched) is patched
    assert callable(patched.__wrapped__)
