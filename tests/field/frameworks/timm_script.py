"""timm's parts as its train.py uses them: optimizer factory, EMA copy, gradient scaler, and the copy's evaluation."""

from __future__ import annotations

from typing import Any

import torch
from timm.loss import LabelSmoothingCrossEntropy  # pyright: ignore[reportMissingImports] - make field installs it
from timm.optim import create_optimizer_v2  # pyright: ignore[reportMissingImports] - make field installs it
from timm.utils import ModelEmaV3, NativeScaler  # pyright: ignore[reportMissingImports] - make field installs it
from torch.utils.data import DataLoader

from tests.field.noted import NotedNet, NotedRows, finished, watch


def main() -> None:
    """Train three epochs of eight updates."""
    model = NotedNet()
    average: Any = ModelEmaV3(model, decay=0.9)
    optimizer = create_optimizer_v2(model, opt="lamb", lr=0.01)
    scaler = NativeScaler(device="cpu")
    criterion = LabelSmoothingCrossEntropy()
    training = DataLoader(NotedRows(16), batch_size=2)
    validation = DataLoader(NotedRows(8, "evaluation"), batch_size=2)
    updates = 0
    for _epoch in range(3):
        model.train()
        for batch in training:
            loss = criterion(model(batch), torch.zeros(len(batch), dtype=torch.long))
            watch.losses.append(loss.item().hex())
            scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters())
            optimizer.zero_grad()
            updates += 1
            average.update(model, step=updates)
        for evaluated in (model.eval(), average.module):
            with torch.no_grad():
                for batch in validation:
                    evaluated(batch)
    finished(updates)


if __name__ == "__main__":
    main()
