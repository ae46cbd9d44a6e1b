"""Checkpoints: what counts as one, where its time goes, and what else those functions are used for."""

from __future__ import annotations

import io
import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint as distributed_checkpoint
from torch.utils.data import DataLoader, Dataset

from laggard import _process
from laggard._events import CODE_BITS, EVALUATION_FORWARD, EXHAUSTED, FIRST_BATCH, ITERATOR, RESUME, UPDATE, Event
from laggard._hooks.checkpoint import CheckpointHook
from laggard._partition import StepPartition
from laggard._process import Process
from laggard.shared.phases import Phase
from tests.support.measured import measure

checkpoint: Any = distributed_checkpoint
STATE = {"weight": torch.ones(4)}

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")


@pytest.fixture
def hook(process: Process) -> CheckpointHook:
    """The hook of this process."""
    (found,) = [hook for hook in process._parts if isinstance(hook, CheckpointHook)]
    return found


def go_on(process: Process) -> None:
    """Fetch a batch, with which training goes on."""
    process.recorder.end(process.recorder.begin(Phase.DATA))


def codes(process: Process) -> list[int]:
    """Codes of the events since the last call."""
    return [code & CODE_BITS for code, _, _ in process.recorder.drain()]


def counts(hook: CheckpointHook) -> dict[str, int]:
    """Checkpoints reported since the last call, by operation."""
    return {key[1]: len(values) for key, values in measure(hook).items() if key[0] == "training.checkpoint.duration"}


def save_opened(path: Path) -> None:
    """Save into a file that the script has opened."""
    with path.open("wb") as file:
        torch.save(STATE, file)


def test_every_way_to_write_and_read_is_one_checkpoint(process: Process, hook: CheckpointHook, tmp_path: Path) -> None:
    """A path, an open file, a distributed checkpoint and safetensors each give one event and one duration."""
    saves = (
        lambda: torch.save(STATE, tmp_path / "path.pt"),
        lambda: torch.save(f=str(tmp_path / "keyword.pt"), obj=STATE),
        lambda: save_opened(tmp_path / "opened.pt"),
        lambda: checkpoint.save(STATE, checkpoint_id=tmp_path / "distributed", no_dist=True),
        lambda: safetensors.torch.save_file(STATE, tmp_path / "state.safetensors"),
        lambda: wait([checkpoint.async_save(STATE, checkpoint_id=tmp_path / "async", no_dist=True)]),
    )
    for save in saves:
        save()
        assert codes(process) == [Phase.CHECKPOINT]
        go_on(process)
        assert codes(process) == [Phase.DATA]
        assert counts(hook) == {"save": 1}
    loads = (
        lambda: torch.load(tmp_path / "path.pt"),
        lambda: torch.load(f=tmp_path / "keyword.pt"),
        lambda: checkpoint.load(dict(STATE), checkpoint_id=tmp_path / "distributed", no_dist=True),
        lambda: safetensors.torch.load_file(tmp_path / "state.safetensors"),
    )
    for load in loads:
        load()
        assert codes(process) == [Phase.CHECKPOINT, RESUME]
        assert counts(hook) == {"load": 1}


def test_what_is_no_checkpoint_is_not_counted(process: Process, hook: CheckpointHook, tmp_path: Path) -> None:
    """Copies in memory, shards of tensors and samples that a data set loads leave no trace in the checkpoint phase."""
    torch.save(STATE, io.BytesIO())
    torch.save(torch.ones(2), tmp_path / "sample.pt")
    assert counts(hook) == {"save": 1}
    torch.save(nn.Linear(2, 2), tmp_path / "model.pt")
    assert counts(hook) == {"save": 1}
    go_on(process)
    process.recorder.drain()
    assert torch.equal(torch.load(tmp_path / "sample.pt"), torch.ones(2))
    assert codes(process) == []

    class Samples(Dataset[Any]):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.load(tmp_path / "model.pt", weights_only=False).weight

    assert len(list(DataLoader(Samples()))) == 2
    assert codes(process) == [ITERATOR, Phase.DATA, FIRST_BATCH, Phase.DATA, Phase.DATA, EXHAUSTED]
    assert counts(hook) == {}
    assert isinstance(torch.load(tmp_path / "model.pt", weights_only=False), nn.Linear)
    assert counts(hook) == {"load": 1}


MODEL = nn.Sequential(nn.Linear(2, 2))
OPTIMIZER = torch.optim.Adam(MODEL.parameters())

