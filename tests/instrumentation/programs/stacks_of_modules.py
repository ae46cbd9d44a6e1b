"""Profiles itself with stacks in its first steps and once more later. Prints the modules that each profile names."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x))


def main() -> None:
    """Train a few steps, wait until they are reported, and train some more."""
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    named: list[list[str]] = []
    for _ in range(2):
        with torch.profiler.profile(with_stack=True) as profile:
            for _ in range(4):
                model(torch.ones(2, 4)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "p.json")
            profile.export_chrome_trace(str(path))
            events = json.loads(path.read_text())["traceEvents"]
        names = {event["name"] for event in events if event.get("cat") == "python_function"}
        named.append(sorted(name for name in names if name.startswith("nn.Module: ")))
        # Whole models are known by then.
        for _ in range(20):
            model(torch.ones(2, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        time.sleep(2.5)
    print(json.dumps(named))


if __name__ == "__main__":
    main()
