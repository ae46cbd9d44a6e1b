"""DINOv2: a method calls parts of teacher and student, and goes backward itself; no module is called as a whole."""

from __future__ import annotations

import torch
from torch import nn

from tests.field.parts import Block, loader, sgd
from tests.field.stopwatch import Stopwatch


class Architecture(nn.Module):
    """Teacher and student, each a backbone and a head."""

    def __init__(self, watch: Stopwatch) -> None:
        super().__init__()
        torch.manual_seed(0)
        self._watch = watch
        self.student = nn.ModuleDict({"backbone": Block(), "head": Block(forward=0.001, backward=0.002)})
        self.teacher = nn.ModuleDict({"backbone": Block(), "head": Block(forward=0.001)}).requires_grad_(False)

    def forward_backward(self, batch: torch.Tensor) -> torch.Tensor:
        with self._watch("forward"), torch.no_grad():
            target = self.teacher["head"](self.teacher["backbone"](batch))
        with self._watch("forward"):
            output = self.student["head"](self.student["backbone"](batch))
        loss = (output - target).square().mean()
        with self._watch("backward"):
            loss.backward()
        return loss.detach()

    @torch.no_grad()
    def update_teacher(self) -> None:
        for kept, parameter in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            kept.lerp_(parameter, 0.1)


def main() -> None:
    """Train sixteen steps, and evaluate the teacher's backbone each eight."""
    watch = Stopwatch()
    architecture = Architecture(watch).train()
    optimizer = sgd(architecture.student)
    validation = loader(3)
    for number, batch in enumerate(watch.batches(loader(16)), 1):
        optimizer.zero_grad(set_to_none=True)
        loss = architecture.forward_backward(batch)
        with watch("optimizer"):
            optimizer.step()
        architecture.update_teacher()
        watch.step(loss)
        if number % 8 == 0:
            with watch("evaluation"), torch.inference_mode():
                for evaluated in validation:
                    architecture.teacher["backbone"](evaluated)
    watch.done()


if __name__ == "__main__":
    main()
