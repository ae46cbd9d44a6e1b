"""Data workers: what they use, how long they need, what waits; and that nothing of them hides the rank's end."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler, TensorDataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from laggard._events import CODE_BITS, ENDING, EXHAUSTED, FIRST_BATCH, IDENTITY_SHIFT, ITERATOR
from laggard._hooks.worker_fetch import WorkerFetchHook, _timed
from laggard._hooks.workers import WorkersHook
from laggard._partition import StepPartition
from laggard._process import Process
from laggard.shared import statefile
from laggard.shared.phases import Phase
from tests.instrumentation.inside import hook_named, instrumented
from tests.support.cases import usual
from tests.support.launch import PROGRAMS, Launcher
from tests.support.measured import measure
from tests.support.otlp import Receiver

PROGRAM = PROGRAMS / "resources.py"
#: Batches of two epochs, the first of a third and the four that two workers make ahead.
BATCHES = 12 + 12 + 1 + 4


@pytest.mark.timed
@pytest.mark.parametrize("context", usual(["fork", "spawn", "forkserver"], "fork", "spawn"))
def test_what_a_rank_uses_beside_compute(context: str, launcher: Launcher, receiver: Receiver, tmp_path: Path) -> None:
    """Every batch of every worker, every checkpoint and every collection is there, as long as the script says."""
    printed = launcher.run("python", PROGRAM, context, tmp_path, **receiver.environment, LAGGARD_TRACE_EVERY="16")
    script: dict[str, Any] = json.loads(printed.splitlines()[-1])
    value = receiver.value

    fetch = value("training.dataloader.fetch.duration")
    assert fetch.count == BATCHES
    assert 0.02 <= fetch.mean < 0.03
    assert value("training.dataloader.workers") == 2
    assert value("training.dataloader.queue.length") == 4
    assert 0 < value("training.dataloader.worker.cpu.time") < 60
    counts_io = Path("/proc/sys/kernel/task_delayacct").read_text().strip() == "1"
    assert bool(receiver.series("training.dataloader.worker.io_wait.time")) == counts_io
    assert value("training.memory.usage", training__memory__kind="worker_rss") > 2 * 50e6
    resident = value("training.memory.usage", training__memory__kind="host_rss")
    assert resident == pytest.approx(script["resident"], rel=0.1)

    for operation in ("save", "load"):
        checkpoint = value("training.checkpoint.duration", training__checkpoint__operation=operation)
        assert checkpoint.count == script["counts"][operation]
        assert checkpoint.sum == pytest.approx(script[operation], abs=0.005)
    phase = value("training.phase.duration", training__phase="checkpoint")
    assert phase.sum == pytest.approx(script["inside"], abs=0.005)
    assert value("training.checkpoint.last_save.timestamp") == pytest.approx(
        max(file.stat().st_mtime for file in tmp_path.glob("async/*")), abs=0.5
    )
    assert value("training.steps.excluded", training__reason="resume") == 1
    assert value("training.steps.excluded", training__reason="first_batch") == 1

    collections = {
        dict(labels)["training.gc.generation"]: count
        for labels, count in receiver.series("training.gc.collections").items()
    }
    assert collections == {"0": 3, "1": 2, "2": 1}
    full = value("training.gc.duration", training__gc__generation="2")
    assert full == pytest.approx(script["gc"], rel=0.1)
    (step,) = [span for span in receiver.spans if span.name == "training.step"]
    (inside,) = [a.value.double_value for a in step.attributes if a.key == "training.step.gc"]
    assert inside == pytest.approx(full, abs=1e-6)
    assert value("training.telemetry.dropped", training__reason="hook_failed") == 0


def test_workers_do_not_keep_a_killed_rank_alive(launcher: Launcher, tmp_path: Path) -> None:
    """The moment the rank is gone its state file says so, while its forked workers still run."""
    process = launcher.start("python", PROGRAM, "fork", tmp_path, "wait")
    assert process.stdout is not None
    workers = json.loads(process.stdout.readline())["workers"]
    (path,) = launcher.state_directory.iterdir()
    assert statefile.read(path).alive
    process.kill()
    process.wait()
    assert [pid for pid in workers if Path(f"/proc/{pid}").exists()] == workers
    assert not statefile.read(path).alive
    for pid in workers:
        os.kill(pid, signal.SIGKILL)


class Stream(IterableDataset[int]):
    """Five numbers."""

    def __iter__(self) -> Any:
        return iter(range(5))


class SlowOrder(Sampler[int]):
    """Two indices, and 0.2 s for a new iterator to have them, as other loaders need to start their workers."""

    def __iter__(self) -> Iterator[int]:
        time.sleep(0.2)
        return iter([0, 1])


def test_a_loader_without_workers_has_none_and_nothing_else(process: Process) -> None:
    """No queue, no worker's memory, no fetch duration: the data phase says it all. Every epoch has a first batch."""
    hooks = {hook.name: hook for hook in process._parts}
    assert measure(hooks["workers"]) == {}
    loader = DataLoader(Stream(), batch_size=2)
    for _ in range(2):
        assert len(list(loader)) == 3
        codes = [code & CODE_BITS for code, _, _ in process.recorder.drain()]
        assert codes == [ITERATOR, Phase.DATA, FIRST_BATCH, *[Phase.DATA] * 3, EXHAUSTED]
    assert measure(hooks["workers"]) == {("training.dataloader.workers",): [0]}
    assert measure(hooks["worker_fetch"]) == {}


