"""Two trials of Ray Tune, of which one raises: Ray catches that and ends the worker."""

from __future__ import annotations

import tempfile
from typing import Any

import ray  # pyright: ignore[reportMissingImports] - make field installs it
from ray import tune  # pyright: ignore[reportMissingImports] - as above


def train(settings: dict[str, Any]) -> None:
    """Train ten steps, and raise if told to."""
    import torch  # noqa: PLC0415 - in the worker's own process

    torch.set_num_threads(1)
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(10):
        model(torch.randn(16, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if settings["raises"]:
        raise ValueError("the trial's own error")


with tempfile.TemporaryDirectory() as folder:
    ray.init(num_cpus=2, include_dashboard=False, _temp_dir=folder, log_to_driver=False)
    tune.Tuner(
        train,
        param_space={"raises": tune.grid_search([False, True])},
        run_config=tune.RunConfig(storage_path=folder, verbose=0),
    ).fit()
