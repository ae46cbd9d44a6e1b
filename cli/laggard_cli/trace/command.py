"""``laggard trace``: one trace of the last steps of ranks that are asked on this host, or whose files are given."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from laggard.shared import control
from laggard_cli.asking import ask
from laggard_cli.errors import CommandError
from laggard_cli.folders import add_folder, state_directory
from laggard_cli.local import choose
from laggard_cli.past.times import seconds
from laggard_cli.terminal import printable
from laggard_cli.trace.clocks import Skew, skews
from laggard_cli.trace.files import RankTrace, events_of, read


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = (
        "Examples:\n  laggard trace --run pretrain-7 --output steps.json\n"
        "  laggard trace node-*/*.trace.json --output steps.json\nThe result opens in ui.perfetto.dev."
    )
    parser.add_argument(
        "files", nargs="*", type=Path, metavar="FILE", help="what ranks wrote, of any host (default: ask ranks here)"
    )
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="where the trace goes")
    parser.add_argument("--run", dest="name", metavar="NAME", help="the run; may be left out where one run is here")
    parser.add_argument("--ranks", metavar="R,R…", help="the ranks, for example 0,3 (default: all on this host)")
    add_folder(parser)
    parser.add_argument("--state-dir", type=Path, metavar="FOLDER", help="folder of the ranks' state files")
    parser.add_argument("--timeout", default="30s", metavar="DURATION", help="how long to wait (default %(default)s)")


def run(options: argparse.Namespace) -> int:
    """Write the trace; return 1 where a rank that was asked gave none."""
    output: Path = options.output.absolute()
    if not output.parent.is_dir():
        raise CommandError(f"--output {options.output}: there is no folder {output.parent}")
    if options.files:
        asked = [name for name in ("name", "ranks", "state_dir") if getattr(options, name) is not None]
        if asked:
            flag = {"name": "run", "state_dir": "state-dir"}.get(asked[0], asked[0])
            raise CommandError(f"--{flag} is for ranks that are asked, not for files")
        _join(options.files, output)
        return 0
    waited = seconds("--timeout", options.timeout)
    directory = state_directory(options).absolute()
    name, ranks = choose(directory, options.name, options.ranks)
    found: dict[int, Path] = {}
    try:
        found = ask("trace", name, ranks, directory=directory, output=directory, steps=1, seconds=waited)
        if not found:
            raise CommandError("no rank gave its last steps")
        _join(list(found.values()), output)
    finally:
        for path in found.values():
            with contextlib.suppress(OSError):
                path.unlink()
    return int(len(found) < len(ranks))


def _join(paths: Sequence[Path], output: Path) -> None:
    traces = sorted((read(path) for path in paths), key=lambda trace: trace.rank)
    runs = sorted({trace.run for trace in traces})
    if len(runs) > 1:
        raise CommandError(f"files of {len(runs)} runs, {', '.join(map(repr, runs))}; give those of one")
    twice = [rank for rank, count in Counter(trace.rank for trace in traces).items() if count > 1]
    if twice:
        both = " and ".join(str(trace.path) for trace in traces if trace.rank == twice[0])
        raise CommandError(f"rank {twice[0]} is in {both}; give one of them")
    clocks = skews(traces)
    try:
        control.write_atomically(output, _lines(traces, clocks))
    except OSError as error:
        raise CommandError(f"--output {output}: {error.strerror}") from error
    steps = max(trace.steps for trace in traces)
    ranks = "rank" if len(traces) == 1 else "ranks"
    print(f"{output}: the last {steps} steps of {len(traces)} {ranks} of {printable(runs[0])}")
    for host, skew in clocks.items():
        if len(clocks) > 1:
            print(f"clock of {printable(host)}: {_said(skew, first=host == next(iter(clocks)))}")


def _said(skew: Skew | None, *, first: bool) -> str:
    if first:
        return "the others are moved to it"
    if skew is None:
        return "not compared, since no step has a collective that both hosts' ranks waited for; not moved"
    return f"{skew.ahead / 1000:+.3f} ms, half of {skew.steps} steps within {skew.spread / 1000:.3f} ms; taken off"


def _lines(traces: Sequence[RankTrace], clocks: Mapping[str, Skew | None]) -> Iterator[str]:
    """Yield the text of the trace, a rank at a time: all of a large run would not fit into memory."""
    ahead = {host: None if skew is None else skew.ahead for host, skew in clocks.items()}
    facts = {"run": traces[0].run, "clock_ahead_us": ahead}
    yield f'{{"displayTimeUnit":"ms","otherData":{json.dumps(facts)},"traceEvents":[\n'
    separator = ""
    for trace in traces:
        shift = ahead[trace.host] or 0
        for event in events_of(trace.path)[1]:
            if event["name"] == "process_name":
                event["args"] = {"name": f"rank {trace.rank}, {trace.host}"}
            if "ts" in event:
                event["ts"] -= shift
            yield separator + json.dumps(event, separators=(",", ":"))
            separator = ",\n"
    yield "\n]}\n"