#: What is saved, and whether that into memory is a checkpoint.
IN_MEMORY: dict[str, tuple[Any, bool]] = {
    "module": (MODEL, True),
    "parameter": (MODEL[0].weight, True),
    "state of a module": (MODEL.state_dict(), True),
    "state of an optimizer": (OPTIMIZER.state_dict(), True),
    "Lightning's": ({"epoch": 1, "state_dict": MODEL.state_dict(), "optimizer_states": [OPTIMIZER.state_dict()]}, True),
    "ultralytics'": ({"epoch": 1, "model": None, "ema": MODEL, "updates": 3}, True),
    "copied": ({"model": {name: value.cpu() for name, value in MODEL.state_dict().items()}}, True),
    "tensor": (torch.ones(2), False),
    "storage": (torch.ones(2).untyped_storage(), False),
    "sample": ({"input": torch.ones(2), "label": torch.ones(1)}, False),
    "batch": ([{"input": torch.ones(2)}, {"input": torch.ones(2)}], False),
    "numbers": ({"loss": 0.5}, False),
}


@pytest.mark.parametrize("writer", [torch, pickle])
@pytest.mark.parametrize("name", IN_MEMORY)
def test_state_that_goes_to_memory_is_a_checkpoint(
    process: Process, hook: CheckpointHook, name: str, writer: Any
) -> None:
    """A buffer that takes the state of a module or an optimizer is one, a copy of anything else is none."""
    saved, counted = IN_MEMORY[name]
    (writer.save if writer is torch else writer.dump)(saved, io.BytesIO())
    go_on(process)
    assert (Phase.CHECKPOINT in codes(process)) is counted
    assert counts(hook) == ({"save": 1} if counted else {})


def test_state_that_becomes_bytes_is_a_checkpoint(process: Process, hook: CheckpointHook) -> None:
    """A script that writes them itself has safetensors make bytes of a model, and of any other tensors too."""
    safetensors.torch.save(MODEL.state_dict())
    go_on(process)
    assert (codes(process), counts(hook)) == ([Phase.CHECKPOINT, Phase.DATA], {"save": 1})
    safetensors.torch.save(STATE)
    go_on(process)
    assert (codes(process), counts(hook)) == ([Phase.DATA], {})


def test_what_pickle_writes_is_searched_for_state_in_no_time(hook: CheckpointHook) -> None:
    """A replay buffer of lists in lists is looked at in part."""
    nested: Any = 0
    for _ in range(6):
        nested = [nested] * 64
    began = time.thread_time()
    assert not hook._is_state({"replay": nested})
    assert time.thread_time() - began < 0.1


@pytest.mark.parametrize("phase", [Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER])
def test_state_that_goes_to_memory_inside_of_a_phase_is_part_of_it(
    process: Process, hook: CheckpointHook, phase: Phase
) -> None:
    """A fetch, a forward, a backward or an update that copies a model is what it is."""
    token = process.recorder.begin(phase)
    torch.save(MODEL.state_dict(), io.BytesIO())
    process.recorder.end(token)
    assert codes(process) == [phase]
    assert measure(hook) == {}


def checkpoints(process: Process) -> tuple[int, int]:
    """The number of checkpoint intervals in a step with all that was recorded, and their sum in milliseconds."""
    events = [*process.recorder.drain(), (UPDATE, 2**62, 2**62), (Phase.DATA, 2**62, 2**62 + 1)]
    (step,) = StepPartition(warmup_steps=0).feed(events)
    return sum(phase == Phase.CHECKPOINT for phase, _, _ in step.intervals), step.phases[Phase.CHECKPOINT] // 10**6


class Upload:
    """A file of an object store, that is sent when it is closed."""

    def __init__(self) -> None:
        self._size = 0

    def write(self, data: bytes) -> int:
        """Take some bytes."""
        self._size += len(data)
        return len(data)

    def flush(self) -> None:
        """Send nothing yet."""

    def tell(self) -> int:
        """Return how many bytes there are."""
        return self._size


def write_out(buffer: Any) -> None:
    """Take 50 ms, as a disk does, or an upload."""
    assert buffer.tell()
    time.sleep(0.05)


def save_in_function(make: Callable[[], Any] = io.BytesIO) -> None:
    """Lightning's way: the buffer is gone at the end."""
    buffer = make()
    torch.save(MODEL.state_dict(), buffer)
    write_out(buffer)


@pytest.mark.timed
@pytest.mark.parametrize("make", [io.BytesIO, Upload])
def test_writing_a_buffer_out_is_part_of_the_checkpoint(
    process: Process, hook: CheckpointHook, make: Callable[[], Any]
) -> None:
    """Until the buffer is gone, or until training goes on where it is kept; what follows is the script's again."""
    go_on(process)
    save_in_function(make)
    time.sleep(0.05)
    go_on(process)
    assert checkpoints(process) == (1, pytest.approx(50, abs=15))
    assert measure(hook)["training.checkpoint.duration", "save"] == [pytest.approx(0.05, abs=0.015)]

    go_on(process)
    kept = make()
    torch.save(MODEL.state_dict(), kept)
    write_out(kept)
    go_on(process)
    time.sleep(0.05)
    assert checkpoints(process) == (1, pytest.approx(50, abs=15))
    assert measure(hook)["training.checkpoint.duration", "save"] == [pytest.approx(0.05, abs=0.015)]
    del kept
    assert (codes(process), measure(hook)) == ([], {})


