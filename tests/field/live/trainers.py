"""A rank of a live job that trains without end, by the loop that the argument names."""

# ruff: noqa: PLC0415 - each job imports one of the frameworks

from __future__ import annotations

import io
import itertools
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.autograd import Variable
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from tests.field.live.faulty import WIDTH, Net, Rows, spend

FOREVER = 10**6


def cycle(loader: Iterable[Any]) -> Iterator[Any]:
    """Start over at each end."""
    while True:
        yield from loader


def evaluate(model: nn.Module, loader: Iterable[Any]) -> None:
    """Go once through a loader."""
    model.eval()
    with torch.no_grad():
        for batch in loader:
            model(batch)
    model.train()


def hf_trainer() -> None:
    """Transformers' Trainer: accumulation of four, an evaluation every five updates."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = Net()

        def forward(self, row: torch.Tensor) -> dict[str, Any]:
            return {"loss": self.model(row).square().mean()}

    class Host(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            spend("host", 4)

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=FOREVER,
            per_device_train_batch_size=2,
            per_device_eval_batch_size=2,
            gradient_accumulation_steps=4,
            eval_strategy="steps",
            eval_steps=5,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            use_cpu=True,
            ddp_backend="gloo",
            disable_tqdm=True,
            remove_unused_columns=False,
        )
        training, evaluation = Rows(4000, as_mapping=True), Rows(8, as_mapping=True)
        Trainer(Model(), arguments, train_dataset=training, eval_dataset=evaluation, callbacks=[Host()]).train()


def lightning() -> None:
    """Lightning with DDP: epochs of forty updates, each with a validation and a checkpoint."""
    import lightning as library
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Module(library.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Net()

        def training_step(self, batch: torch.Tensor, _index: int) -> torch.Tensor:
            return self.model(batch).square().mean()

        def validation_step(self, batch: torch.Tensor, _index: int) -> Any:
            return self.model(batch).square().mean()

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            spend("host")

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    with tempfile.TemporaryDirectory() as folder:
        trainer = library.Trainer(
            accelerator="cpu",
            devices=2,
            strategy="ddp",
            max_epochs=FOREVER,
            callbacks=[ModelCheckpoint(folder)],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Module(), DataLoader(Rows(160), batch_size=2), DataLoader(Rows(16), batch_size=2))


def accelerate() -> None:
    """A script with Accelerate, with an evaluation each epoch of forty updates."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    training, validation = DataLoader(Rows(160), batch_size=2), DataLoader(Rows(16), batch_size=2)
    model, optimizer, training, validation = accelerator.prepare(model, optimizer, training, validation)
    while True:
        for batch in training:
            loss = model(batch).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            spend("host")
        evaluate(model, validation)


def ppo() -> None:
    """PPO: a rollout of eight steps of the environment, which is host code, and four updates by hand."""
    distributed.init_process_group("gloo")
    agent = Net()
    model = DistributedDataParallel(agent)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        observed = torch.ones(1, WIDTH)
        observations: list[torch.Tensor] = []
        for _ in range(8):
            observations.append(observed)
            with torch.no_grad():
                observed = observed + agent(observed)
            spend("host")
        for batch in torch.cat(observations).split(2):
            update(model, optimizer, batch, batch)


def semi_supervised() -> None:
    """Two loaders and pseudo-labels, with an evaluation after each twenty updates."""
    distributed.init_process_group("gloo")
    raw = Net()
    model = DistributedDataParallel(raw)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    labelled, unlabelled = cycle(DataLoader(Rows(80, 4), batch_size=2)), cycle(DataLoader(Rows(80, 4), batch_size=2))
    validation = DataLoader(Rows(8), batch_size=2)
    for number in itertools.count(1):
        weak = next(unlabelled)
        with torch.no_grad():
            wanted = raw(weak)
        update(model, optimizer, torch.cat([next(labelled), weak]), torch.cat([torch.zeros_like(wanted), wanted]))
        spend("host")
        if number % 20 == 0:
            evaluate(raw, validation)


def update(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor, wanted: torch.Tensor) -> None:
    """Train on a batch."""
    optimizer.zero_grad()
    (model(batch) - wanted).square().mean().backward()
    optimizer.step()


def pipeline() -> None:
    """A pipeline of two stages, each on two ranks: microbatches, the engine's backward, checkpoints through memory."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    rank, stage = distributed.get_rank(), mesh.get_local_rank("pp")
    peer = (rank + 2) % 4
    group = mesh.get_group("dp")
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    # Loading takes next to no time: the first stage alone loads, and must not be slower than the other for it.
    batches = cycle(DataLoader(Rows(400, 200), batch_size=2))
    for number in itertools.count(1):
        outputs: list[tuple[torch.Tensor, torch.Tensor]] = []
        for _micro in range(3):
            inputs = torch.empty(2, WIDTH, requires_grad=stage == 1)
            if stage == 0:
                inputs = next(batches)
            else:
                distributed.recv(inputs.data, peer)
            output = model(inputs)
            if stage == 0:
                distributed.send(output.detach(), peer)
            outputs.append((inputs, output))
        for inputs, output in outputs:
            gradient = torch.empty_like(output)
            if stage == 0:
                distributed.recv(gradient, peer)
            else:
                gradient = 2 * output.detach()
            run_backward(output, gradient)
            if stage == 1 and inputs.grad is not None:
                distributed.send(inputs.grad, peer)
        for parameter in model.parameters():
            distributed.all_reduce(parameter.grad, group=group)  # pyright: ignore[reportArgumentType] - each has one
        optimizer.step()
        optimizer.zero_grad()
        spend("host", 3)
        if number % 40 == 0:
            save(model, Path(tempfile.gettempdir(), f"field-{rank}.pt"))


def run_backward(output: torch.Tensor, gradient: torch.Tensor) -> None:
    """Call the engine as Megatron-LM does."""
    Variable._execution_engine.run_backward(
        tensors=(output,),
        grad_tensors=(gradient,),
        keep_graph=False,
        create_graph=False,
        inputs=(),
        allow_unreachable=True,
        accumulate_grad=True,
    )


def save(model: nn.Module, path: Path) -> None:
    """Write a checkpoint through memory."""
    content = io.BytesIO()
    torch.save({**model.state_dict(), "ballast": torch.zeros(1_000_000)}, content)
    path.write_bytes(content.getvalue())


LOOPS: tuple[Callable[[], None], ...] = (hf_trainer, lightning, accelerate, ppo, semi_supervised, pipeline)

if __name__ == "__main__":
    torch.set_num_threads(1)
    next(loop for loop in LOOPS if loop.__name__ == sys.argv[1])()
