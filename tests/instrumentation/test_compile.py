"""torch.compile in every style: the compiler does what it does without laggard, and steps and phases are there."""

# ruff: noqa: D103 - the names of the styles say what they are

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import hypothesis
import pytest
import torch
from torch import nn
from torch._dynamo import convert_frame
from torch._dynamo.utils import counters
from torch.utils.data import DataLoader

from laggard import _process
from laggard._hooks.forward import ForwardHook
from laggard._partition import StepPartition
from laggard.shared import statefile
from laggard.shared.phases import Phase
from tests.instrumentation.inside import hook_named, instrumented, phases, steps_of
from tests.support.cases import usual
from tests.support.facts import FACTS
from tests.support.launch import PROGRAMS, Launcher
from tests.support.otlp import Receiver

# The compiler itself looks at the gradient of tensors that have none.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch.*")

STEPS = 8
PLAIN = {"data", "forward", "backward", "optimizer"}

Batches = Iterator[torch.Tensor]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layer(x))


class Network(nn.Module):
    """Blocks, with a break in the middle of the graph if one is asked for."""

    def __init__(self, *, broken: bool = False) -> None:
        super().__init__()
        self.first, self.second = Block(), Block()
        self.broken = broken

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        if self.broken:
            torch._dynamo.graph_break()
        return self.second(x)


