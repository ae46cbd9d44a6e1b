"""DeepSpeed on the CPU: an engine with ZeRO of the stage that the argument says, accumulation of two."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ |= {"DS_ACCELERATOR": "cpu", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
# DeepSpeed compiles an operator when it is first used.
os.environ["TORCH_EXTENSIONS_DIR"] = str(Path(".cache", "torch_extensions").absolute())

import deepspeed  # pyright: ignore[reportMissingImports] - make field installs it
import torch
from torch.utils.data import DataLoader

from tests.field.noted import NotedNet, NotedRows, finished, watch


def main(stage: int) -> None:
    """Train two epochs of six updates."""
    deepspeed.init_distributed("gloo", verbose=False)
    model = NotedNet()
    settings = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "torch_autocast": {"enabled": False},
    }
    optimizer = torch.optim.AdamW(model.parameters())
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
    for _epoch in range(2):
        for batch in DataLoader(NotedRows(24), batch_size=2):
            loss = engine(batch).square().mean()
            watch.losses.append(loss.item().hex())
            engine.backward(loss)
            engine.step()
    finished(engine.global_steps)


if __name__ == "__main__":
    main(int(sys.argv[1]))
