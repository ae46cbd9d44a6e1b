"""State files: whole, honest about life and death, and safe to read whoever wrote them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import resource
import signal
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from laggard.shared import statefile
from laggard.shared.phases import Phase, RankState
from laggard.shared.statefile import EndedBy, Ending, StateFileError, StateWriter
from tests.support.facts import FACTS


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[StateWriter]:
    """A state file of this process."""
    made = StateWriter(tmp_path / "state", FACTS)
    yield made
    made.close(unlink=True)


def in_child(action: Callable[[], object]) -> int:
    """Run a function in a forked child and return its pid; the child ends when the function does."""
    pid = os.fork()
    if pid == 0:
        action()
        os._exit(0)
    return pid


def test_everything_written_is_read(writer: StateWriter) -> None:
    """Facts, live words and process groups come back exactly."""
    words = writer.words
    words[statefile.STATE] = RankState.RUNNING
    words[statefile.PHASE] = statefile.pack(Phase.BACKWARD, 2**55 + 17)
    words[statefile.PROGRESS] = 5
    words[statefile.STEPS] = 6
    words[statefile.LAST_STEP] = 7
    words[statefile.GROUPS] = 0xABC
    words[statefile.GROUPS + 1] = statefile.pack(3, 40)
    words[statefile.GROUPS + 2] = 39
    read = statefile.read(writer.path)
    assert read.facts == FACTS
    assert (read.state, read.phase, read.phase_entered_ns) == (RankState.RUNNING, Phase.BACKWARD, 2**55 + 17)
    assert (read.progress, read.steps, read.last_step_ns) == (5, 6, 7)
    assert read.groups == (statefile.Group(identity=0xABC, operation=3, started=40, finished=39),)


def test_how_a_process_ended_is_kept(writer: StateWriter) -> None:
    """An exit code, a signal, or the class of an exception; in a file of an older version it is unknown."""
    assert statefile.read(writer.path).ending == Ending()
    for ending in (
        Ending(EndedBy.EXCEPTION, 1, "torch.OutOfMemoryError"),
        Ending(EndedBy.EXIT, 3),
        Ending(EndedBy.SIGNAL, signal.SIGTERM),
    ):
        writer.write_ending(ending)
        assert statefile.read(writer.path).ending == ending


def test_facts_can_be_replaced_and_long_names_are_cut_inside_no_character(writer: StateWriter) -> None:
    """A run that becomes known later is written; a name of any length still fits and still is UTF-8."""
    writer.write_facts(dataclasses.replace(FACTS, run="ü" * 100, metrics_port=1))
    read = statefile.read(writer.path).facts
    assert read.run == "ü" * 64
    assert read.metrics_port == 1


def test_a_name_in_a_file_that_anybody_wrote_is_one_line(writer: StateWriter) -> None:
    """What a terminal or a page would obey is a blank, whatever the bytes of the file are."""
    writer.write_facts(dataclasses.replace(FACTS, run="forged"))
    content = writer.path.read_bytes()
    assert content.count(b"forged") == 1
    path = writer.path.with_name("forged.state")
    path.write_bytes(content.replace(b"forged", b"f\nr\x1b[2"))
    assert statefile.read(path).facts.run == "f r [2"


def test_alive_is_the_lock_through_stop_and_kill(tmp_path: Path) -> None:
    """A stopped process is alive, a killed one is not, and a forked child of it does not keep it alive."""

    def hold() -> None:
        writer = StateWriter(tmp_path, FACTS)
        in_child(lambda: time.sleep(5))
        time.sleep(5)
        writer.close()

    pid = in_child(hold)
    try:
        while not (paths := list(tmp_path.glob("*.state"))) or not paths[0].read_bytes().startswith(statefile.MAGIC):
            time.sleep(0.01)
        os.kill(pid, signal.SIGSTOP)
        stopped = statefile.read(paths[0])
        assert (stopped.alive, stopped.holder_pid) == (True, pid)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    dead = statefile.read(paths[0])
    assert (dead.alive, dead.holder_pid) == (False, 0)


def test_what_dead_ranks_left_long_ago_is_removed_by_who_comes_next(
    tmp_path: Path, writer: StateWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of this user alone, of processes that are dead and have been for long; whatever else is there stays."""
    monkeypatch.setattr(statefile, "OLD_NS", 1_000_000_000)
    now = statefile.boottime_ns()

    def left(age: float, word: int = statefile.ENDED) -> Path:
        old = StateWriter(writer.path.parent, dataclasses.replace(FACTS, start_boottime_ns=1))
        old.words[statefile.PHASE] = statefile.pack(Phase.OTHER, 1)
        old.words[word] = now - int(age * 1e9)
        old.close()
        return old.path

    gone = [left(5), left(5, statefile.LAST_STEP)]
    stays = [left(-60), writer.path, *(writer.path.with_name(name) for name in ("other.state", "old.json"))]
    for path in stays[2:]:
        path.write_text("what is no state file")
    child = in_child(lambda: [StateWriter(tmp_path / "alive", FACTS), time.sleep(30)])
    try:
        while not (alive := list((tmp_path / "alive").glob("*.state"))) or not statefile.holder(alive[0]):
            time.sleep(0.01)
        stays.append(alive[0].rename(writer.path.with_name(alive[0].name)))
        if os.geteuid() == 0:
            stays.append(left(5))
            os.chown(stays[-1], 65534, 65534)
        statefile.remove_old(writer.path)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert [path.exists() for path in gone] == [False, False]
    assert [path for path in stays if not path.exists()] == []