def test_an_iterator_begins_where_it_is_made_whoever_makes_it(process: Process) -> None:
    """Fastai's loader makes torch's iterators itself: their workers start in the first fetch too, and once."""
    loader = DataLoader(Stream(), num_workers=1)
    numbers: set[int] = set()
    for make in (iter, _MultiProcessingDataLoaderIter):
        assert len(list(make(loader))) == 5
        events = process.recorder.drain()
        assert [code & CODE_BITS for code, _, _ in events] == [
            ITERATOR,
            Phase.DATA,
            FIRST_BATCH,
            *[Phase.DATA] * 5,
            EXHAUSTED,
        ]
        numbers.update(code >> IDENTITY_SHIFT for code, _, _ in events if code & CODE_BITS in (ITERATOR, Phase.DATA))
    assert numbers == {1}


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.parametrize("name", ["torch.utils.data.DataLoader", "torchdata.stateful_dataloader.StatefulDataLoader"])
def test_an_iterator_that_is_dropped_stops_its_workers_as_data(name: str, process: Process) -> None:
    """As with a limit of batches in an epoch. That of an evaluation is left to the evaluation's phase."""
    package, _, loader = name.rpartition(".")
    batches = iter(getattr(pytest.importorskip(package), loader)(Stream(), num_workers=1))
    next(batches)
    del batches
    assert [code & CODE_BITS for code, _, _ in process.recorder.drain()] == [ITERATOR, Phase.DATA, FIRST_BATCH, ENDING]


def test_a_list_of_batches_tells_one_loader_from_another(process: Process) -> None:
    """An iterator has one number when it is made and in its fetches, and another loader's has another."""
    indices = [[0], [1]]
    first, second = (DataLoader(TensorDataset(torch.ones(2, 1)), batch_sampler=indices.copy()) for _ in range(2))
    numbers: list[int] = []
    for loader in (first, second):
        assert len(list(loader)) == 2
        (number,) = {code >> IDENTITY_SHIFT for code, _, _ in process.recorder.drain() if code >> IDENTITY_SHIFT}
        numbers.append(number)
    assert numbers == [1, 2]


class Workers:
    """Stands for an iterator with workers: two processes of a made-up machine and what waits in its queues."""

    def __init__(self) -> None:
        self._workers = [SimpleNamespace(pid=pid) for pid in (4, 6)]
        self._worker_result_queue = SimpleNamespace(qsize=lambda: 3)
        self._data_queue = SimpleNamespace(queue=[1, 2])  # what the thread that pins memory has made ready
        self._task_info = {7: (0,), 8: (1, "arrived before its turn"), 9: (0,)}


def write_stat(proc: Path, pid: int, *, state: str, user: int, io_wait: int, started: int = 777) -> None:
    """One process of the machine, by the fields of proc(5)."""
    head = f"{state} 1 1 1 0 -1 64 10 0 3 0 {user} 50 7 8 20 0 1 0 {started} 9000 300"
    (proc / str(pid)).mkdir(exist_ok=True)
    (proc / str(pid) / "stat").write_text(f"{pid} (pt) data (x) {head} 0 1 1 1{' 0' * 9} 17 1 0 0 {io_wait} 0 0\n")


