"""Train a small model with the trainer that the first argument names; print how many steps the trainer counted.

Each accumulates gradients over two batches, of which an epoch has an odd number, and evaluates in between.
"""

# ruff: noqa: PLC0415 - each run imports one of the three

from __future__ import annotations

import sys
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

EPOCHS = 2
ROWS = 22


class Tokens(Dataset):
    """Sequences of token numbers."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = torch.arange(8) + index
        return {"input_ids": row % 32, "labels": row % 32}


def transformers(*options: str) -> int:
    """Hugging Face's Trainer."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    config = GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            num_train_epochs=EPOCHS,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            eval_strategy="steps",
            eval_steps=3,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            bf16="bf16" in options,
        )
        trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=Tokens(), eval_dataset=Tokens())
        trainer.train()
        return trainer.state.global_step


def accelerate(*options: str) -> int:
    """A loop by hand with Accelerate, whose loader fetches one batch ahead."""
    from accelerate import Accelerator

    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=2, mixed_precision="bf16" if "bf16" in options else "no"
    )
    model = nn.Sequential(nn.Embedding(32, 8), nn.Linear(8, 32))
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    loader, evaluation = DataLoader(Tokens(), batch_size=2), DataLoader(Tokens(), batch_size=4)
    model, optimizer, loader, evaluation, schedule = accelerator.prepare(model, optimizer, loader, evaluation, schedule)
    steps = 0
    for _epoch in range(EPOCHS):
        for batch in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten())
                accelerator.backward(loss)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            steps += accelerator.sync_gradients
        model.eval()
        with torch.no_grad():
            for batch in evaluation:
                model(batch["input_ids"])
        model.train()
    return steps


def lightning(*options: str) -> int:
    """Lightning's Trainer, whose optimizer's step runs forward and backward."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Sequential(nn.Embedding(32, 8), nn.Linear(8, 32))

        def loss(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            return nn.functional.cross_entropy(self.model(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten())

        def training_step(self, batch: dict[str, torch.Tensor], _index: int) -> torch.Tensor:
            return self.loss(batch)

        def validation_step(self, batch: dict[str, torch.Tensor], _index: int) -> torch.Tensor:
            return self.loss(batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=EPOCHS,
        accumulate_grad_batches=2,
        val_check_interval=5,
        precision="bf16-mixed" if "bf16" in options else "32-true",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), DataLoader(Tokens(), batch_size=2), DataLoader(Tokens(), batch_size=4))
    return trainer.global_step


if __name__ == "__main__":
    torch.set_num_threads(1)
    run = {"transformers": transformers, "accelerate": accelerate, "lightning": lightning}[sys.argv[1]]
    print(run(*sys.argv[2:]), flush=True)
