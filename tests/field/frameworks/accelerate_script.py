"""A script with Accelerate: accumulation of two over read-ahead loaders, evaluation and a saved state each epoch."""

from __future__ import annotations

import tempfile

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from tests.field.noted import NotedNet, NotedRows, finished, watch


def main() -> None:
    """Train three epochs of six updates."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = NotedNet()
    optimizer = torch.optim.AdamW(model.parameters())
    training = DataLoader(NotedRows(24), batch_size=2)
    validation = DataLoader(NotedRows(8, "evaluation"), batch_size=2)
    model, optimizer, training, validation = accelerator.prepare(model, optimizer, training, validation)
    updates = 0
    for _epoch in range(3):
        model.train()
        for batch in training:
            with accelerator.accumulate(model):
                loss = model(batch).square().mean()
                watch.losses.append(loss.item().hex())
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            updates += accelerator.sync_gradients
        model.eval()
        for batch in validation:
            with torch.no_grad():
                accelerator.gather_for_metrics(model(batch))
        with tempfile.TemporaryDirectory() as folder:
            accelerator.save_state(folder)
    finished(updates)


if __name__ == "__main__":
    main()
