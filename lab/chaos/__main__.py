"""Breaks jobs under the real stack and says whether the alerts were right.

python -m lab.chaos
python -m lab.chaos --faults stopped worker-lock --placements 3 --json chaos.json
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import shutil
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lab.chaos import report
from lab.chaos.faults import FAULTS
from lab.chaos.own import OWN_FAULTS
from lab.chaos.own_play import OwnPlay, OwnResult
from lab.chaos.play import Case, Play, Result
from lab.chaos.stack import Stack
from laggard_cli.errors import CommandError

#: Size of the job and the culprit's rank; a fault takes the first ones, another fault begins with another.
PLACEMENTS = ((4, 2), (6, 5), (8, 0))
_SMALL = ((4, 2), (4, 0), (4, 3))


def main() -> int:
    """Play the cases; return 0 when all came true."""
    options = _options()
    if options.document:
        report.DOCUMENT.write_text(report.document(report.DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="laggard-chaos-"))
    try:
        results, own = _play(options, folder)
    except CommandError as error:
        print(f"chaos: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    finally:
        if options.keep:
            print(f"logs and data: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    all_results = [*results, *own]
    right = sum(result.passed for result in all_results)
    skipped = sum(bool(result.skipped) for result in all_results)
    took = time.monotonic() - began
    print(f"{right} of {len(all_results)} cases as promised, {skipped} of them skipped, in {took:.0f} s")
    if options.json:
        options.json.write_text(json.dumps(report.plain(results, own), indent=2) + "\n", encoding="utf-8")
    return int(right < len(all_results))


def cases(names: list[str], placements: int) -> list[Case]:
    """Return the cases of some faults, each in so many placements; which comes first differs from fault to fault."""
    sizes = itertools.cycle(_SMALL) if placements == 1 else None
    return [
        Case(fault, *place)
        for fault in FAULTS
        if fault.name in names
        for place in ([next(sizes)] if sizes else PLACEMENTS[:placements])
    ]


def _play(options: argparse.Namespace, folder: Path) -> tuple[list[Result], list[OwnResult]]:
    stack = Stack(folder, options.jobs)
    play, own = Play(stack, _show), OwnPlay(stack, _show)
    with stack.servers, ThreadPoolExecutor(options.jobs) as pool, contextlib.closing(play):
        try:
            results = list(pool.map(play.play, cases(options.faults, options.placements)))
            # After the others: these take away what finds them.
            chosen = [fault for fault in OWN_FAULTS if fault.name in options.faults]
            together = list(pool.map(own.play, (fault for fault in chosen if not fault.alone)))
            return results, [*together, *(own.play(fault) for fault in chosen if fault.alone)]
        except KeyboardInterrupt:
            stack.interrupt()
            pool.shutdown(cancel_futures=True)
            raise


def _show(text: str) -> None:
    print(text, flush=True)


def _options() -> argparse.Namespace:
    names = [fault.name for fault in (*FAULTS, *OWN_FAULTS)]
    parser = argparse.ArgumentParser(prog="lab.chaos", description="Breaks jobs under the real stack.")
    parser.add_argument("--faults", nargs="+", choices=names, default=names, metavar="FAULT", help=", ".join(names))
    parser.add_argument("--placements", type=int, choices=(1, 2, 3), default=1, help="jobs for each fault (default 1)")
    parser.add_argument("--jobs", type=int, default=3, help="jobs at a time (default 3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results as JSON")
    parser.add_argument("--keep", action="store_true", help="keep logs and data")
    parser.add_argument("--document", action="store_true", help="only bring docs/reliability.md up to date")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
