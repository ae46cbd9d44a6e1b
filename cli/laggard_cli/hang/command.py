"""``laggard hang``."""

from __future__ import annotations

import argparse
import json
import os
import resource
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from pathlib import Path
from typing import Any

from laggard import environment
from laggard_cli.errors import CommandError
from laggard_cli.local import choose
from laggard_cli.stacks import of_ranks, text
from laggard_cli.terminal import printable
from laggard_exporter.hang.dump import MAX_RANKS, Dump, DumpError, rank_of, read
from laggard_exporter.hang.verdict import Culprit, Verdict, Wait, judge, ranks_as_text

#: Dumps come from elsewhere: what reads them gets so much memory and no more.
_READER_BYTES = 4 * 2**30
#: Lines of culprits, of waits and of files left out that a person reads.
_SHOWN = 20


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = (
        "Reads what TORCH_FR_DUMP_TEMP_FILE or TORCH_NCCL_DEBUG_INFO_TEMP_FILE names, one file a rank, the rank at the "
        "end of its name; pickle or JSON. Exit code 0 with a culprit, 1 without. docs/hang.md says how it judges."
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
    directory: Path = options.state_dir or environment.state_directory()
    # A dump does not say which process wrote it; the state files of this host do, for the ranks of a run.
    name = choose(directory, options.name, None)[0] if options.stacks else ""
    dumps, left_out = collect(options.folder)
    if options.ranks is not None and (beyond := [rank for rank in dumps if rank >= options.ranks]):
        raise CommandError(f"--ranks {options.ranks}: there is a dump of rank {max(beyond)}")
    verdict = judge(dumps, options.ranks)
    culprits = [(name, culprit.rank) for culprit in verdict.culprits[:_SHOWN]]
    stacks = of_ranks(directory, culprits) if options.stacks else {}
    if options.json:
        told = {rank: [asdict(process) for process in found] for (_, rank), found in stacks.items()}
        more = {"stacks": told} if options.stacks else {}
        print(json.dumps({**_plain(verdict), "left_out": left_out, **more}, indent=2))
    else:
        parts = ["\n".join(_lines(verdict, left_out)), *text(stacks)]
        print(printable("\n\n".join(parts)))
    return int(not verdict.culprits)


def collect(folder: Path) -> tuple[dict[int, Dump], dict[str, str]]:
    """Return the dumps of a folder by rank, and what was left out by name of the file, with the reason.

    Raises:
        CommandError: the folder can not be read or has no dump.
    """
    try:
        paths = sorted(path for path in folder.iterdir() if path.is_file())
    except OSError as error:
        raise CommandError(f"{folder}: {error.strerror}") from error
    left_out: dict[str, str] = {}
    newest: dict[int, Path] = {}
    for path in paths:
        rank = rank_of(path)
        if rank is None:
            left_out[path.name] = "the name does not end with a rank"
        elif rank >= MAX_RANKS:
            left_out[path.name] = f"rank {rank} is beyond the {MAX_RANKS} that a job may have"
        elif rank in newest and newest[rank].stat().st_mtime > path.stat().st_mtime:
            left_out[path.name] = f"rank {rank} has a newer dump"
        else:
            if rank in newest:
                left_out[newest[rank].name] = f"rank {rank} has a newer dump"
            newest[rank] = path
    dumps: dict[int, Dump] = {}
    for rank, found in _read_all(newest).items():
        if isinstance(found, Dump):
            dumps[rank] = found
        else:
            left_out[newest[rank].name] = found
    if not dumps:
        reason = next((f": {name}: {why}" for name, why in left_out.items()), "")
        raise CommandError(f"{folder}: no dump of a flight recorder in it{reason}")
    return dumps, left_out


def _read_all(paths: dict[int, Path]) -> dict[int, Dump | str]:
    """Read in processes of their own: many at once, and none takes this one down."""
    if not paths:
        return {}
    workers = min(len(paths), os.cpu_count() or 1)
    try:
        with ProcessPoolExecutor(workers, initializer=_limit) as pool:
            chunk = max(1, min(64, len(paths) // workers))
            return dict(zip(paths, pool.map(_read, paths.values(), paths, chunksize=chunk), strict=True))
    except BrokenProcessPool as error:
        raise CommandError("a process that reads dumps was killed; is there enough memory?") from error


def _limit() -> None:
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = _READER_BYTES if hard == resource.RLIM_INFINITY else min(hard, _READER_BYTES)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def _read(path: Path, rank: int) -> Dump | str:
    try:
        return read(path, rank)
    except DumpError as error:
        return str(error)


def _lines(verdict: Verdict, left_out: dict[str, str]) -> list[str]:
    lines = [f"{verdict.dumps} dumps of {verdict.ranks} ranks"]
    lines += [f"  left out {name}: {reason}" for name, reason in list(left_out.items())[:_SHOWN]]
    lines += [f"  and {len(left_out) - _SHOWN} more files"] if len(left_out) > _SHOWN else []
    if verdict.culprits:
        ranks = ranks_as_text(culprit.rank for culprit in verdict.culprits)
        lines += ["", f"Culprit{'s' if len(verdict.culprits) > 1 else ''}: {ranks}"]
        lines += [f"  rank {culprit.rank} {_because(culprit)}" for culprit in verdict.culprits[:_SHOWN]]
        lines += [f"  and {len(verdict.culprits) - _SHOWN} more"] if len(verdict.culprits) > _SHOWN else []
    else:
        lines += ["", "No verdict: the dumps do not tell who is to blame."]
    lines += [f"  {remark}" for remark in verdict.remarks]
    if verdict.waits:
        lines += ["", "Who waits for whom:"]
        lines += [f"  {_wait(wait)}" for wait in verdict.waits[:_SHOWN]]
        lines += [f"  and {len(verdict.waits) - _SHOWN} more collectives"] if len(verdict.waits) > _SHOWN else []
    return lines


def _because(culprit: Culprit) -> str:
    wait = culprit.wait
    at = f"{' / '.join(wait.operations)} {wait.sequence} of group {wait.group}"
    last = "" if culprit.newest is None else f", the newest that it issued there is {culprit.newest}"
    return f"{culprit.reason.value}: {_who_waits(wait)} in {at}{last}"


def _wait(wait: Wait) -> str:
    calls = ", ".join(f"{name} on {count}" for name, count in wait.operations.items())
    called = next(iter(wait.operations)) if len(wait.operations) == 1 else calls
    for_whom = ranks_as_text(wait.missing) if wait.missing else "nobody: all members have issued it"
    return f"{called} {wait.sequence} of group {wait.group}: {_who_waits(wait)} for {for_whom}"


def _who_waits(wait: Wait) -> str:
    return f"{ranks_as_text(wait.waiting)} wait{'s' if len(wait.waiting) == 1 else ''}"


def _plain(verdict: Verdict) -> dict[str, Any]:
    return {
        "ranks": verdict.ranks,
        "dumps": verdict.dumps,
        "culprits": [
            {
                "rank": culprit.rank,
                "reason": culprit.reason.name.lower(),
                "group": str(culprit.wait.group),
                "sequence": culprit.wait.sequence,
                "newest": culprit.newest,
                "waiting": list(culprit.wait.waiting),
            }
            for culprit in verdict.culprits
        ],
        "waits": [
            {
                "group": str(wait.group),
                "sequence": wait.sequence,
                "operations": dict(wait.operations),
                "waiting": list(wait.waiting),
                "missing": list(wait.missing),
            }
            for wait in verdict.waits
        ],
        "remarks": list(verdict.remarks),
    }
