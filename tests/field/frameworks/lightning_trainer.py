"""Lightning's Trainer: accumulation of two, a sanity check, a validation and a checkpoint each epoch."""

from __future__ import annotations

import tempfile
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from tests.field.noted import NotedNet, NotedRows, finished, watch


class Module(lightning.LightningModule):
    """The model and its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.model = NotedNet()

    def training_step(self, batch: torch.Tensor, _index: int) -> torch.Tensor:
        loss = self.model(batch).square().mean()
        watch.losses.append(loss.item().hex())
        return loss

    def validation_step(self, batch: torch.Tensor, _index: int) -> Any:
        return self.model(batch).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


def main() -> None:
    """Train three epochs of six updates."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=3,
            accumulate_grad_batches=2,
            callbacks=[ModelCheckpoint(folder)],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        validation = DataLoader(NotedRows(8, "evaluation"), batch_size=2)
        trainer.fit(Module(), DataLoader(NotedRows(24), batch_size=2), validation)
    finished(trainer.global_step)


if __name__ == "__main__":
    main()
