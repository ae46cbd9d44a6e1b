"""A checkpoint every four steps, by one of the ways that projects have.

`file`: torch.save to a path. `memory`: into memory and from there to a file, as Fabric and ultralytics.
`safetensors`: as Transformers. `dcp`: torch.distributed.checkpoint, as torchtitan. `manager`: torch_checkpointing.
"""

from __future__ import annotations

import functools
import importlib
import io
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

from tests.field.parts import loader, network, sgd
from tests.field.stopwatch import Stopwatch


@functools.cache
def manager() -> Any:
    """Return what saves at once, since staging takes CUDA, and through the page cache, which not every disk avoids."""
    package = importlib.import_module("torch_checkpointing.checkpoint_manager")
    storage = importlib.import_module("torch_checkpointing.storage.filesystem")
    configuration = package.CheckpointManager.Config.with_sync_save()
    configuration.storage_config = storage.LocalFileSystemStorageConfig(use_direct_io=False)
    return configuration.build()


def save(kind: str, state: dict[str, Any], folder: Path) -> None:
    """Write a checkpoint."""
    if kind == "file":
        torch.save(state, folder / "last.pt")
    elif kind == "memory":
        content = io.BytesIO()
        torch.save(state, content)
        (folder / "last.pt").write_bytes(content.getvalue())
    elif kind == "safetensors":
        save_file(state, folder / "last.safetensors")
    elif kind == "manager":
        manager().save(str(folder / f"step-{len(list(folder.iterdir()))}"), {"model": state})
    else:
        path = folder / f"step-{len(list(folder.iterdir()))}"
        dcp.save(state, checkpoint_id=path)  # pyright: ignore[reportPrivateImportUsage] - torch documents it


def main(kind: str) -> None:
    """Train fourteen steps."""
    watch = Stopwatch()
    model = network()
    optimizer = sgd(model)
    ballast = torch.zeros(3_000_000)
    if kind == "manager":
        manager()
    with tempfile.TemporaryDirectory() as folder:
        for number, batch in enumerate(watch.batches(loader(14))):
            optimizer.zero_grad()
            with watch("forward"):
                output = model(batch)
            loss = output.square().mean()
            with watch("backward"):
                loss.backward()
            with watch("optimizer"):
                optimizer.step()
            watch.step(loss)
            if number % 4 == 3:
                with watch("checkpoint"):
                    save(kind, {**model.state_dict(), "ballast": ballast}, Path(folder))
    watch.done()


if __name__ == "__main__":
    main(sys.argv[1])
