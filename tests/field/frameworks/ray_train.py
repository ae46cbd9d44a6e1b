"""Ray Train: two workers that Ray starts, each a rank of a DDP job."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import ray  # pyright: ignore[reportMissingImports] - make field installs it
from ray.train import ScalingConfig  # pyright: ignore[reportMissingImports] - make field installs it
from ray.train.torch import TorchTrainer, prepare_model  # pyright: ignore[reportMissingImports] - as above


def train(_settings: dict[str, Any]) -> None:
    """Train twelve updates on one worker."""
    import torch  # noqa: PLC0415 - in the worker's own process
    from torch.utils.data import DataLoader  # noqa: PLC0415 - in the worker's own process

    from tests.field.noted import NotedNet, NotedRows, finished, watch  # noqa: PLC0415 - in the worker's own process

    model = prepare_model(NotedNet())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in DataLoader(NotedRows(24), batch_size=2):
        loss = model(batch).square().mean()
        watch.losses.append(loss.item().hex())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    watch.name = os.environ["RANK"]
    finished(12)


def main() -> None:
    """Start Ray on this machine, and train."""
    with tempfile.TemporaryDirectory() as folder:
        ray.init(num_cpus=2, include_dashboard=False, _temp_dir=folder, log_to_driver=False)
        TorchTrainer(train, scaling_config=ScalingConfig(num_workers=2)).fit()
        ray.shutdown()


if __name__ == "__main__":
    main()
