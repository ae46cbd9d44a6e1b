"""``laggard hang``."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, replace
from pathlib import Path

from laggard.shared import control, statefile
from laggard.shared import dumps as own_dumps
from laggard.shared.phases import Phase, RankState
from laggard_cli import live
from laggard_cli.console import show
from laggard_cli.errors import CommandError
from laggard_cli.folders import state_directory
from laggard_cli.hang import ras, view
from laggard_cli.local import choose
from laggard_cli.stacks import of_ranks, text
from laggard_cli.terminal import printable_lines
from laggard_exporter.hang.dump import Dump
from laggard_exporter.hang.dump_file import MAX_RANKS, DumpError, rank_in, read
from laggard_exporter.hang.verdict import judge, spans

#: Dumps come from elsewhere: what reads them gets so much memory and no more.
_READER_BYTES = 4 * 2**30
#: A dump that laggard wrote: when its process started, where the rank stood, and the stem of the rank's files.
_OWN_NAME = re.compile(
    rf"{own_dumps.PREFIX}(?P<start>[0-9a-f]+)-[0-9a-f]+-(?P<word>[0-9a-f]+)-(?P<stem>(?P<run>.+)-(?P<rank>\d+))"
    + re.escape(own_dumps.SUFFIX)
)
_ARCHIVE = re.compile(r"\.(?:zip|tgz|tar(?:\.\w+)?)$")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = (
        "Example:\n  laggard hang /tmp/dumps\n"
        "Reads what TORCH_FR_DUMP_TEMP_FILE or TORCH_NCCL_DEBUG_INFO_TEMP_FILE names, one file a rank, the rank in its "
        "name; pickle or JSON, gzip too, in DUMP_DIR or in folders of hosts there. What ncclras -f json wrote there is "
        "evidence. Exit code 0 with a culprit, 1 without. docs/hang.md says how it judges."
    )
    parser.add_argument("folder", type=Path, metavar="DUMP_DIR", help="folder of flight-recorder dumps")
    parser.add_argument("--ranks", type=int, metavar="N", help="ranks of the job (default: those the dumps speak of)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--stacks",
        action="store_true",
        help="also say where culprits that run on this host are in their Python code; needs py-spy",
    )
    parser.add_argument(
        "--run", dest="name", metavar="NAME", help="the run, for --stacks; may be left out where one run is here"
    )
    parser.add_argument(
        "--state-dir", type=Path, metavar="FOLDER", help="folder of the ranks' state files, for --stacks"
    )


def run(options: argparse.Namespace) -> int:
    """Print the verdict; return 1 when nobody can be named."""
    if options.ranks is not None and not 1 <= options.ranks <= MAX_RANKS:
        raise CommandError(f"--ranks {options.ranks}: a job has 1 to {MAX_RANKS} ranks")
    # A dump does not say which process wrote it; the state files of this host do, for the ranks of a run.
    directory = state_directory(options) if options.stacks else None
    name = choose(directory, options.name, None)[0] if directory else ""
    answers = _answers(options.folder)
    dumps, left_out = collect(options.folder, answers)
    if options.ranks is not None and (beyond := [rank for rank in dumps if rank >= options.ranks]):
        raise CommandError(f"--ranks {options.ranks}: there is a dump of rank {max(beyond)}")
    world_size = options.ranks or _world_size(options.folder, dumps)
    verdict = judge(dumps, world_size, gone=_gone(options.folder, world_size))
    saved = ras.newest(answers, world_size or verdict.ranks or None, left_out)
    if not dumps and saved is None:
        raise CommandError(f"{options.folder}: no dump of a flight recorder in it{_first(left_out)}")
    culprits = [(name, culprit.rank) for culprit in verdict.culprits[: view.SHOWN]]
    stacks = of_ranks(directory, culprits) if directory else {}
    if options.json:
        told = {rank: [asdict(process) for process in found] for (_, rank), found in stacks.items()}
        more = {**({"ras": ras.plain(saved)} if saved else {}), **({"stacks": told} if options.stacks else {})}
        print(json.dumps({**view.plain(verdict), "left_out": left_out, **more}, indent=2))
    else:
        witness = ["\n".join(ras.lines(saved, view.SHOWN))] if saved else []
        parts = ["\n".join(view.lines(verdict, left_out)), *witness, *text(stacks)]
        show(printable_lines("\n\n".join(parts)).split("\n"))
    return int(not verdict.culprits)


def _files(folder: Path, left_out: dict[str, str]) -> list[Path]:
    """Return the files of a folder; where none is of a rank, those of ranks in its folders too: each host's, say.

    What cannot be read of those is left out, with the reason.
    """
    try:
        everything = sorted(folder.iterdir())
    except OSError as error:
        raise CommandError(f"{folder}: {error.strerror}") from error
    found = [path for path in everything if path.is_file()]
    if not any(_rank_and_job(path.name) for path in found):
        for below in filter(Path.is_dir, everything):
            try:
                found += sorted(path for path in below.iterdir() if path.is_file() and _rank_and_job(path.name))
            except OSError as error:  # noqa: PERF203 - the folders are few, and each may fail
                left_out[_shown(below, folder)] = error.strerror or str(error)
    return found


def _answers(folder: Path) -> list[Path]:
    """Return the answers of NCCL's RAS service in a folder."""
    found: list[Path] = []
    for path in _files(folder, {}):
        # Whoever reads it as a dump says why it cannot be read.
        with contextlib.suppress(OSError):
            found += [path] if ras.is_answer(path) else []
    return found