def test_workers_are_watched_until_their_iterator_is_gone(process: Process, tmp_path: Path) -> None:
    """What waits in all queues counts; times count on from the last look, also when a number is used again."""
    (tmp_path / "sys/kernel").mkdir(parents=True)
    (tmp_path / "sys/kernel/task_delayacct").write_text("1\n")
    tick, resident = 1 / os.sysconf("SC_CLK_TCK"), 300 * os.sysconf("SC_PAGE_SIZE")
    hook = WorkersHook(process, tmp_path)
    hook.installed = True
    iterator = Workers()
    hook._iterator_made(iterator)
    hook._started(iterator)
    hook._started(iterator)  # the next epoch of the same workers

    def expected(workers: int, queue: int, cpu: int, io_wait: int) -> dict[tuple[str, ...], Any]:
        return {
            ("training.dataloader.workers",): [workers],
            ("training.dataloader.queue.length",): [queue],
            ("training.memory.usage", "worker_rss"): [workers * resident],
            ("training.dataloader.worker.cpu.time",): [pytest.approx(cpu * tick)],
            ("training.dataloader.worker.io_wait.time",): [pytest.approx(io_wait * tick)],
        }

    write_stat(tmp_path, 4, state="S", user=100, io_wait=10)
    write_stat(tmp_path, 6, state="R", user=200, io_wait=0)
    assert measure(hook) == expected(2, 6, 150 + 250, 10)
    write_stat(tmp_path, 4, state="S", user=130, io_wait=15)
    write_stat(tmp_path, 6, state="R", user=5, io_wait=0, started=999)
    assert measure(hook) == expected(2, 6, 30 + 55, 5)
    write_stat(tmp_path, 6, state="Z", user=500, io_wait=0, started=999)
    assert measure(hook) == expected(1, 6, 0, 0)
    del iterator
    assert measure(hook) == expected(0, 0, 0, 0)


def test_the_drain_does_not_keep_an_iterator(process: Process) -> None:
    """When the script drops its iterator its workers end at once, and nothing of it is held; nor at its end."""
    (hook,) = [hook for hook in process._parts if isinstance(hook, WorkersHook)]
    loader = DataLoader(Stream(), num_workers=1, multiprocessing_context="spawn")
    ended = iter(loader)
    assert len(list(ended)) == 5
    assert measure(hook)["training.dataloader.workers",] == [0]
    assert measure(hook)["training.dataloader.queue.length",] == [0]
    del ended
    batches = iter(loader)
    ((worker,),) = [loader.workers for loader in hook._loaders.values()]
    assert next(batches) is not None  # torch waits for five seconds only until a worker that still starts has ended
    assert worker.is_alive()
    del batches
    assert hook._loaders == {}
    assert not worker.is_alive()


def test_a_full_pipe_holds_no_worker_and_a_batch_that_failed_is_none(process: Process) -> None:
    """Durations that nobody takes are left out; an error of the data set passes through."""
    (hook,) = [hook for hook in process._parts if isinstance(hook, WorkerFetchHook)]
    hook._open_pipe(None)
    writer = hook._writer
    assert writer is not None

    def fetch(_fetcher: Any, index: int) -> int:
        if index < 0:
            raise KeyError(index)
        return index

    timed = _timed(fetch, writer)
    with pytest.raises(KeyError):
        timed(None, -1)
    assert [timed(None, index) for index in range(10_000)] == list(range(10_000))
    reported = [len(measure(hook).get(("training.dataloader.fetch.duration",), [])) for _ in range(9)]
    assert reported == [1024] * 8 + [0]


