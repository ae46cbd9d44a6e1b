"""``laggard stacks``: where ranks on this host, and their data workers, stand in their Python code.

py-spy reads the memory of a process from outside and does not stop it, so it answers for a process that is stopped,
that holds the interpreter's lock or that hangs in native code.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from laggard_cli.errors import CommandError
from laggard_cli.folders import add_folder, state_directory
from laggard_cli.local import LocalRank, choose, local_ranks, spans
from laggard_cli.terminal import printable_lines
from laggard_exporter.ranks import processes
from laggard_exporter.ranks.children import Children
from laggard_exporter.ranks.files import RankProcess

_SECONDS = 20.0
_PROCFS = Path("/proc")
_MAIN = "main thread"
#: Of threads that report, which are never where training stands.
_OWN = "thread laggard-"
_HOLDS = ", holds the interpreter's lock"
#: Of a process with hundreds of threads, and of a recursion without end.
_THREADS, _FRAMES = 16, 40


@dataclass(frozen=True)
class Thread:
    """A thread and its frames, the innermost first, each as ``function (file:line)``."""

    name: str
    holds_lock: bool
    frames: tuple[str, ...]


@dataclass(frozen=True)
class Process:
    """A process of a rank: its own, or a data worker. Either threads are known, or the reason why they are not."""

    what: str
    pid: int
    threads: tuple[Thread, ...] = ()
    problem: str = ""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = (
        "Example:\n  laggard stacks --run pretrain-7 --ranks 3\nNeeds py-spy: pip install 'laggard[stacks]'."
    )
    parser.add_argument("--run", dest="name", metavar="NAME", help="the run; may be left out where one run is here")
    parser.add_argument("--ranks", metavar="R,R…", help="the ranks, for example 0,3 (default: all on this host)")
    add_folder(parser)
    parser.add_argument("--state-dir", type=Path, metavar="FOLDER", help="folder of the ranks' state files")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Print the stacks; return 1 where one of them could not be read."""
    name, ranks = choose(state_directory(options), options.name, options.ranks)
    spy = find_spy()
    found = {rank.number: processes_of(spy, name, rank) for rank in ranks}
    if options.json:
        print(json.dumps({rank: [asdict(process) for process in each] for rank, each in found.items()}, indent=2))
    else:
        print(printable_lines("\n".join(grouped(found))))
    return int(any(process.problem for each in found.values() for process in each))


def find_spy() -> str:
    """Return the program that reads stacks. Raises :class:`CommandError` where there is none."""
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if beside.exists() else shutil.which("py-spy")
    if found is None:
        raise CommandError("stacks are read by py-spy, which is not installed: pip install 'laggard[stacks]'")
    return found


def processes_of(spy: str, run: str, rank: LocalRank) -> list[Process]:
    """Return where a rank and its data workers stand."""
    if not rank.pid:
        return [Process("rank", 0, problem="its process is not visible here; run this outside of the container")]
    family = Children(_PROCFS).of([RankProcess(run, rank.number, rank.pid)])
    workers = [
        pid for pids in family.values() for pid in pids if processes.command(_PROCFS, pid) == processes.WORKER_COMMAND
    ]
    return [_look(spy, "rank", rank.pid), *(_look(spy, "data worker", pid) for pid in workers)]


def of_ranks(directory: Path, wanted: Iterable[tuple[str, int]]) -> dict[tuple[str, int], list[Process]]:
    """Return for each run and rank what its processes do; nothing for one that is not on this host.

    Raises:
        CommandError: there is no program that reads stacks.
    """
    spy = find_spy()
    here = local_ranks(directory) if directory.is_dir() else {}
    found: dict[tuple[str, int], list[Process]] = {}
    for run_name, number in sorted(wanted):
        known = here.get(run_name, {}).get(number)
        found[run_name, number] = processes_of(spy, run_name, known) if known else []
    return found


def text(found: dict[tuple[str, int], list[Process]]) -> Iterator[str]:
    """Yield what is known of ranks as a person reads it, and what to type where for one of another host."""
    for (run_name, rank), processes_found in found.items():
        there = f"laggard stacks --run {run_name} --ranks {rank}"
        yield "\n".join(lines(rank, processes_found)) or f"rank {rank}: not on this host; there: {there}"


def grouped(found: dict[int, list[Process]]) -> Iterator[str]:
    """Yield what is known of ranks, those that stand at the same place together, so that the odd one out is seen."""
    groups: dict[object, list[int]] = {}
    for rank, processes_found in found.items():
        where = tuple((each.what, each.threads, each.problem) for each in processes_found)
        groups.setdefault(where, []).append(rank)
    for ranks in groups.values():
        first, *others = ranks
        head, *rest = lines(first, found[first])
        if others:
            pids = ", ".join(str(found[rank][0].pid) for rank in ranks)
            problem = found[first][0].problem
            head = f"ranks {spans(ranks)}, processes {pids}{': ' + problem if problem else ''}"
        yield head
        yield from rest


def lines(rank: int, found: list[Process]) -> Iterator[str]:
    """Yield what is known of a rank's processes, as a person reads it."""
    for process in found:
        who = f"rank {rank}" if process.what == "rank" else f"rank {rank}, {process.what}"
        yield f"{who}, process {process.pid}{': ' + process.problem if process.problem else ''}"
        for thread in process.threads:
            yield f"  {thread.name}{_HOLDS if thread.holds_lock else ''}"
            yield from (f"    {frame}" for frame in thread.frames)


def _look(spy: str, what: str, pid: int) -> Process:
    try:
        # Without pausing it: the process is somebody's training, and a stopped one could not be paused.
        command = [spy, "dump", "--nonblocking", "--json", "--pid", str(pid)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return Process(what, pid, problem=f"py-spy did not answer within {_SECONDS:.0f} s")
    if done.returncode:
        return Process(what, pid, problem=_reason(done.stderr))
    try:
        threads = [_thread(thread, pid) for thread in json.loads(done.stdout)]
    except (ValueError, KeyError, TypeError) as error:
        return Process(what, pid, problem=f"py-spy's answer cannot be read ({type(error).__name__})")
    threads = [thread for thread in threads if not thread.name.startswith(_OWN)]
    threads.sort(key=lambda thread: thread.name != _MAIN)
    return Process(what, pid, tuple(threads[:_THREADS]))


def _thread(found: dict[str, Any], pid: int) -> Thread:
    name = _MAIN if found["os_thread_id"] == pid else f"thread {found['thread_name'] or found['os_thread_id']}"
    frames = [f"{frame['name']} ({frame['filename']}:{frame['line']})" for frame in found["frames"]]
    left_out = [f"and {len(frames) - _FRAMES} more"] if len(frames) > _FRAMES else []
    return Thread(name, bool(found["owns_gil"]), (*frames[:_FRAMES], *left_out))


def _reason(errors: str) -> str:
    """Return in one line why py-spy gave no stack."""
    if "permission" in errors.lower():
        scope = Path("/proc/sys/kernel/yama/ptrace_scope")
        setting = f", or set kernel.yama.ptrace_scope, now {scope.read_text().strip()}, to 0" if scope.exists() else ""
        return f"py-spy may not read it: run this as root or with CAP_SYS_PTRACE{setting}"
    said = [text.strip() for text in errors.splitlines() if text.strip()]
    return f"py-spy cannot read it: {said[0] if said else 'it says nothing'}"
