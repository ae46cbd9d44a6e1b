"""The dump of a stalled rank: written once a stall, not while the rank moves, and gone when it goes on."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from laggard import _flight_recorder, _identity, _process
from laggard._flight_recorder import PAUSE_SECONDS, STALL_SECONDS, HangDump
from laggard.shared import dumps, statefile
from laggard.shared.phases import Phase, RankState

DOCUMENT = '{"entries":[]}'


class Rank:
    """A rank whose clock and signs of progress the test moves."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self.now = 1000.0
        self.asked = 0
        monkeypatch.setenv("LAGGARD_STATE_DIR", str(directory))
        monkeypatch.setenv("LAGGARD_RUN", "r")
        monkeypatch.setattr(_flight_recorder.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(_flight_recorder, "_documents", self._documents)
        self.identity = _identity.from_environment(3, 4)
        self.writer = statefile.StateWriter(directory, self.identity.facts(0))
        self.words = self.writer.words
        self.words[statefile.STATE] = RankState.RUNNING
        self.hook = HangDump(_process.Process())
        self.hook.installed = True
        self.hook.recorder.words = self.words

    def _documents(self) -> list[str]:
        self.asked += 1
        return [DOCUMENT]

    def steps(self, seconds: float) -> None:
        """End a step that took so long."""
        step: Any = SimpleNamespace(duration=int(seconds * 1e9))
        self.hook.steps_ended([step])

    def later(self, seconds: float) -> list[Path]:
        """Let time pass, drain, and return the dumps that are there."""
        self.now += seconds
        report: Any = SimpleNamespace(identity=self.identity)
        self.hook.report(report)
        return list(self.directory.glob(f"{dumps.PREFIX}*"))


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return rank 3 of run r, with steps of 0.1 s."""
    made = Rank(tmp_path, monkeypatch)
    made.steps(0.1)
    made.later(0)
    yield made
    made.hook.recorder.words = None
    made.writer.close()


def test_a_dump_is_written_once_a_stall_and_removed_when_the_rank_goes_on(rank: Rank) -> None:
    """Not before the limit; under the name that the exporter makes of the state file."""
    assert rank.later(STALL_SECONDS) == []
    assert rank.asked == 0
    (path,) = rank.later(0.1)
    file = statefile.read(rank.writer.path)
    word = statefile.pack(file.phase, file.phase_entered_ns)
    assert path.name == dumps.file_name("r", 3, file.facts.start_boottime_ns, file.progress, word)
    assert json.loads(path.read_text()) == {"dumps": [json.loads(DOCUMENT)]}
    assert rank.later(1000) == [path]
    assert rank.asked == 1
    rank.words[statefile.PROGRESS] += 1
    assert rank.later(0) == []
    assert len(rank.later(STALL_SECONDS + 1)) == 1
    assert rank.asked == 2


def test_a_rank_that_moves_is_never_asked(rank: Rank) -> None:
    """A phase is a sign of progress like any other."""
    for number in range(100):
        rank.words[statefile.PHASE] = statefile.pack(Phase.FORWARD, number)
        assert rank.later(STALL_SECONDS) == []
    assert rank.asked == 0


@pytest.mark.parametrize(
    ("phase", "step", "limit"),
    [
        (Phase.FORWARD, 0.1, STALL_SECONDS),
        (Phase.FORWARD, 3.0, 15.0),
        (Phase.CHECKPOINT, 0.1, PAUSE_SECONDS),
        (Phase.EVALUATION, 0.1, PAUSE_SECONDS),
        (Phase.FORWARD, 0.0, PAUSE_SECONDS),
    ],
)
def test_what_takes_long_by_itself_has_its_time(phase: Phase, step: float, limit: float, rank: Rank) -> None:
    """Five of the longest of the last steps; a minute for a checkpoint, an evaluation and a start without steps."""
    if step:
        rank.steps(step)
    else:
        rank.hook._durations.clear()
    rank.words[statefile.PHASE] = statefile.pack(phase, 1)
    rank.later(0)
    assert rank.later(limit) == []
    assert len(rank.later(0.1)) == 1


def test_a_rank_that_has_finished_leaves_none(rank: Rank) -> None:
    """It stands still, and nothing is wrong."""
    rank.words[statefile.STATE] = RankState.FINISHED
    assert rank.later(1000) == []
    assert rank.later(1000) == []


def test_the_dump_of_a_killed_process_of_the_same_rank_is_replaced(rank: Rank) -> None:
    """Another rank's stays."""
    old, other = (rank.directory / dumps.file_name("r", number, 1, 2, 3) for number in (3, 13))
    for path in (old, other):
        path.touch()
    assert {path.name for path in rank.later(STALL_SECONDS + 1)} > {other.name}
    assert not old.exists()


def test_nothing_raises_into_training(rank: Rank, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """A folder that is gone costs a warning, a torch without a recorder nothing, an endless dump is not written."""
    monkeypatch.setattr(_flight_recorder, "_documents", list)
    assert rank.later(STALL_SECONDS + 1) == []
    monkeypatch.setattr(_flight_recorder, "_documents", lambda: ["x" * (dumps.MAX_BYTES + 1)])
    rank.words[statefile.PROGRESS] += 1
    rank.later(0)
    assert rank.later(STALL_SECONDS + 1) == []
    assert "too large" in caplog.text
    monkeypatch.setattr(_flight_recorder, "_documents", lambda: [DOCUMENT])
    monkeypatch.setenv("LAGGARD_STATE_DIR", str(rank.directory / "gone"))
    rank.words[statefile.PROGRESS] += 1
    rank.later(0)
    rank.later(STALL_SECONDS + 1)
    assert "cannot be written" in caplog.text
    assert rank.hook.installed


def test_uninstalled_it_leaves_nothing_and_a_fork_leaves_its_parents(rank: Rank) -> None:
    """A forked child does not remove the file of its parent."""
    (path,) = rank.later(STALL_SECONDS + 1)
    rank.hook.forked()
    rank.hook.uninstall()
    assert path.exists()
    path.unlink()
    rank.hook = HangDump(_process.Process())
    rank.hook.installed = True
    rank.hook.recorder.words = rank.words
    rank.steps(0.1)
    rank.later(0)
    assert rank.later(STALL_SECONDS + 1) == [path]
    rank.hook.uninstall()
    assert not path.exists()


def test_file_names_fit_and_end_with_the_rank() -> None:
    """The longest run's name too, as `laggard hang` needs it."""
    identity = replace(_identity.from_environment(7, 8), run="é" * 64)
    name = dumps.file_name(identity.run, 7, 2**63, 2**64 - 1, 2**64 - 1)
    assert len(name.encode()) <= 255 - len(".tmp")
    assert name.endswith("-7.json")


EMPTY, FULL = '{"version":"2.10"}', '{"version":"2.10","entries":[1]}'


@pytest.mark.parametrize(
    ("described", "old", "shared", "expected"),
    [
        ("gloo", None, {"gloo": FULL}, [FULL]),
        ("cpu:gloo,cuda:nccl", EMPTY, {"gloo": FULL, "nccl": FULL}, [FULL, FULL]),
        ("cpu:gloo,cuda:nccl", EMPTY, {"gloo": EMPTY, "nccl": FULL}, [FULL]),
        ("nccl", FULL, {"nccl": EMPTY}, [FULL]),
        ("nccl", None, {"nccl": FULL}, [FULL]),
        ("nccl", EMPTY, {"nccl": EMPTY}, [EMPTY, EMPTY]),
        ("cpu:gloo,cuda:nccl", OSError("no device"), {"gloo": FULL, "nccl": FULL}, [FULL, FULL]),
        ("gloo", FULL, {"gloo": EMPTY}, [EMPTY]),
    ],
)
def test_each_recorder_is_asked_where_it_is(
    described: str, old: Any, shared: dict[str, str], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is empty or fails loses nothing of another, and NCCL's is not touched where nobody uses it."""

    def ask_old(**_: Any) -> bytes:
        if isinstance(old, Exception):
            raise old
        return old.encode()

    def ask(*, backend: str, **_: Any) -> bytes:
        return shared[backend].encode()

    ask.__doc__ = "_dump_fr_trace_json(onlyActive: bool | None = None, backend: str = 'gloo') -> bytes"
    native = SimpleNamespace(_dump_fr_trace_json=ask)
    if old is not None:
        native._dump_nccl_trace_json = ask_old
    world = SimpleNamespace(pg_map={0: (described,)})
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", native)
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", SimpleNamespace(_world=world))
    assert _flight_recorder._documents() == expected


def test_a_recorder_has_the_name_of_the_backend_that_the_group_really_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch 2.15 makes nccl2 where nccl is asked for, and records its calls under that name."""

    def ask(*, backend: str, **_: Any) -> bytes:
        return (FULL if backend == "nccl2" else EMPTY).encode()

    ask.__doc__ = "_dump_fr_trace_json(onlyActive: bool | None = None, backend: str = 'gloo') -> bytes"
    names = {"cpu": "gloo", "cuda": "nccl2"}
    backend = Mock(side_effect=lambda device: SimpleNamespace(name=lambda: names[device]))
    group = Mock(_device_types=list(names), _get_backend=backend)
    world = SimpleNamespace(pg_map={group: ("cpu:gloo,cuda:nccl",)})
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", SimpleNamespace(_dump_fr_trace_json=ask))
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", SimpleNamespace(_world=world))
    assert _flight_recorder._documents() == [FULL]


def test_a_torch_with_one_recorder_for_all_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 2.15 it has no backend to choose."""
    asked = Mock(return_value=FULL.encode(), __doc__="_dump_fr_trace_json(onlyActive: bool | None = None) -> bytes")
    native = SimpleNamespace(_dump_fr_trace_json=asked)
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", native)
    world = SimpleNamespace(pg_map={0: ("cpu:gloo,cuda:gloo",), 1: ("gloo",)})
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", SimpleNamespace(_world=world))
    assert _flight_recorder._documents() == [FULL]
    asked.assert_called_once_with(includeCollectives=True, onlyActive=False)
