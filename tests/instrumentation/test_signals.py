"""A signal does to a rank what it does without laggard: the same exit code, the same files, and as fast."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from laggard import statefile
from laggard.conventions import RankState
from laggard.statefile import EndedBy, Ending
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
    "ignored": {ONCE: EXITED, TWICE: EXITED, INTERRUPT: INTERRUPTED},
    "thread": BY_DEFAULT,
    "workers": BY_DEFAULT,
    "checkpoint": BY_DEFAULT,
    "locked": {ONCE: TERMINATED, TWICE: TERMINATED},
}


class End(NamedTuple):
    """What became of a process."""

    code: int
    files: list[str]
    seconds: float


def ended(process: subprocess.Popen[str], signals: tuple[int, ...], folder: Path) -> End:
    """Send the signals to a process that is ready, and wait for its end."""
    assert process.stdout is not None
    assert any("ready" in line for line in process.stdout), process.communicate()[1]
    began = time.monotonic()
    for number in signals:
        process.send_signal(number)
        time.sleep(0.02)
    process.communicate(timeout=60)
    return End(process.returncode, sorted(file.name for file in folder.iterdir()), time.monotonic() - began)


def compared(
    start: Callable[..., subprocess.Popen[str]], signals: tuple[int, ...], folder: Path, *arguments: object
) -> End:
    """Return the end with laggard; but for the time it takes, that without must be the same."""
    ends: list[End] = []
    for name, environment in (("with", {}), ("without", WITHOUT)):
        (folder / name).mkdir()
        ends.append(ended(start(*arguments, folder / name, **environment), signals, folder / name))
    took = [f"{end.seconds:.2f}" for end in ends]
    print(*arguments[1:], signals, ends[0].code, ends[0].files, "with and without:", *took)
    with_laggard, without = ends
    assert with_laggard[:2] == without[:2]
    assert with_laggard.seconds - without.seconds < LIMIT_SECONDS
    return with_laggard


@pytest.mark.parametrize(
    ("shape", "signals"), [(shape, signals) for shape, expected in EXPECTED.items() for signals in expected]
)
def test_a_signal_does_what_it_does_without_laggard(
    shape: str, signals: tuple[int, ...], launcher: Launcher, tmp_path: Path
) -> None:
    """SIGTERM once, twice, or SIGINT: the same exit code, files and time; and the state file says how it ended."""
    end = compared(launcher.fork, signals, tmp_path, PROGRAM, shape)
    (path,) = launcher.state_directory.iterdir()
    final = statefile.read(path)
    assert (end.code, final.state, final.ending) == EXPECTED[shape][signals]
    assert not final.alive


@pytest.mark.parametrize("signals", [ONCE, TWICE, INTERRUPT])
def test_ranks_in_a_collective_end_as_without_laggard(
    signals: tuple[int, ...], launcher: Launcher, tmp_path: Path
) -> None:
    """One rank waits in native code for the other; SIGTERM ends both at once, SIGINT the one that runs Python."""

    def start(*program: str | Path, **environment: str) -> subprocess.Popen[str]:
        return launcher.fork_ranks(2, *program, **environment)

    end = compared(start, signals, tmp_path, PROGRAM, "collective")
    assert end.code == -signals[0]
    states = {file.facts.rank: file.state for file in map(statefile.read, launcher.state_directory.iterdir())}
    assert states[1] is RankState.FAILED
    if signals != INTERRUPT:
        assert states == {0: RankState.FAILED, 1: RankState.FAILED}