@dataclass
class Loop:
    """What a style makes its train step of."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    fullgraph: bool
    backend: str
    #: Takes a batch and a step's number, and trains.
    train: Callable[[torch.Tensor, int], torch.Tensor]

    def compile(self, function: Any) -> Any:
        """Compile with a backend that runs what the compiler captured, or with the one that makes code of it."""
        return torch.compile(function, backend=self.backend, fullgraph=self.fullgraph)


def make(*, broken: bool = False, fullgraph: bool = False, backend: str = "aot_eager") -> Loop:
    """A loop with nothing compiled."""
    torch.manual_seed(0)
    model = Network(broken=broken)
    loop = Loop(model, torch.optim.AdamW(model.parameters(), lr=0.01), fullgraph, backend, lambda batch, _: batch)
    loop.train = lambda batch, _number: step(loop, model, batch)
    return loop


def step(loop: Loop, model: Callable[[torch.Tensor], torch.Tensor], batch: torch.Tensor) -> torch.Tensor:
    """One plain step."""
    loss = model(batch).square().mean()
    loss.backward()
    loop.optimizer.step()
    loop.optimizer.zero_grad()
    return loss


def compiled_model(**options: Any) -> Loop:
    loop = make(**options)
    model = loop.compile(loop.model)
    loop.train = lambda batch, _number: step(loop, model, batch)
    return loop


def in_place(**options: Any) -> Loop:
    loop = make(**options)
    loop.model.compile(backend="aot_eager", fullgraph=loop.fullgraph)
    return loop


def regional(**options: Any) -> Loop:
    loop = make(**options)
    for block in loop.model.children():
        block.compile(backend="aot_eager", fullgraph=loop.fullgraph)
    return loop


def compiled_optimizer(**options: Any) -> Loop:
    loop = compiled_model(**options)
    forward, update = loop.compile(loop.model), torch.compile(loop.optimizer.step, backend=loop.backend)

    def train(batch: torch.Tensor, _number: int) -> torch.Tensor:
        loss = forward(batch).square().mean()
        loss.backward()
        update()
        loop.optimizer.zero_grad()
        return loss

    loop.train = train
    return loop


def compiled_loss(**options: Any) -> Loop:
    loop = make(**options)
    loss_of = loop.compile(lambda batch: loop.model(batch).square().mean())

    def train(batch: torch.Tensor, _number: int) -> torch.Tensor:
        loss = loss_of(batch)
        loss.backward()
        loop.optimizer.step()
        loop.optimizer.zero_grad()
        return loss

    loop.train = train
    return loop


def whole_step(**options: Any) -> Loop:
    loop = make(**options)
    loop.train = loop.compile(lambda batch, _number: step(loop, loop.model, batch))
    # A number would be a guard; the step does not need it.
    train = loop.train
    loop.train = lambda batch, _number: train(batch, 0)
    return loop


def whole_step_twice(**options: Any) -> Loop:
    """torch.compile of what torch.compile returned."""
    loop = make(**options)
    train = loop.compile(loop.compile(lambda batch: step(loop, loop.model, batch)))
    loop.train = lambda batch, _number: train(batch)
    return loop


def whole_accumulating_step(**options: Any) -> Loop:
    """Only every second call updates."""
    loop = make(**options)

    @torch.compile(backend="aot_eager")
    def accumulate(batch: torch.Tensor, *, update: bool) -> torch.Tensor:
        loss = loop.model(batch).square().mean()
        loss.backward()
        if update:
            loop.optimizer.step()
            loop.optimizer.zero_grad()
        return loss

    loop.train = lambda batch, number: accumulate(batch, update=number % 2 == 1)
    return loop


def whole_step_with_scaler(**options: Any) -> Loop:
    """Mixed precision, scaler included."""
    loop = make(**options)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)

    @torch.compile(backend="aot_eager")
    def train(batch: torch.Tensor) -> torch.Tensor:
        loss = loop.model(batch).square().mean()
        scaler.scale(loss).backward()
        scaler.step(loop.optimizer)
        scaler.update()
        loop.optimizer.zero_grad()
        return loss

    loop.train = lambda batch, _number: train(batch)
    return loop


def optimizer_in_backward(**options: Any) -> Loop:
    """Compiled steps that run while the backward pass does."""
    loop = make(**options)
    for parameter in loop.model.parameters():
        optimizer = torch.optim.SGD([parameter], lr=0.01)
        update = torch.compile(optimizer.step, backend="aot_eager")
        parameter.register_post_accumulate_grad_hook(lambda _parameter, update=update: update())

    def train(batch: torch.Tensor, _number: int) -> torch.Tensor:
        loss = loop.model(batch).square().mean()
        loss.backward()
        loop.model.zero_grad()
        return loss

    loop.train = train
    return loop


STYLES: dict[str, tuple[Callable[..., Loop], dict[str, Any], int]] = {
    "model": (compiled_model, {}, STEPS),
    "model, fullgraph": (compiled_model, {"fullgraph": True}, STEPS),
    "model, broken": (compiled_model, {"broken": True}, STEPS),
    "in place": (in_place, {}, STEPS),
    "in place, fullgraph": (in_place, {"fullgraph": True}, STEPS),
    "regional": (regional, {}, STEPS),
    "regional, fullgraph": (regional, {"fullgraph": True}, STEPS),
    "optimizer": (compiled_optimizer, {}, STEPS),
    "optimizer, inductor": (compiled_optimizer, {"backend": "inductor"}, STEPS),
    "loss": (compiled_loss, {}, STEPS),
    "loss, fullgraph": (compiled_loss, {"fullgraph": True}, STEPS),
    "whole step": (whole_step, {}, STEPS),
    "whole step, broken": (whole_step, {"broken": True}, STEPS),
    "whole step, twice": (whole_step_twice, {}, STEPS),
    "whole step, accumulating": (whole_accumulating_step, {}, STEPS // 2),
    "whole step, scaler": (whole_step_with_scaler, {}, STEPS),
    "optimizer in backward": (optimizer_in_backward, {}, STEPS),
}
#: What is called around a graph, inside one and between two: there the wrappers in Python differ from native ones.
WRAPPED = ("model, broken", "in place, fullgraph", "optimizer", "whole step", "optimizer in backward")
#: How a compiler is used otherwise.
USED = (
    "regional",
    "optimizer, inductor",
    "loss",
    "whole step, broken",
    "whole step, twice",
    "whole step, accumulating",
    "whole step, scaler",
)
PLAYED = usual(STYLES, *WRAPPED, *(() if os.environ.get("LAGGARD_HOT_PATH") == "python" else USED))


def search_ends(process: _process.Process) -> None:
    """Have the forward hook end its search for outermost modules, as the drain does."""
    hook = hook_named(process, "forward")
    assert isinstance(hook, ForwardHook)
    hook._steps = 100
    hook.steps_ended([])


def run(name: str, process: _process.Process | None = None) -> tuple[dict[str, Any], list[float]]:
    """Train in a style from a fresh compiler; return what the compiler did and the losses."""
    torch._dynamo.reset()
    counters.clear()
    if process is not None:
        hook_named(process, "torch_compile").steps_ended([])
    style, options, _ = STYLES[name]
    loop = style(**options)
    losses: list[float] = []
    rows = [torch.ones(4) * i for i in range(2 * STEPS)]
    loader = DataLoader(rows, batch_size=2)  # pyright: ignore[reportArgumentType] - a list will do
    for number, batch in enumerate(loader):
        losses.append(loop.train(batch, number).item())
        if process is not None and number == 2:
            search_ends(process)
    return {
        "graphs": counters["stats"]["unique_graphs"],
        "operations": counters["stats"]["calls_captured"],
        "breaks": sum(counters["graph_break"].values()),
        "compiled": convert_frame.FRAME_COUNTER,
        "compiled again": sum(convert_frame.FRAME_COMPILE_COUNTER.values()) - convert_frame.FRAME_COUNTER,
    }, losses


@pytest.mark.parametrize("name", PLAYED)
def test_the_compiler_does_the_same_and_every_step_is_seen(name: str) -> None:
    """Equal graphs, operations, breaks, compilations and losses with and without; all steps, with all phases."""
    bare = run(name)
    with instrumented() as process:
        observed = run(name, process)
        steps = steps_of(process)
    assert observed == bare
    assert bare[0]["graphs"] > 0
    assert len(steps) == STYLES[name][2]
    assert all(phases(step) == PLAIN for step in steps[1:])
    assert steps[0].excluded == "compile"
    assert {step.excluded for step in steps[2:]} == {""}


def test_recompilations_are_counted_and_keep_their_step_out_of_the_histograms() -> None:
    """A new number of dimensions compiles the model again: one recompilation, in that step."""

    class Report:
        counts: ClassVar[list[float]] = []

        def measure(self, _metric: Any, count: float) -> None:
            self.counts.append(count)

    with instrumented() as process:
        torch._dynamo.reset()
        hook: Any = hook_named(process, "torch_compile")
        hook.steps_ended([])
        loop = compiled_model()
        hook.report(Report())
        for number in range(6):
            loop.train(torch.ones(2, 4) if number < 3 else torch.ones(2, 2, 4), number)
        hook.report(Report())
        hook.report(Report())
        assert Report.counts == [0, 1, 0]
        assert [step.excluded for step in steps_of(process)] == ["compile", "", "", "compile", "", "incomplete"]


def one_graph() -> Callable[[torch.Tensor], None]:
    """A whole train step in which no backward pass is to be seen from outside."""
    weight = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)

    @torch.compile(backend="aot_eager")
    def train(batch: torch.Tensor) -> None:
        weight.grad = torch.ones_like(weight) * batch
        optimizer.step()

    return train


def test_a_step_in_one_graph_is_a_step() -> None:
    """Without loader and backward pass the compiled step's begin is the boundary; its time is not split by guessing."""
    with instrumented() as process:
        train = one_graph()
        for _ in range(5):
            train(torch.ones(4))
        steps = steps_of(process)
    assert len(steps) == 5
    assert [phases(step) for step in steps] == [set()] * 5


