"""trl's trainers on a language model of a few thousand parameters: `sft` with accumulation, or `grpo`."""

from __future__ import annotations

import sys
import tempfile
from typing import Any

from datasets import Dataset  # pyright: ignore[reportMissingImports] - make field installs it
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, set_seed
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer  # pyright: ignore[reportMissingImports] - as above

from tests.field.noted import finished, watch

WORDS = ("<pad>", "<end>", *(f"w{number}" for number in range(30)))


def tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of a few words."""
    words = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<pad>"))
    words.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<end>")


def main(kind: str) -> None:
    """Train a few updates."""
    set_seed(0)
    config = GPT2Config(
        vocab_size=len(WORDS), n_positions=32, n_embd=16, n_layer=1, n_head=2, bos_token_id=1, eos_token_id=1
    )
    model = GPT2LMHeadModel(config)
    common: dict[str, Any] = {
        "per_device_train_batch_size": 4,
        "logging_steps": 1,
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "disable_tqdm": True,
        "save_strategy": "no",
        "seed": 0,
    }
    texts = [" ".join(WORDS[2 + (start + word) % 30] for word in range(6)) for start in range(64)]
    with tempfile.TemporaryDirectory() as folder:
        if kind == "sft":
            arguments = SFTConfig(
                folder, max_steps=14, gradient_accumulation_steps=2, eval_strategy="steps", eval_steps=5, **common
            )
            data = Dataset.from_dict({"text": texts})
            trainer: Any = SFTTrainer(
                model, arguments, train_dataset=data, eval_dataset=data.select(range(8)), processing_class=tokenizer()
            )
        else:
            arguments = GRPOConfig(folder, max_steps=8, num_generations=4, max_completion_length=8, **common)
            data = Dataset.from_dict({"prompt": texts})
            trainer = GRPOTrainer(model, reward, arguments, train_dataset=data, processing_class=tokenizer())
        trainer.train()
    watch.losses += [float(entry["loss"]).hex() for entry in trainer.state.log_history if "loss" in entry]
    finished(trainer.state.global_step)


def reward(completions: list[str], **_: Any) -> list[float]:
    """Prefer long answers."""
    return [float(len(completion)) for completion in completions]


if __name__ == "__main__":
    main(sys.argv[1])
