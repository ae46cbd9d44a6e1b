"""A rank of the demo: the example's training script, with faults put around it from outside.

Run by ``torchrun`` as a script. The file that ``LAGGARD_DEMO_CONTROL`` names says which rank is slow where, and when
training ends; it is read again whenever it changes, in the ranks and in their data workers alike.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.autograd import Function

_RANK = int(os.environ["RANK"])


class Control:
    """The control file: seconds that a batch or a backward takes longer, by place, and the last step."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changed = -1
        self._content: dict[str, Any] = {}

    def seconds(self, place: str) -> float:
        """Return how much longer this rank takes in a place."""
        fault = self._read().get(place)
        return fault["seconds"] if fault and fault["rank"] in (None, _RANK) else 0.0

    def keep_going(self, steps: int) -> bool:
        """Say whether training goes on after so many steps; the number is the same for all ranks."""
        last = self._read().get("last_step")
        if last is None and steps % 10 == 0 and _RANK == 0:
            self._path.with_name("steps").write_text(str(steps))
        return last is None or steps < last

    def _read(self) -> dict[str, Any]:
        changed = self._path.stat().st_mtime_ns
        if changed != self._changed:
            self._content = json.loads(self._path.read_text())
            self._changed = changed
        return self._content


class SlowBackward(Function):
    """Passes a tensor through and sleeps on the way back, as a slower device would."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:  # noqa: D102 - described by the class
        ctx.seconds = seconds
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: D102 - as above
        time.sleep(ctx.seconds)
        return gradients[0], None


def main() -> None:
    """Train with the faults that the control file asks for, then end a little later than the rank before."""
    control = Control(Path(os.environ["LAGGARD_DEMO_CONTROL"]))
    example = _load(Path(os.environ["LAGGARD_DEMO_SCRIPT"]))
    batch = int(sys.argv[sys.argv.index("--batch") + 1])
    load, transform = example.Text.__getitem__, example.GPT.forward

    def slow_load(text: Any, item: int) -> Any:
        time.sleep(control.seconds("data") / batch)
        return load(text, item)

    def slow_transform(model: Any, characters: torch.Tensor) -> torch.Tensor:
        return SlowBackward.apply(transform(model, characters), control.seconds("backward"))  # pyright: ignore[reportUnknownVariableType]

    example.Text.__getitem__ = slow_load
    example.GPT.forward = slow_transform
    example.main(control.keep_going)
    time.sleep(2 * _RANK)


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("example", path)
    assert spec is not None  # noqa: S101 - a path to a .py file always has one
    assert spec.loader is not None  # noqa: S101
    module = importlib.util.module_from_spec(spec)
    # Data workers that are not forked find the module by its name.
    sys.modules["example"] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
