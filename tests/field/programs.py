"""Every framework that is run as its users run it, and what is to be reported. Data, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

USUAL = frozenset({"data", "forward", "backward", "optimizer"})


@dataclass(frozen=True)
class Program:
    """A script with its arguments, and what each of its ranks reports."""

    name: str
    script: str
    arguments: tuple[str, ...] = ()
    package: str = ""
    phases: frozenset[str] = USUAL
    """Phases that steps have time in, beside other and communication."""
    unseen: str = ""
    """The signal that is not available, unless what it is of is seen after all."""
    ranks: int = 1
    loads: bool = False
    """Whether the state of an optimizer is loaded before the first step, which is why it is left out."""


PROGRAMS: tuple[Program, ...] = (
    Program("Lightning", "lightning_trainer", (), "lightning", USUAL | {"evaluation", "checkpoint"}),
    Program("HF Trainer", "hf_trainer", (), "transformers", USUAL | {"evaluation", "checkpoint"}, loads=True),
    Program("Accelerate", "accelerate_script", (), "accelerate", USUAL | {"evaluation", "checkpoint"}, loads=True),
    Program("timm", "timm_script", (), "timm", USUAL | {"evaluation"}),
    Program("DeepSpeed, ZeRO 0", "deepspeed_script", ("0",), "deepspeed"),
    Program("DeepSpeed, ZeRO 2", "deepspeed_script", ("2",), "deepspeed"),
    Program("webdataset, batches kept", "webdataset_script", ("kept",), "webdataset"),
    Program("webdataset, batches cut again", "webdataset_script", ("recut",), "webdataset"),
    Program("torchdata's nodes", "other_loaders", ("nodes",), "torchdata", unseen="data"),
    Program("grain", "other_loaders", ("grain",), "grain", unseen="data"),
    Program("trl SFT", "trl_trainer", ("sft",), "trl", USUAL | {"evaluation"}, loads=True),
    Program("trl GRPO", "trl_trainer", ("grpo",), "trl", loads=True),
    Program("ultralytics", "ultralytics_trainer", (), "ultralytics", USUAL | {"evaluation", "checkpoint"}),
    Program("fastai", "fastai_learner", (), "fastai", USUAL | {"evaluation"}),
    Program("Ray Train", "ray_train", (), "ray", ranks=2),
)
