"""Where the script's code is on the thread that trains: what it is called, and when it has returned."""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from laggard import _script
from laggard._script import Script
from laggard._steps import Step
from laggard.shared import statefile
from laggard.shared.phases import Phase, RankState
from tests.support.launch import PROGRAMS, Launcher
from tests.support.waiting import until

_SECOND = 1_000_000_000
#: A program that a package brings, as a pool's worker.
_WORKER = str(Path(pytest.__file__).with_name("__main__.py"))


def step(seconds: float, ago: float = 0.0) -> Step:
    """A step by its duration, and by how long ago it ended, in seconds."""
    ended = time.perf_counter_ns() - round(ago * _SECOND)
    return Step(1, ended - round(seconds * _SECOND), ended, (0,) * len(Phase), ())


def function(path: Path) -> Any:
    """A function of a script there: it says that it runs, and returns when it is let."""
    path.write_text("def train(runs, leave):\n    runs.set()\n    leave.wait(60)\n    return True\n")
    names: dict[str, Any] = {}
    exec(compile(path.read_text(), path, "exec"), names)
    return names["train"]


def test_training_is_over_where_its_code_has_returned_to_a_pool(tmp_path: Path) -> None:
    """While the code is at work it is not, however long no step ends, nor before a pause that steps may have."""
    train = function(tmp_path / "train.py")
    with ThreadPoolExecutor(1) as pool:
        thread = pool.submit(threading.get_ident).result()
        runs, leave = threading.Event(), threading.Event()
        result = pool.submit(train, runs, leave)
        assert runs.wait(30)
        script = Script(thread)
        script.train(thread, [step(1.0, ago=60.0)])
        assert script.code is train.__code__
        assert not script.returned(thread)
        leave.set()
        assert result.result(30)
        assert script.returned(thread)
        script.train(thread, [step(40.0, ago=60.0)])
        assert not script.returned(thread), "a pool may call the code for each step"
        script.train(thread, [step(1.0, ago=5.0)])
        assert not script.returned(thread)
    script = Script(thread)
    script.train(thread, [step(1.0, ago=60.0)])
    assert script.returned(thread), "the thread is gone"


@pytest.mark.parametrize(
    ("program", "code", "workload"),
    [
        (("/jobs/train.py", ""), "tasks.py", "train"),
        ((_WORKER, _WORKER), "tasks.py", "tasks"),  # Ray, Celery
        ((_WORKER, "sweep.py"), "tasks.py", "sweep"),  # joblib
        ((_WORKER, _WORKER), "<dynamic-code>", "pytest"),
        ((None, _WORKER), "/tmp/ipykernel_7/1.py", "tune"),
    ],
)
def test_a_pool_of_processes_is_no_workload(
    program: tuple[str | None, str], code: str, workload: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is trained in one pool's workers, or in notebooks, would be compared with each other."""
    for name in ("tasks.py", "sweep.py"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("__main__.__file__", program[0], raising=False)
    monkeypatch.setattr(sys, "argv", [program[1]])
    monkeypatch.setenv("JPY_SESSION_NAME", "/notebooks/tune.ipynb")
    assert _script.name(compile("", code, "exec")) == workload


def test_a_rank_has_finished_while_a_pool_has_nothing_to_train(launcher: Launcher, tmp_path: Path) -> None:
    """Its last step is counted, nobody waits for it, and with the next task it goes on."""
    process = launcher.fork(PROGRAMS / "pool.py", tmp_path)

    def stands() -> tuple[RankState, int] | None:
        for path in launcher.state_directory.glob(f"*{statefile.SUFFIX}"):
            file = statefile.read(path)
            return file.state, file.steps
        return None

    until(lambda: stands() == (RankState.FINISHED, 10), "the rank has not finished")
    (tmp_path / "again").touch()
    until(lambda: stands() == (RankState.RUNNING, 19), "the rank does not go on")
    (tmp_path / "end").touch()
    assert process.wait(30) == 0
    assert stands() == (RankState.FINISHED, 20)
