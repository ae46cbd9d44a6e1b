"""``laggard stacks`` on ranks that really stand still, and what it says where it cannot work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest

from laggard_cli import stacks
from laggard_cli.diagnose import command
from laggard_cli.diagnose.model import Diagnosis
from laggard_cli.local import LocalRank
from laggard_cli.main import main
from laggard_cli.stacks import Process, Thread, find_spy, grouped, processes_of
from tests.cli.test_diagnose import VERDICT
from tests.support.facts import FACTS
from tests.support.recorded_job import RecordedJob

#: A rank that holds its state file and stands in a function of its own, in a loop or in native code with the lock.
_PROGRAM = """
import ctypes, sys
from dataclasses import replace
from pathlib import Path
from laggard.shared import statefile
from tests.support.facts import FACTS

def stands_here(how):
    print("ready", flush=True)
    if how == "native":
        ctypes.PyDLL(None).pause()
    while True:
        pass

facts = replace(FACTS, run="stuck", rank=int(sys.argv[2]), start_boottime_ns=statefile.boottime_ns())
writer = statefile.StateWriter(Path(sys.argv[1]), facts)
stands_here(sys.argv[3])
"""


@pytest.fixture
def ranks(tmp_path: Path) -> Generator[list[subprocess.Popen[str]], None, None]:
    """Start a rank that loops and is stopped, and one that holds the interpreter's lock in native code."""
    assert FACTS.rank >= 0
    (tmp_path / "rank.py").write_text(_PROGRAM)
    root = str(Path(__file__).parents[2])
    found = [
        subprocess.Popen(
            [sys.executable, tmp_path / "rank.py", tmp_path, str(rank), how],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": root},
        )
        for rank, how in enumerate(("loop", "native"))
    ]
    try:
        for process in found:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        found[0].send_signal(signal.SIGSTOP)
        time.sleep(0.2)
        yield found
    finally:
        for process in found:
            process.kill()
            process.communicate()


