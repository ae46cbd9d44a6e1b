"""webdataset's WebLoader over shards; the argument says whether batches are `kept` or `recut` behind it."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import webdataset  # pyright: ignore[reportMissingImports] - make field installs it

from tests.field.noted import NotedNet, NotedRows, finished, watch


def main(batches: str) -> None:
    """Train 24 updates."""
    rows = NotedRows(48)
    with tempfile.TemporaryDirectory() as folder:
        shard = Path(folder, "shard-0.tar")
        with webdataset.TarWriter(str(shard)) as writer:
            for index in range(48):
                writer.write({"__key__": f"{index:04d}", "index.txt": str(index)})

        def load(sample: Any) -> tuple[torch.Tensor]:
            return (rows[int(sample["index.txt"])],)

        data = webdataset.WebDataset(str(shard), shardshuffle=False).map(load)
        size = 2 if batches == "kept" else 12
        training: Any = webdataset.WebLoader(data.batched(size), batch_size=None, num_workers=0)
        if batches == "recut":
            training = training.unbatched().shuffle(10, initial=10).batched(2)
        model = NotedNet()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        updates = 0
        for (batch,) in training:
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            updates += 1
            # The order of what is shuffled is the loader's affair.
            watch.losses.append(loss.item().hex() if batches == "kept" else "")
    finished(updates)


if __name__ == "__main__":
    main(sys.argv[1])