def collect(folder: Path, answers: Collection[Path] = ()) -> tuple[dict[int, Dump], dict[str, str]]:
    """Return the dumps of a folder by rank, and what was left out by name of the file, with the reason.

    ``answers`` are of NCCL's RAS service, and no dumps.

    Raises:
        CommandError: the folder cannot be read, or has neither a dump nor an answer.
    """
    left_out: dict[str, str] = {}
    jobs: dict[str, dict[int, Path]] = {}
    starts = _starts(folder)
    for path in _files(folder, left_out):
        if path.name.endswith(statefile.SUFFIX) or path.name == live.FILE or path in answers:
            continue
        said = _rank_and_job(path.name)
        why = _unfit(path.name, said, starts)
        if said is None or why:
            left_out[_shown(path, folder)] = why
            continue
        rank, job = said
        newest = jobs.setdefault(f"{_shown(path, folder).removesuffix(path.name)}{job}", {})
        older, newest[rank] = sorted((newest.get(rank, path), path), key=lambda each: each.stat().st_mtime_ns)
        if older != newest[rank]:
            left_out[_shown(older, folder)] = f"rank {rank} has a newer dump"
    read = _read_all([(path, rank) for files in jobs.values() for rank, path in files.items()])
    for files in jobs.values():
        read |= _misread(files, read)
    # Logs and traces of ranks may lie beside their dumps.
    of_dumps = {
        job: files for job, files in jobs.items() if any(isinstance(read[each], Dump) for each in files.values())
    }
    chosen = _newest_job(of_dumps, folder, left_out)
    dumps: dict[int, Dump] = {}
    for files in (chosen, *(files for job, files in jobs.items() if job not in of_dumps)):
        for rank, path in files.items():
            found = read[path]
            if isinstance(found, Dump):
                dumps[rank] = found
            else:
                left_out[_shown(path, folder)] = found
    if not dumps and not answers:
        raise CommandError(f"{folder}: no dump of a flight recorder in it{_first(left_out)}")
    return dumps, left_out


def _first(left_out: Mapping[str, str]) -> str:
    return next((f": {name}: {why}" for name, why in left_out.items()), "")


def _shown(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder))


def _rank_and_job(name: str) -> tuple[int, str] | None:
    """Return the rank that a file's name says, and what is equal in the names of one job or attempt."""
    own = _OWN_NAME.fullmatch(name)
    return (int(own["rank"]), own["run"]) if own else rank_in(name)


def _unfit(name: str, said: tuple[int, str] | None, starts: Mapping[str, int]) -> str:
    """Return why a dump of this name is not read, nothing where it is."""
    if said is None:
        return "an archive: unpack it here" if _ARCHIVE.search(name) else "the name does not say of which rank it is"
    rank = said[0]
    if rank >= MAX_RANKS:
        return f"rank {rank} is beyond the {MAX_RANKS} that a job may have"
    own = _OWN_NAME.fullmatch(name)
    older = own is not None and starts.get(own["stem"], 0) > int(own["start"], 16)
    return f"rank {rank} has a newer process" if older else ""


def _starts(folder: Path) -> dict[str, int]:
    """Return when the newest process of each rank started, as its state file beside the dumps says."""
    found: dict[str, int] = {}
    for facts in _state_files(folder):
        stem = control.stem(facts.run, facts.rank)
        found[stem] = max(found.get(stem, 0), facts.start_boottime_ns)
    return found


def _state_files(folder: Path) -> Iterator[statefile.Facts]:
    yield from (process.facts for process in _processes(folder))


def _processes(folder: Path) -> Iterator[statefile.Snapshot]:
    for path in folder.glob(f"*{statefile.SUFFIX}"):
        with contextlib.suppress(statefile.StateFileError, OSError):
            yield statefile.read(path)