def test_folder_is_shared_but_safe(tmp_path: Path) -> None:
    """The folder is made for all users with the sticky bit, the file readable by all and writable by its owner."""
    writer = StateWriter(tmp_path / "shared", FACTS)
    assert stat.S_IMODE((tmp_path / "shared").stat().st_mode) == 0o1777
    assert stat.S_IMODE(writer.path.stat().st_mode) == 0o644
    writer.close(unlink=True)
    assert list((tmp_path / "shared").iterdir()) == []


@pytest.mark.parametrize("kind", ["symlink", "file", "open to all"])
def test_folders_that_others_could_abuse_are_refused(kind: str, tmp_path: Path) -> None:
    """A symbolic link, a file, and a folder in which anybody may swap files are named in the error."""
    folder = tmp_path / "state"
    if kind == "symlink":
        (tmp_path / "elsewhere").mkdir()
        folder.symlink_to(tmp_path / "elsewhere")
    elif kind == "file":
        folder.write_text("")
    else:
        folder.mkdir()
        folder.chmod(0o777)
    with pytest.raises(StateFileError, match=str(folder)):
        StateWriter(folder, FACTS)


def corrupt(path: Path, offset: int, data: bytes) -> None:
    """Overwrite bytes of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def test_what_is_no_state_file_is_refused_with_its_name(tmp_path: Path, writer: StateWriter) -> None:
    """Links, pipes, folders, foreign, short, half-written, outdated and impossible files raise one kind of error."""
    whole = writer.path.read_bytes()
    (tmp_path / "link").symlink_to(writer.path)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "short").write_bytes(whole[:-1])
    (tmp_path / "long").write_bytes(whole + b"\0")
    (tmp_path / "zeros").write_bytes(bytes(statefile.SIZE))
    (tmp_path / "noise").write_bytes(os.urandom(statefile.SIZE))
    for name, offset, data in (
        ("version", 8, b"\2"),
        ("being written", 16, b"\1"),
        ("phase", statefile.PHASE * 8 + 7, b"\x7f"),
        ("rank state", statefile.STATE * 8, b"\x09"),
        ("ending", statefile.ENDING * 8 + 7, b"\x09"),
        ("boot", 24 + 32, os.urandom(16)),
    ):
        (tmp_path / name).write_bytes(whole)
        corrupt(tmp_path / name, offset, data)
    names = [path.name for path in tmp_path.iterdir() if path.name != "state"]
    for name in names:
        with pytest.raises(StateFileError, match=f"/{name}: "):
            statefile.read(tmp_path / name)
    assert len(names) == 13


def test_random_damage_never_raises_anything_else(tmp_path: Path, writer: StateWriter) -> None:
    """Whatever bytes stand in the file, the reader answers with a snapshot or its one error."""
    whole = writer.path.read_bytes()
    path = tmp_path / "damaged"
    for seed in range(300):
        damaged = bytearray(whole)
        for position in os.urandom(8):
            damaged[(position * 7 + seed * 13) % statefile.SIZE] = position
        path.write_bytes(damaged)
        with contextlib.suppress(StateFileError):
            assert isinstance(statefile.read(path).facts.rank, int)


def test_a_limit_on_the_size_of_files_is_said(tmp_path: Path) -> None:
    """A file that `ulimit -f` cuts short is none, and the reason is the kernel's."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (statefile.SIZE // 2, before[1]))
    try:
        with pytest.raises(StateFileError, match="File too large"):
            StateWriter(tmp_path, FACTS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []
