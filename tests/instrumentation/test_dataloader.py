"""Data workers: what they use, how long they need, what waits; and that nothing of them hides the rank's end."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, IterableDataset

from laggard import statefile
from laggard._hooks.prefetch import PrefetchHook, _Usage
from laggard._process import Process
from laggard._recorder import FIRST_BATCH
from laggard.conventions import Phase
from tests.support.launch import PROGRAMS, Launcher
from tests.support.measured import measure
from tests.support.otlp import Receiver

PROGRAM = PROGRAMS / "resources.py"
#: Batches of two epochs, the first of a third and the four that two workers make ahead.
BATCHES = 12 + 12 + 1 + 4


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
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


def test_a_loader_without_workers_has_none_and_nothing_else(process: Process) -> None:
    """No queue, no worker's memory, no fetch duration: the data phase says it all. Every epoch has a first batch."""
    hooks = {hook.name: hook for hook in process._hooks}
    assert measure(hooks["prefetch"]) == {}
    loader = DataLoader(Stream(), batch_size=2)
    for _ in range(2):
        assert len(list(loader)) == 3
        assert [code for code, _, _ in process.recorder.take()] == [Phase.DATA, FIRST_BATCH, *[Phase.DATA] * 3]
    assert measure(hooks["prefetch"]) == {("training.dataloader.workers",): [0]}
    assert measure(hooks["fetch"]) == {}


def test_usage_of_a_process_is_read_from_proc(process: Process, tmp_path: Path) -> None:
    """Whatever a worker calls itself the fields are found; a zombie and one that is gone are left out."""
    fields = "S 1 1 1 0 -1 64 10 0 3 0 150 50 7 8 20 0 1 0 777 9000 300 0 1 1 1 0 0 0 0 0 0 0 0 0 17 1 0 0 42 0 0"
    for pid, text in ((4, fields), (5, "Z" + fields[1:])):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (pt) data (x) {text}\n")
    hook = PrefetchHook(process, tmp_path)
    page = os.sysconf("SC_PAGE_SIZE")
    assert hook._read_usage([4, 5, 6]) == {4: _Usage(777, 200, 42, 300 * page)}
    assert hook._read_usage([os.getpid()]) == {}
    assert PrefetchHook(process)._read_usage([os.getpid()])[os.getpid()].cpu >= int(time.process_time() * 100) - 5
