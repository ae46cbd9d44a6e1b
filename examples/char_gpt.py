"""Trains a small character-level GPT on the sources of Python's standard library, with DistributedDataParallel.

An ordinary training script: it knows nothing of laggard. Run it with::

    laggard run torchrun --nproc-per-node 4 examples/char_gpt.py
"""

from __future__ import annotations

import argparse
import itertools
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

Batch = tuple[torch.Tensor, torch.Tensor]


class Text(Dataset[Batch]):
    """Pairs of a piece of text and the same piece one character later, as indices into the vocabulary."""

    def __init__(self, length: int, characters: int = 2_000_000) -> None:
        folder = Path(sysconfig.get_paths()["stdlib"])
        files = sorted(folder.glob("*.py"))
        text = "".join(file.read_text(encoding="utf-8", errors="ignore") for file in files)[:characters]
        self.vocabulary = sorted(set(text))
        index = {character: number for number, character in enumerate(self.vocabulary)}
        self.data = torch.tensor([index[character] for character in text])
        self.length = length

    def __len__(self) -> int:
        return (len(self.data) - 1) // self.length

    def __getitem__(self, item: int) -> Batch:
        start = item * self.length
        piece = self.data[start : start + self.length + 1]
        return piece[:-1], piece[1:]


class Block(nn.Module):
    """A transformer block: attention over what came before, then a feed-forward network."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm_feed_forward = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform ``x`` of shape (batch, length, width)."""
        batch, length, width = x.shape
        split = (batch, length, 3, self.heads, width // self.heads)
        query, key, value = self.qkv(self.norm_attention(x)).view(split).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed_forward(self.norm_feed_forward(x))


class GPT(nn.Module):
    """Predicts the next character."""

    def __init__(self, vocabulary: int, length: int, width: int, depth: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.Sequential(*(Block(width, heads=4) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        """Return the logits of the next characters, of shape (batch, length, vocabulary)."""
        x = self.token(characters) + self.position
        return self.head(self.norm(self.blocks(x)))


def save(model: nn.Module, path: str) -> None:
    """Write a checkpoint."""
    torch.save(model.state_dict(), path)


def main(keep_going: Callable[[int], bool] | None = None) -> None:
    """Train until ``keep_going``, given the number of steps done, says no; by default for ``--steps``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--checkpoint", help="file for checkpoints; none are saved without")
    parser.add_argument("--checkpoint-seconds", type=float, default=60, help="seconds from one checkpoint to the next")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    text = Text(arguments.length)
    sampler: DistributedSampler[Batch] = DistributedSampler(text)
    loader = DataLoader(
        text, batch_size=arguments.batch, sampler=sampler, num_workers=arguments.workers, persistent_workers=True
    )
    model = DistributedDataParallel(GPT(len(text.vocabulary), arguments.length, arguments.width, arguments.depth))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    done = 0
    saved = time.monotonic()
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        for characters, following in loader:
            if not (keep_going(done) if keep_going else done < arguments.steps):
                dist.destroy_process_group()
                return
            logits = model(characters)
            loss = functional.cross_entropy(logits.flatten(0, 1), following.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            done += 1
            if (
                arguments.checkpoint
                and dist.get_rank() == 0
                and time.monotonic() - saved >= arguments.checkpoint_seconds
            ):
                saved = time.monotonic()
                save(model.module, arguments.checkpoint)
            if done % 100 == 0 and dist.get_rank() == 0:
                print(f"step {done}, loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