@pytest.mark.timed
def test_files_that_are_written_in_a_row_are_one_checkpoint(
    process: Process, hook: CheckpointHook, tmp_path: Path
) -> None:
    """Model, optimizer and the wait for peers between them are one save, until training goes on."""
    for _ in range(2):
        go_on(process)
        safetensors.torch.save_file(STATE, tmp_path / "model.safetensors")
        token = process.recorder.begin(Phase.COMMUNICATION)
        time.sleep(0.02)
        process.recorder.end(token)
        time.sleep(0.02)
        torch.save(OPTIMIZER.state_dict(), tmp_path / "optimizer.pt")
        save_in_function()
        go_on(process)
        assert checkpoints(process) == (1, pytest.approx(90, abs=30))
        assert measure(hook)["training.checkpoint.duration", "save"] == [pytest.approx(0.09, abs=0.03)]
    assert process.recorder.device is None


def test_a_report_between_two_files_loses_nothing_of_them(
    process: Process, hook: CheckpointHook, tmp_path: Path
) -> None:
    """The last save of a process is reported at its end; one that goes on after a report stays one interval."""
    go_on(process)
    torch.save(STATE, tmp_path / "model.pt")
    (first,) = measure(hook)["training.checkpoint.duration", "save"]
    assert measure(hook) == {}
    torch.save(STATE, tmp_path / "optimizer.pt")
    go_on(process)
    (rest,) = measure(hook)["training.checkpoint.duration", "save"]
    (covering,) = [end - begin for code, begin, end in process.recorder.drain()[-2:] if code == Phase.CHECKPOINT]
    assert first + rest == pytest.approx(covering * 1e-9)


def test_the_device_hears_of_each_edge_while_a_checkpoint_lasts(process: Process, hook: CheckpointHook) -> None:
    """Whoever notes edges goes on doing so, and is back in its place when training goes on."""
    edges: list[int] = []
    process.recorder.device = edges.append
    save_in_function()
    assert len(edges) == 3  # begin and end of the save, and the end of the buffer
    go_on(process)
    assert len(edges) == 5
    assert process.recorder.device == edges.append
    (_, started, _), (code, begin, end), _ = process.recorder.drain()
    assert (code, begin, end) == (Phase.CHECKPOINT, edges[0], edges[2])
    assert started == begin
    assert counts(hook) == {"save": 1}


def test_a_device_that_fails_while_a_checkpoint_lasts_is_given_up(process: Process, hook: CheckpointHook) -> None:
    """What its edge raises is no failure of the hook that stands before it."""

    def fail(_at: int) -> None:
        raise ArithmeticError

    save_in_function()
    hook._device = fail
    go_on(process)
    assert (process.recorder.device, process.recorder.failures, hook.installed) == (None, 1, True)


def test_a_save_on_another_thread_moves_the_last_save_and_nothing_else(
    process: Process, hook: CheckpointHook, tmp_path: Path
) -> None:
    """What another thread writes takes no time of the training thread."""
    torch.ones(1, requires_grad=True).sum().backward()
    process.recorder.drain()
    before = time.time()
    thread = threading.Thread(target=torch.save, args=(STATE, tmp_path / "file.pt"))
    thread.start()
    thread.join()
    assert codes(process) == []
    ((name, (when,)),) = measure(hook).items()
    assert name == ("training.checkpoint.last_save.timestamp",)
    assert before <= when <= time.time()


def test_a_background_save_counts_when_it_is_done(hook: CheckpointHook) -> None:
    """What async_save returns moves the last save when its upload succeeds, and not when it fails."""
    failing, working = Future[None](), Future[None]()
    hook._after("save", 0, 0, failing)
    failing.set_exception(OSError("disk full"))
    hook._after("save", 0, 0, working)
    assert measure(hook) == {}
    working.set_result(None)
    assert list(measure(hook)) == [("training.checkpoint.last_save.timestamp",)]
    assert measure(hook) == {}


@pytest.mark.parametrize("kind", ["upload", "staging"])
def test_who_waits_for_a_background_save_is_held_by_it(kind: str, process: Process, hook: CheckpointHook) -> None:
    """The wait is checkpoint, and of the save's duration; a save that is done leaves its future as it was."""
    part, upload = Future[int](), Future[int]()
    response = SimpleNamespace(staging_completion=part, upload_completion=upload)
    hook._after("save", 0, 0, response if kind == "staging" else part)
    with pytest.raises(TimeoutError):
        part.result(timeout=0.001)
    background = threading.Timer(0.05, part.set_result, [7])
    background.start()
    assert part.result() == 7
    background.join()
    assert codes(process) == [Phase.CHECKPOINT] * 2
    go_on(process)
    (seconds,) = measure(hook)["training.checkpoint.duration", "save"]
    assert 0.03 < seconds < 1
    assert "result" not in vars(part)


