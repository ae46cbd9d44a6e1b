"""A job of Ray Train, one of whose workers raises: Ray catches that, destroys the process groups, ends the workers."""

from __future__ import annotations

import sys
import tempfile
import time
from typing import Any

import ray  # pyright: ignore[reportMissingImports] - make field installs it
from ray.train import RunConfig, ScalingConfig  # pyright: ignore[reportMissingImports] - as above
from ray.train.torch import TorchTrainer, prepare_model  # pyright: ignore[reportMissingImports] - as above


def train(settings: dict[str, Any]) -> None:
    """Train until one rank raises."""
    import torch  # noqa: PLC0415 - in the worker's own process

    torch.set_num_threads(1)
    model = prepare_model(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    began = time.monotonic()
    while True:
        model(torch.randn(16, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.05)
        if torch.distributed.get_rank() == settings["culprit"] and time.monotonic() - began > 4.0:
            raise ValueError("the culprit's own error")


def main() -> None:
    """Start Ray on this machine, and train."""
    with tempfile.TemporaryDirectory() as folder:
        ray.init(num_cpus=2, include_dashboard=False, _temp_dir=folder, log_to_driver=False)
        TorchTrainer(
            train,
            train_loop_config={"culprit": int(sys.argv[1])},
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=folder),
        ).fit()


if __name__ == "__main__":
    main()