def test_a_forked_rank_has_a_pipe_of_its_own(process: Process) -> None:
    """What workers of a forked child write is the child's, and the child does not take its parent's."""
    (hook,) = [hook for hook in process._parts if isinstance(hook, WorkerFetchHook)]
    hook._open_pipe(None)
    parents = hook._reader
    hook._owner = -1  # as seen from a child
    assert measure(hook) == {}
    hook._open_pipe(None)
    assert hook._reader is not parents
    assert hook._owner == os.getpid()


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.parametrize("first", ["laggard", "torchdata"])
def test_a_stateful_loader_is_watched_as_torchs_own_is(
    first: str, context: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers, queue and fetch durations of torchdata's loader are there, whichever was imported first."""
    pytest.importorskip("torchdata")
    if first == "laggard":
        for name in [name for name in sys.modules if name.startswith("torchdata.stateful_dataloader")]:
            monkeypatch.delitem(sys.modules, name)
    else:
        importlib.import_module("torchdata.stateful_dataloader")
    with instrumented() as process:
        package = importlib.import_module("torchdata.stateful_dataloader")
        batches = iter(package.StatefulDataLoader(Stream(), num_workers=1, multiprocessing_context=context))
        assert next(batches) == 0
        workers, fetch = (hook_named(process, name) for name in ("workers", "worker_fetch"))
        deadline = time.monotonic() + 10
        while measure(workers)["training.dataloader.queue.length",] != [2]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert measure(workers)["training.dataloader.workers",] == [1]
        assert len(list(batches)) == 4
        durations = measure(fetch)["training.dataloader.fetch.duration",]
        # The worker also looks once for the batch that is not there.
        assert len(durations) in (5, 6)
        assert [code & CODE_BITS for code, _, _ in process.recorder.drain()] == [
            ITERATOR,
            Phase.DATA,
            FIRST_BATCH,
            *[Phase.DATA] * 5,
            EXHAUSTED,
        ]
        del batches
    module = sys.modules["torchdata.stateful_dataloader.stateful_dataloader"]
    worker = sys.modules["torchdata.stateful_dataloader.worker"]
    assert module._worker_loop is worker._worker_loop


def test_an_iterator_is_made_for_the_loop_that_it_serves(process: Process) -> None:
    """To make one after an evaluation is training data, and before one it is evaluation, as the script's clock says."""
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    took: list[float] = []

    def batches(loader: DataLoader[tuple[torch.Tensor, ...]]) -> Iterator[tuple[torch.Tensor, ...]]:
        began = time.perf_counter()
        iterator = iter(loader)
        took.append(time.perf_counter() - began)
        yield from iterator

    training, evaluation = (
        DataLoader(TensorDataset(torch.ones(2, 1)), batch_size=None, sampler=SlowOrder()) for _ in range(2)
    )
    for _ in range(2):
        for (batch,) in batches(training):
            model(batch).sum().backward()
            optimizer.step()
        with torch.no_grad():
            for (batch,) in batches(evaluation):
                model.eval()(batch)
            model.train()
    partition = StepPartition(warmup_steps=0)
    steps = [*partition.feed(process.recorder.drain()), *partition.finish()]
    seconds = [{phase: step.phases[phase] * 1e-9 for phase in (Phase.DATA, Phase.EVALUATION)} for step in steps]
    assert [round(each[Phase.EVALUATION] / took[1], 1) for each in seconds] == [0, 0, 1, 0]
    assert [round(each[Phase.DATA] / took[2], 1) for each in seconds[1:]] == [0, 1, 0]
    assert round(steps[2].first_batch * 1e-9 / took[2], 1) == 1


@pytest.mark.skipif(torch.accelerator.is_available(), reason="then memory is pinned and torch warns of nothing")
def test_a_warning_of_a_loader_names_the_line_that_torch_means(process: Process) -> None:
    """What torch warns of while it makes an iterator is said to come from torch's file, as without laggard."""
    assert hook_named(process, "workers").installed
    with pytest.warns(UserWarning, match="pin_memory") as warned:
        assert len(list(DataLoader(Stream(), pin_memory=True))) == 5
    assert [warning.filename for warning in warned] == [sys.modules["torch.utils.data.dataloader"].__file__]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_worker_that_cannot_start_shows_frames_of_torch_alone(process: Process) -> None:
    """The traceback of a data set that cannot be pickled is the one that it is without laggard."""
    if process.recorder.native is None:
        pytest.skip("where nothing is compiled, wrappers have frames")
    loader = DataLoader(
        [lambda: 0],  # pyright: ignore[reportArgumentType] - a list will do
        num_workers=1,
        multiprocessing_context="spawn",
    )
    with pytest.raises((AttributeError, pickle.PicklingError)) as raised:
        iter(loader)
    assert not [str(entry.path) for entry in raised.traceback if "laggard" in Path(entry.path).parts]
    assert hook_named(process, "worker_fetch").installed


def test_usage_of_a_process_is_read_from_proc(process: Process) -> None:
    """On the real machine the fields are where they are looked for."""
    usage = WorkersHook(process)._read_usage([os.getpid()])[os.getpid()]
    ticks = os.sysconf("SC_CLK_TCK")
    assert usage.cpu == pytest.approx(time.process_time() * ticks, abs=0.2 * ticks)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    assert usage.resident == pytest.approx(pages * os.sysconf("SC_PAGE_SIZE"), rel=0.1)