def test_stacks_of_a_stopped_rank_and_of_one_that_holds_the_lock(
    tmp_path: Path, ranks: list[subprocess.Popen[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Both are told with function and line, from outside; the stopped one stays stopped, the other one alive."""
    assert main(["stacks", "--state-dir", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    for rank, process in enumerate(ranks):
        (told,) = found[str(rank)]
        assert (told["what"], told["pid"], told["problem"]) == ("rank", process.pid, "")
        (thread,) = told["threads"]
        assert thread["name"] == "main thread"
        assert thread["frames"][0].startswith(f"stands_here ({tmp_path / 'rank.py'}:")
        assert thread["frames"][-1].startswith("<module> ")
    assert found["1"][0]["threads"][0]["holds_lock"] is True
    state = Path(f"/proc/{ranks[0].pid}/stat").read_text().rpartition(")")[2].split()[0]
    assert state in {"T", "t"}
    assert ranks[1].poll() is None
    assert main(["stacks", "--state-dir", str(tmp_path), "--ranks", "1"]) == 0
    first, second, third, *_ = capsys.readouterr().out.splitlines()
    assert first == f"rank 1, process {ranks[1].pid}"
    assert second == "  main thread, holds the interpreter's lock"
    assert third.startswith("    stands_here (")


def test_the_diagnosis_has_the_stack_of_the_rank_that_stands_still(
    tmp_path: Path,
    ranks: list[subprocess.Popen[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With --stacks: of the culprit on this host, where to look for one elsewhere, of no other rank."""
    here = replace(VERDICT, alert="TrainingStalled", run="stuck", rank="1")
    elsewhere, slow = replace(here, rank="7"), replace(here, alert="TrainingStraggler", rank="0")
    diagnosis = Diagnosis("stuck", (here, elsewhere, slow), {}, ())
    monkeypatch.setattr(command, "diagnose", lambda *_: [diagnosis])
    flags = ["--prometheus", "http://127.0.0.1:1", "--stacks", "--state-dir", str(tmp_path)]
    assert main(["diagnose", *flags]) == 0
    printed = capsys.readouterr().out
    assert f"rank 1, process {ranks[1].pid}\n  main thread, holds the interpreter's lock\n    stands_here (" in printed
    assert printed.endswith("rank 7: not on this host; there: laggard stacks --run stuck --ranks 7\n")
    assert "rank 0" not in printed.partition("runbook")[2].rpartition("runbook")[2]
    assert main(["diagnose", *flags, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["runs"][0]["stacks"]
    assert set(found) == {"1", "7"}
    assert found["7"] == []


def test_hang_shows_the_stack_of_a_culprit_of_this_host(
    tmp_path: Path, ranks: list[subprocess.Popen[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """With --stacks: the process of the rank that the dumps name, by this host's state files, and no other rank's."""
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    RecordedJob({"0": (0, 1, 2, 3)}, [("0", "all_reduce")] * 2, stops={1: 1, 3: 1}).write(dumps, as_pickle=True)
    flags = ["hang", str(dumps), "--stacks", "--state-dir", str(tmp_path)]
    assert main(flags) == 0
    printed = capsys.readouterr().out
    assert f"rank 1, process {ranks[1].pid}\n  main thread, holds the interpreter's lock\n" in printed
    assert "stands_here" in printed
    assert str(ranks[0].pid) not in printed
    assert printed.endswith("rank 3: not on this host; there: laggard stacks --run stuck --ranks 3\n")
    assert main([*flags, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["stacks"]
    assert (list(found), found["1"][0]["pid"], found["3"]) == (["1", "3"], ranks[1].pid, [])
    assert main([*flags, "--run", "other"]) == 2
    assert capsys.readouterr().err.startswith("laggard hang: error: --run 'other' is not on this host")


def test_what_is_missing_is_said_in_one_line(
    tmp_path: Path,
    ranks: list[subprocess.Popen[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No py-spy: bad input and how to get it. One that may not, or fails: the reason per rank and exit code 1."""
    refusing = tmp_path / "py-spy"
    refusing.write_text(
        "#!/bin/sh\necho 'Permission Denied: Try running again with elevated permissions' >&2\nexit 1\n"
    )
    refusing.chmod(0o755)
    monkeypatch.setattr(stacks, "find_spy", lambda: str(refusing))
    flags = ["stacks", "--state-dir", str(tmp_path), "--ranks", "0"]
    assert main(flags) == 1
    told = capsys.readouterr().out
    assert told.startswith(
        f"rank 0, process {ranks[0].pid}: py-spy may not read it: run this as root or with CAP_SYS_PTRACE"
    )
    assert told.count("\n") == 1
    refusing.write_text("#!/bin/sh\necho not json\n")
    assert main(flags) == 1
    assert capsys.readouterr().out.endswith("py-spy's answer cannot be read (JSONDecodeError)\n")
    monkeypatch.undo()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert main(flags) == 2
    assert capsys.readouterr().err == (
        "laggard stacks: error: stacks are read by py-spy, which is not installed: pip install 'laggard[stacks]'\n"
    )


def test_equal_stacks_are_one() -> None:
    """Ranks that stand at the same place are shown once, the odd one out by itself."""
    waiting = (Thread("main thread", False, ("wait (a.py:1)", "<module> (train.py:9)")),)
    reading = (Thread("main thread", False, ("read (b.py:2)",)),)
    found = {rank: [Process("rank", 100 + rank, reading if rank == 2 else waiting)] for rank in range(5)}
    assert list(grouped(found)) == [
        "ranks 0, 1, 3, 4, processes 100, 101, 103, 104",
        "  main thread",
        "    wait (a.py:1)",
        "    <module> (train.py:9)",
        "rank 2, process 102",
        "  main thread",
        "    read (b.py:2)",
    ]


def test_threads_of_laggard_are_left_out() -> None:
    """A real process whose one thread reports for laggard: only where training stands is shown."""
    script = (
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,), name='laggard-drain', daemon=True).start()\n"
        "threading.Thread(target=time.sleep, args=(60,), name='loader', daemon=True).start()\n"
        "print('ready', flush=True)\ntime.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            (found,) = processes_of(find_spy(), "r", LocalRank(0, Path("none"), 0, 0, process.pid))
        finally:
            process.kill()
    assert [thread.name for thread in found.threads] == ["main thread", "thread loader"]
