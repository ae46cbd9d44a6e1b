"""A rank of the demo: the example's training script, with faults put around it from outside.

Run by ``torchrun`` as a script. The file that ``LAGGARD_DEMO_CONTROL`` names says which rank is slow where, and when
training ends; it is read again whenever it changes, in the ranks and in their data workers alike. The faults themselves
stand in :mod:`laggard_cli.demo.faults`.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from laggard.shared import metrics
from laggard_cli.demo.acts import RANKS
from laggard_cli.demo.faults import Leak, Records, SlowBackward, SlowStorage

_RANK = int(os.environ["RANK"])
#: Steps over which a rank reports quantiles. As the windows of the rules, they are fewer than where there is more time.
_RECENT_STEPS = 32
#: What a step waits for its device, as training does on an accelerator. It leaves processors to the servers.
_DEVICE_SECONDS = 0.04


class Control:
    """The control file: what is wrong, by place, and the last step."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changed = -1
        self._content: dict[str, Any] = {}

    def amount(self, place: str) -> float:
        """Return how bad it is in a place of this rank: in seconds, or bytes a second; 0 where all is well."""
        fault = self._read().get(place)
        return fault["amount"] if fault and fault["rank"] in (None, _RANK) else 0.0

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


def main() -> None:
    """Train with the faults that the control file asks for, then end a little later than the rank before."""
    metrics.RECENT_STEPS = _RECENT_STEPS
    control = Control(Path(os.environ["LAGGARD_DEMO_CONTROL"]))
    example = _load(Path(os.environ["LAGGARD_DEMO_SCRIPT"]))
    batch = int(sys.argv[sys.argv.index("--batch") + 1])
    load, transform, save = example.Text.__getitem__, example.GPT.forward, example.save
    records, leak, turns = Records(), Leak(), itertools.cycle(range(RANKS))

    def slow_load(text: Any, item: int) -> Any:
        time.sleep(control.amount("data") / batch)
        return load(text, item)

    def faulty_forward(model: Any, characters: torch.Tensor) -> torch.Tensor:
        time.sleep(_DEVICE_SECONDS)
        records.keep(control.amount("garbage"))
        leak.grow(control.amount("leak"))
        # Every rank counts the same steps, so each of them is the slow one in its turn.
        roaming = control.amount("roaming") if next(turns) == _RANK else 0.0
        return SlowBackward.apply(transform(model, characters), control.amount("backward") + roaming)

    def slow_save(model: torch.nn.Module, path: str) -> None:
        seconds = control.amount("save")
        if not seconds:
            save(model, path)
            return
        state = model.state_dict()
        with SlowStorage(path, seconds, sum(tensor.nbytes for tensor in state.values())) as file:
            torch.save(state, file)

    example.Text.__getitem__ = slow_load
    example.GPT.forward = faulty_forward
    example.save = slow_save
    example.main(control.keep_going)
    time.sleep(_RANK)


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("example", path)
    assert spec is not None  # noqa: S101 - a path to a .py file always has one
    assert spec.loader is not None  # noqa: S101 - as above
    module = importlib.util.module_from_spec(spec)
    # Data workers that are not forked find the module by its name.
    sys.modules["example"] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
