"""A signal does to a rank what it does without laggard: the same exit code, the same files, and as fast."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

import pytest

from laggard.shared import statefile
from laggard.shared.phases import RankState
from laggard.shared.statefile import EndedBy, Ending
from tests.support.launch import PROGRAMS, Launcher

pytestmark = pytest.mark.timed

PROGRAM = PROGRAMS / "signalled.py"
#: What an end may take longer than without laggard, in seconds.
LIMIT_SECONDS = 0.5
WITHOUT = {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "laggard"}

ONCE, TWICE, INTERRUPT = (signal.SIGTERM,), (signal.SIGTERM, signal.SIGTERM), (signal.SIGINT,)
TERMINATED = (-signal.SIGTERM, RankState.FAILED, Ending(EndedBy.SIGNAL, signal.SIGTERM))
INTERRUPTED = (-signal.SIGINT, RankState.FAILED, Ending(EndedBy.SIGNAL, signal.SIGINT, "KeyboardInterrupt"))
FINISHED = (0, RankState.FINISHED, Ending(EndedBy.EXIT, 0))
EXITED = (3, RankState.FAILED, Ending(EndedBy.EXIT, 3))

BY_DEFAULT = {ONCE: TERMINATED, TWICE: TERMINATED, INTERRUPT: INTERRUPTED}
STOPPED = {ONCE: FINISHED, TWICE: FINISHED, INTERRUPT: INTERRUPTED}
#: By shape and signals: the exit code, and what the state file says in the end.
EXPECTED = {
    "plain": BY_DEFAULT,
    "asyncio": BY_DEFAULT,
    "asyncio_stop": STOPPED,
    "chained": STOPPED,
    "faulthandler": BY_DEFAULT,
    "ignored": {ONCE: EXITED, TWICE: EXITED, INTERRUPT: INTERRUPTED},
    "thread": BY_DEFAULT,
    "workers": BY_DEFAULT,
    "checkpoint": BY_DEFAULT,
    "locked": {ONCE: TERMINATED, TWICE: TERMINATED},
}


class End(NamedTuple):
    """What became of a process, and how long that took in seconds."""

    code: int
    files: set[str]
    seconds: float


def ended(process: subprocess.Popen[str], signals: tuple[int, ...], folder: Path, pause: float) -> End:
    """Send the signals to a process that is ready, with a pause between them, and wait for its end."""
    assert process.stdout is not None
    assert any("ready" in line for line in process.stdout), process.communicate()[1]
    began = time.monotonic()
    process.send_signal(signals[0])
    for number in signals[1:]:
        time.sleep(pause)
        process.send_signal(number)
    (folder / "sent").touch()
    process.wait(60)
    return End(process.returncode, {file.name for file in folder.iterdir()}, time.monotonic() - began)


def with_and_without(
    start: Callable[..., subprocess.Popen[str]],
    shape: str,
    cases: Collection[tuple[int, ...]],
    folder: Path,
    pause: float = 0.02,
) -> dict[tuple[int, ...], tuple[End, dict[int, statefile.Snapshot]]]:
    """Return for each case the end with laggard, and the ranks' files; that without has the same code and files."""
    running: dict[tuple[tuple[int, ...], str], tuple[subprocess.Popen[str], Path]] = {}
    for number, signals in enumerate(cases):
        for name, environment in (("with", {}), ("without", WITHOUT)):
            own = folder / f"{number}-{name}"
            own.mkdir()
            state = {"LAGGARD_STATE_DIR": str(folder / f"{number}-state")}
            running[signals, name] = start(PROGRAM, shape, own, **state, **environment), own
    ends = {(signals, name): ended(process, signals, own, pause) for (signals, name), (process, own) in running.items()}
    found: dict[tuple[int, ...], tuple[End, dict[int, statefile.Snapshot]]] = {}
    for number, signals in enumerate(cases):
        with_laggard, without = ends[signals, "with"], ends[signals, "without"]
        print(shape, *signals, with_laggard, f"without: {without.seconds:.2f} s")
        assert with_laggard[:2] == without[:2]
        assert with_laggard.seconds - without.seconds < LIMIT_SECONDS
        files = map(statefile.read, (folder / f"{number}-state").iterdir())
        found[signals] = with_laggard, {file.facts.rank: file for file in files}
    return found


@pytest.mark.parametrize("shape", EXPECTED)
def test_a_signal_does_what_it_does_without_laggard(shape: str, launcher: Launcher, tmp_path: Path) -> None:
    """SIGTERM once, twice, or SIGINT: the same exit code, files and time; and the state file says how it ended."""
    expected = EXPECTED[shape]
    for signals, (end, ranks) in with_and_without(launcher.fork, shape, expected, tmp_path).items():
        assert (end.code, ranks[0].state, ranks[0].ending, ranks[0].alive) == (*expected[signals], False)


def test_ranks_in_a_collective_end_as_without_laggard(launcher: Launcher, tmp_path: Path) -> None:
    """One rank waits in native code for the other; SIGTERM ends both at once, SIGINT the one that runs Python."""

    def start(*program: str | Path, **environment: str) -> subprocess.Popen[str]:
        return launcher.fork_ranks(2, *program, **environment)

    cases = (ONCE, TWICE, INTERRUPT)
    for signals, (end, ranks) in with_and_without(start, "collective", cases, tmp_path).items():
        assert end.code == -signals[0]
        assert ranks[1].ending.code == signals[0]
        if signals != INTERRUPT:
            assert {rank.state for rank in ranks.values()} == {RankState.FAILED}


@pytest.mark.field
@pytest.mark.parametrize("shape", ["spawn", "lightning", "trainer", "accelerate", "torchrun"])
def test_a_launcher_and_a_framework_end_as_without_laggard(shape: str, launcher: Launcher, tmp_path: Path) -> None:
    """The same exit code, files and time, and no rank lives on."""

    def torchrun(program: Path, _shape: str, *arguments: str | Path, **environment: str) -> subprocess.Popen[str]:
        return launcher.start("torchrun", "--nproc-per-node", "2", program, "rank", *arguments, **environment)

    start = torchrun if shape == "torchrun" else launcher.fork
    # At a terminal Ctrl-C reaches all; alone, the parent of spawned ranks waits for them, with and without laggard.
    for signals in (ONCE, TWICE) if shape == "spawn" else (ONCE, TWICE, INTERRUPT):
        folder = tmp_path / "-".join(map(str, signals))
        folder.mkdir()
        # By the second, what has a handler is past it, and torchrun has not ended, which it does in half a second.
        with_and_without(start, shape, [signals], folder, pause=0.3)
        deadline = time.monotonic() + 20
        while files := [file for file in map(statefile.read, (folder / "0-state").iterdir()) if file.alive]:
            assert time.monotonic() < deadline, files
            time.sleep(0.1)
