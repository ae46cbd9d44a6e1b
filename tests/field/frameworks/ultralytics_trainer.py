"""ultralytics' trainer on a few images: an EMA copy is validated each epoch, checkpoints go through memory."""

# ruff: noqa: PLC0415 - the environment comes first

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

os.environ |= {"YOLO_OFFLINE": "true", "WANDB_MODE": "disabled"}


def write_data(folder: Path) -> Path:
    """Write images with a box in each, and the file that describes them."""
    import cv2  # pyright: ignore[reportMissingImports] - ultralytics brings it

    chance = np.random.default_rng(0)
    for kind, count in (("train", 12), ("val", 20)):
        for part in ("images", "labels"):
            (folder / part / kind).mkdir(parents=True)
        for number in range(count):
            image = chance.integers(0, 255, (64, 64, 3), dtype=np.uint8)
            cv2.imwrite(str(folder / "images" / kind / f"{number}.png"), image)
            (folder / "labels" / kind / f"{number}.txt").write_text("0 0.5 0.5 0.4 0.4\n")
    description = folder / "data.yaml"
    description.write_text(f"path: {folder}\ntrain: images/train\nval: images/val\nnames:\n  0: thing\n")
    return description


def main() -> None:
    """Train three epochs."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        os.environ["YOLO_CONFIG_DIR"] = place
        import torch
        from ultralytics import YOLO  # pyright: ignore[reportMissingImports] - make field installs it

        from tests.field.noted import finished, watch

        torch.set_num_threads(1)
        updates = 0

        def count(trainer: Any) -> None:
            nonlocal updates
            updates += 1
            watch.losses.append(float(trainer.loss).hex())

        model = YOLO("yolov8n.yaml")
        model.add_callback("on_train_batch_end", count)
        model.train(
            data=str(write_data(folder)),
            epochs=3,
            imgsz=64,
            batch=4,
            nbs=4,
            device="cpu",
            workers=0,
            amp=False,
            plots=False,
            verbose=False,
            project=place,
            warmup_epochs=0,
        )
        finished(updates)


if __name__ == "__main__":
    main()