def test_a_step_in_one_graph_ends_an_evaluation(tmp_path: Path) -> None:
    """After it, what the host does is a step's again, in the state file too."""
    model = Network()
    with instrumented() as process:
        writer = statefile.StateWriter(tmp_path / "state", FACTS)
        process.recorder.words = writer.words
        train = one_graph()
        train(torch.ones(4))
        with torch.no_grad():
            model.eval()(torch.ones(2, 4))
        assert statefile.read(writer.path).phase is Phase.EVALUATION
        train(torch.ones(4))
        assert statefile.read(writer.path).phase is Phase.OTHER


def looked_at() -> set[str]:
    """Files of all code outside of torch that the compiler looks at for a whole step that is compiled."""
    torch._dynamo.reset()
    loop = whole_step()
    for number in range(3):
        loop.train(torch.ones(2, 4), number)
    seen = [code() for code in convert_frame.input_codes.seen]
    files = {code.co_filename for code in seen if code is not None}
    # A property test in the same process leaves a callback of Hypothesis with the garbage collector.
    others = (str(Path(torch.__file__).parent), str(Path(hypothesis.__file__).parent))
    return {file for file in files if not file.startswith(others)}


def test_the_begin_of_reporting_is_not_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiled step proves training in the middle: the compiler looks at nothing of what starts then."""
    monkeypatch.setenv("LAGGARD_STATE_DIR", str(tmp_path))
    looked_at()  # what the compiler itself does for the first time only is looked at too
    bare = looked_at()
    _process.instrument()
    try:
        observed = looked_at()
        assert list(tmp_path.iterdir())  # it did start
    finally:
        _process.uninstrument()
    assert observed == bare


def named(x: torch.Tensor) -> torch.Tensor:
    """A function that is compiled under its own name."""
    return x * 2


def test_compiled_functions_stay_what_they_are() -> None:
    """A compiled function keeps its name, works as a method, and outlives uninstrument; a compiled model pickles."""
    with instrumented() as process:

        class Trainer:
            weight = torch.ones(3, requires_grad=True)

            @torch.compile(backend="aot_eager")
            def loss(self, x: torch.Tensor) -> torch.Tensor:
                return (x * self.weight).sum()

        compiled = torch.compile(named, backend="aot_eager")
        assert compiled.__name__ == "named"
        here = Trainer()
        here.loss(torch.ones(3)).backward()
        with torch.no_grad():
            here.loss(torch.ones(3))
        assert {"forward", "backward"} <= set().union(*(phases(step) for step in forced(process)))
        model = Network()
        model.compile(backend="aot_eager")
        rows = torch.ones(2, 4)
        assert torch.equal(pickle.loads(pickle.dumps(model))(rows), model(rows))
        assert torch.equal(copy.deepcopy(model)(rows), model(rows))
        process.recorder.drain()
    x = torch.ones(3)
    assert torch.equal(compiled(x), x * 2)
    assert here.loss(x).item() == 3
    assert process.recorder.drain() == []


def forced(process: _process.Process) -> list[Any]:
    """One step with all that was recorded, for a loop without an update."""
    partition = StepPartition(warmup_steps=0)
    events = process.recorder.drain()
    return partition.feed([*events, (16, events[-1][2], events[-1][2])]) + partition.finish()


def test_strict_export_of_an_instrumented_model() -> None:
    """Export that traces through the compiler gives the same program and warns of nothing."""
    model, x = Network(), torch.ones(2, 4)
    bare = torch.export.export(model, (x,), strict=True)
    with instrumented() as process:
        step(make(), model, x)
        search_ends(process)
        program = torch.export.export(model, (x,), strict=True)
    assert str(program.graph) == str(bare.graph)


def test_uninstrumented_in_the_middle_of_compiled_training() -> None:
    """Losses stay those of a run that was never instrumented, across instrument and uninstrument."""
    _, expected = run("whole step")
    torch._dynamo.reset()
    batches = [torch.stack([torch.ones(4) * i, torch.ones(4) * (i + 1)]) for i in range(0, 2 * STEPS, 2)]
    with instrumented():
        loop = whole_step()
        losses = [loop.train(batch, 0).item() for batch in batches[:4]]
    losses += [loop.train(batch, 0).item() for batch in batches[4:]]
    assert losses == expected


def test_without_a_change_to_the_script(launcher: Launcher, receiver: Receiver) -> None:
    """The compiler takes modules for what they are without us; steps and recompilations are exported."""
    printed = launcher.run("python", PROGRAMS / "compiled.py", **receiver.environment, LAGGARD_WARMUP_STEPS="0")
    assert printed.splitlines()[-1] == "True True"
    assert receiver.value("training.steps") == 6
    # The first step and the last, whose shape is new: the model is compiled again for it.
    assert receiver.value("training.steps.excluded", training__reason="compile") == 2
    assert receiver.value("training.compile.recompilations") == 1
    assert receiver.value("training.step.duration").count == 4