def _misread(files: Mapping[int, Path], read: Mapping[Path, Dump | str]) -> dict[Path, str]:
    """Return why dumps of a job are not of the rank that their name says, where one says a rank that is not in the job.

    A host's number before that of the rank makes another rank of it, which the job may have: so no name counts there.
    """
    found: dict[Path, str] = {}
    for rank, path in files.items():
        dump = read[path]
        groups = dump.groups if isinstance(dump, Dump) else ()
        members = next((each.members for each in groups if each.is_default), None)
        if members and rank not in members:
            why = f"{path.name} reads as rank {rank}, but its job has ranks {spans(members)}; let names end in rank_N"
            found |= dict.fromkeys([path] if "rank" in path.name.lower() else files.values(), why)
    return {path: why for path, why in found.items() if isinstance(read[path], Dump)}


def _newest_job(jobs: dict[str, dict[int, Path]], folder: Path, left_out: dict[str, str]) -> dict[int, Path]:
    """Return the dumps by rank of the newest name, and of others that have no rank in common with newer ones.

    A name may have the host in it, so that those of one job are several. What has a rank in common is another job.
    """
    newest_first = sorted(jobs, key=lambda name: -max(path.stat().st_mtime_ns for path in jobs[name].values()))
    chosen: dict[int, Path] = {}
    for name in newest_first:
        files = jobs[name]
        if chosen.keys().isdisjoint(files):
            chosen |= files
            continue
        for rank, path in files.items():
            newer = "has a newer dump" if rank in chosen else f"is of another job, and {newest_first[0]!r} is newer"
            left_out[_shown(path, folder)] = f"rank {rank} {newer}"
    return chosen


def _world_size(folder: Path, dumps: Iterable[int]) -> int | None:
    """Return the ranks of the job as the state files beside the dumps say, None where there are none of it."""
    found: dict[str, tuple[int, int]] = {}
    for facts in _state_files(folder):
        found[facts.run] = max(found.get(facts.run, (0, 0)), (facts.start_boottime_ns, facts.world_size))
    sizes = {size for _, size in found.values()}
    size = sizes.pop() if len(sizes) == 1 else 0
    return size if size > max(dumps, default=-1) else None


def _gone(folder: Path, ranks: int | None) -> set[int]:
    """Return the ranks whose newest process has ended, and not cleanly, while others of the run live on this host."""
    newest: dict[tuple[str, int], statefile.Snapshot] = {}
    for process in _processes(folder):
        key = (process.facts.run, process.facts.rank)
        newest[key] = max(
            newest.get(key, process), process, key=lambda each: (each.alive, each.facts.start_boottime_ns)
        )
    runs = {run for run, _ in newest}
    alive = [process for process in newest.values() if process.alive]
    # Of several runs it is not known which one the dumps are of.
    if len(runs) != 1 or not alive:
        return set()
    # As for the alert, one that gave its last sign before any that lives now began is of an earlier attempt.
    began = min(process.facts.start_boottime_ns for process in alive)
    return {
        rank
        for (_, rank), process in newest.items()
        if not process.alive
        and process.state is not RankState.FINISHED
        and max(process.last_step_ns, process.phase_entered_ns, process.ended_ns) > began
        and (ranks is None or rank < ranks)
    }


def _read_all(files: list[tuple[Path, int]]) -> dict[Path, Dump | str]:
    """Read in processes of their own: many at once, and none takes this one down."""
    if not files:
        return {}
    workers = min(len(files), os.cpu_count() or 1)
    paths = [path for path, _ in files]
    try:
        with ProcessPoolExecutor(workers, initializer=_limit) as pool:
            chunk = max(1, min(64, len(paths) // workers))
            return dict(zip(paths, pool.map(_read, *zip(*files, strict=True), chunksize=chunk), strict=True))
    except BrokenProcessPool as error:
        raise CommandError("a process that reads dumps was killed; is there enough memory?") from error


def _limit() -> None:
    try:
        import resource  # noqa: PLC0415 - it is absent on Windows, which has no limits
    except ImportError:
        return
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = _READER_BYTES if hard == resource.RLIM_INFINITY else min(hard, _READER_BYTES)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def _read(path: Path, rank: int) -> Dump | str:
    own = _OWN_NAME.fullmatch(path.name)
    phase = statefile.unpack(int(own["word"], 16))[0] if own else None
    try:
        # A rank that goes on removes the dump that laggard wrote; one of torch's stays.
        written = 0 if own else path.stat().st_mtime_ns
        return replace(
            read(path, rank), calling=None if phase is None else phase == Phase.COMMUNICATION, written=written
        )
    except DumpError as error:
        return str(error)
    except OSError as error:
        return error.strerror or str(error)
    except MemoryError:
        return f"reading it takes more memory than the {_READER_BYTES >> 30} GiB that it may"
