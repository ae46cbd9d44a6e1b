"""Transformers' Trainer: accumulation of four, an evaluation every five updates, a checkpoint every ten."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainingArguments

from tests.field.noted import NotedNet, NotedRows, finished, watch


class Model(nn.Module):
    """A model that computes its loss, as Transformers' do."""

    def __init__(self) -> None:
        super().__init__()
        self.model = NotedNet()

    def forward(self, row: torch.Tensor) -> dict[str, Any]:
        loss = self.model(row).square().mean()
        if torch.is_grad_enabled():
            watch.losses.append(loss.item().hex())
        return {"loss": loss}


def main() -> None:
    """Train twenty updates."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=20,
            per_device_train_batch_size=2,
            per_device_eval_batch_size=2,
            gradient_accumulation_steps=4,
            eval_strategy="steps",
            eval_steps=5,
            save_steps=10,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            remove_unused_columns=False,
        )
        training, evaluation = NotedRows(80, as_mapping=True), NotedRows(8, "evaluation", as_mapping=True)
        trainer = Trainer(Model(), arguments, train_dataset=training, eval_dataset=evaluation)
        trainer.train()
    finished(trainer.state.global_step)


if __name__ == "__main__":
    main()