def test_an_error_of_a_save_reaches_the_script(process: Process, hook: CheckpointHook, tmp_path: Path) -> None:
    """The exception is the one of torch; its time is checkpoint, but no save is reported."""
    with pytest.raises(RuntimeError, match="does not exist"):
        torch.save(STATE, tmp_path / "missing" / "file.pt")
    assert codes(process) == [Phase.CHECKPOINT]
    assert measure(hook) == {}
    assert process.recorder.phase == Phase.OTHER


def test_a_compiled_function_is_compiled_as_before(hook: CheckpointHook, tmp_path: Path) -> None:
    """Saving inside a compiled function breaks its graph once, with or without laggard."""

    def saves(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        torch.save({"x": 1}, tmp_path / "file.pt")
        return x * 2

    def breaks() -> int:
        torch._dynamo.reset()
        return torch._dynamo.explain(saves)(torch.ones(2)).graph_break_count

    instrumented = breaks()
    hook.uninstall()
    assert instrumented == breaks()


def plain_step(start: int) -> list[Event]:
    """A step of 100 with 10 of data."""
    return [
        (Phase.DATA, start, start + 10),
        (Phase.FORWARD, start + 10, start + 20),
        (Phase.BACKWARD, start + 20, start + 30),
        (UPDATE, start + 30, start + 30),
    ]


def test_waits_inside_a_checkpoint_are_checkpoint() -> None:
    """A distributed save waits for peers; that is no communication of the step, and the phases still add up."""
    events: list[Event] = [
        *plain_step(0),
        (Phase.COMMUNICATION, 35, 38),
        (Phase.COMMUNICATION, 45, 55),
        (Phase.CHECKPOINT, 40, 60),
        (Phase.DATA, 100, 110),
    ]
    (step,) = StepPartition(warmup_steps=0).feed(events)
    assert step.phases[Phase.COMMUNICATION] == 3
    assert step.phases[Phase.CHECKPOINT] == 20
    assert sum(step.phases) == step.duration == 100


@pytest.mark.timed
def test_a_distributed_save_is_checkpoint_as_a_whole(process: Process, tmp_path: Path) -> None:
    """Its collectives are seen as they wait, and none of that time is left in the step's communication."""
    parameter = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    took = 0.0
    try:
        for number in range(4):
            (parameter * 2).sum().backward()
            optimizer.step()
            if number == 2:
                began = time.perf_counter()
                checkpoint.save(STATE, checkpoint_id=tmp_path / "distributed")
                took = time.perf_counter() - began
        events = process.recorder.drain()
    finally:
        _process.uninstrument()
        dist.destroy_process_group()
    assert Phase.COMMUNICATION in {code for code, _, _ in events}
    step = StepPartition(warmup_steps=0).feed(events)[2]
    assert step.phases[Phase.COMMUNICATION] == 0
    assert step.phases[Phase.CHECKPOINT] * 1e-9 == pytest.approx(took, abs=0.001)


def test_the_first_step_after_a_load_is_apart() -> None:
    """A load before the first step or eight steps later excludes the step that it delays, once."""
    partition = StepPartition(warmup_steps=0)
    events: list[Event] = [(RESUME, -5, -5), *(event for start in range(0, 900, 100) for event in plain_step(start))]
    events += [(Phase.CHECKPOINT, 850, 860), (RESUME, 860, 860), *plain_step(900), (Phase.DATA, 1000, 1010)]
    assert [step.excluded for step in partition.feed(events)] == ["resume", *[""] * 7, "resume", ""]


def test_a_save_after_an_evaluation_is_a_checkpoint() -> None:
    """Between the evaluation's last batch and the next training batch the save keeps its own phase."""
    events: list[Event] = [
        *plain_step(0),
        (Phase.DATA, 100, 105),
        (FIRST_BATCH, 105, 105),
        (EVALUATION_FORWARD, 105, 130),
        (Phase.DATA, 130, 131),
        (EXHAUSTED, 131, 131),
        (Phase.CHECKPOINT, 140, 170),
        *plain_step(200),
        (Phase.DATA, 300, 310),
    ]
    _, step = StepPartition(warmup_steps=0).feed(events)
    assert step.phases[Phase.CHECKPOINT] == 30
    assert step.phases[Phase.EVALUATION] == 70
    # The first batch was the evaluation's, whose time is not the step's own.
    assert step.excluded == ""
