"""Says what thousands of ranks cost one Prometheus with the whole rule pack, and whether it is still right and in time.

    python -m lab.scale --ranks 1000 10000 --json scale.json
    python -m lab.scale --add scale.json steps.json --document docs/scale.md --picture docs/scale.svg

Simulated nodes serve real pages on loopback, each its exporter's and the one of its eight ranks; Prometheus scrapes
and evaluates as deploy/prometheus/prometheus.yml has it. With ``--path otlp`` the ranks push, to Collectors with the
configurations of otel-collector, which write to the server. Half of the ranks are one run, in which one rank becomes
slow; a quarter are another, which hangs; a third run begins anew.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import deque
from dataclasses import asdict
from pathlib import Path

import psutil

from lab.scale.measure import Result, measure
from lab.scale.report import picture, tables, with_figures
from lab.scale.site import ENGINES, PACES, PATHS, Kill, Plan
from laggard_cli.errors import CommandError

_FEWEST = 16
#: Of the machine's memory all together may take so much.
_MEMORY_SHARE = 0.8


def main() -> int:
    """Print a table; return 0 when all verdicts came and no evaluation was missed."""
    options = _options()
    try:
        results = _read(options.add) if options.add else _play(options)
    except CommandError as error:
        print(f"scale: {error}", file=sys.stderr)
        return 2
    print(tables(results))
    if options.json:
        written = [asdict(each) for each in results]
        options.json.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
    if options.document:
        text = options.document.read_text(encoding="utf-8")
        options.document.write_text(with_figures(text, results), encoding="utf-8")
    if options.picture:
        try:
            options.picture.write_text(picture(results), encoding="utf-8")
        except CommandError as error:
            print(f"scale: {error}", file=sys.stderr)
            return 2
    return int(not all(each.held for each in results))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="lab.scale", description="What thousands of ranks cost one Prometheus.")
    parser.add_argument("--ranks", type=int, nargs="+", default=[100, 1000, 10_000], help="(default 100 1000 10000)")
    parser.add_argument(
        "--until-it-breaks", type=int, nargs="?", const=40_000, default=0, metavar="RANKS",
        help="double the last number of ranks until something gives way, or so many are reached (default %(const)s)",
    )  # fmt: skip
    parser.add_argument("--seconds", type=float, default=600.0, help="for each number of ranks (default %(default)s)")
    parser.add_argument("--fault", type=float, default=300.0, help="when things go wrong (default %(default)s)")
    parser.add_argument("--step", type=float, default=0.5, help="seconds of own work in a step (default %(default)s)")
    parser.add_argument("--path", choices=PATHS, default="scrape", help="how samples come (default %(default)s)")
    parser.add_argument("--engine", choices=ENGINES, default="prometheus", help="who stores and evaluates")
    parser.add_argument("--profile", choices=PACES, default="production", help="of the rules (default %(default)s)")
    parser.add_argument("--agents", type=int, default=0, metavar="COUNT", help="with otlp (default one for 2500 ranks)")
    parser.add_argument(
        "--kill", type=_kill, nargs="+", default=[], metavar="PROGRAM@SECONDS", help="kill -9 and start again 5 s later"
    )
    parser.add_argument("--dashboards", action="store_true", help="at the end ask what each dashboard does")
    parser.add_argument("--without-rules", action="store_true", help="storage alone, to see what rules add")
    parser.add_argument("--program", default="prometheus", help="the server's binary (default: on PATH)")
    parser.add_argument("--add", type=Path, nargs="+", metavar="FILE", help="play nothing, take figures of before")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    parser.add_argument("--document", type=Path, metavar="FILE", help="where a document has a place for them")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="how they grow, as SVG")
    options = parser.parse_args()
    if min(options.ranks) < _FEWEST:
        parser.error(f"--ranks {min(options.ranks)}: at least {_FEWEST}")
    pace = PACES[options.profile]
    if options.fault < pace.settled or options.seconds < options.fault + pace.interval:
        parser.error(f"--fault {options.fault:g}: at least {pace.settled:g}, and {pace.interval:g} less than --seconds")
    if options.engine == "thanos" and options.path != "otlp":
        parser.error("--engine thanos: what it stores comes by --path otlp")
    return options


def _kill(text: str) -> Kill:
    program, _, at = text.partition("@")
    return Kill(program, float(at))


def _play(options: argparse.Namespace) -> list[Result]:
    plan = Plan(
        program=options.program,
        seconds=options.seconds,
        fault=options.fault,
        step=options.step,
        rules=not options.without_rules,
        path=options.path,
        engine=options.engine,
        profile=options.profile,
        agents=options.agents,
        kills=tuple(options.kill),
        dashboards=options.dashboards,
    )
    results: list[Result] = []
    sizes = deque[int](options.ranks)
    while sizes:
        ranks = sizes.popleft()
        try:
            results.append(measure(ranks, plan))
        except CommandError as error:
            # The largest size may be too much for a server to live; the first may want something that is missing.
            if not results:
                raise
            results.append(Result(ranks, plan.step, plan.rules, path=plan.path, engine=plan.engine, broke=str(error)))
        print(json.dumps(asdict(results[-1])), file=sys.stderr, flush=True)
        if not sizes and results[-1].held and 2 * ranks <= options.until_it_breaks:
            if 2 * results[-1].in_use > _MEMORY_SHARE * psutil.virtual_memory().total:
                print(f"scale: {2 * ranks} ranks would take more memory than there is", file=sys.stderr)
            else:
                sizes.append(2 * ranks)
    return results


def _read(files: list[Path]) -> list[Result]:
    try:
        results = [Result(**each) for file in files for each in json.loads(file.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError) as error:
        raise CommandError(f"--add {' '.join(map(str, files))}: not what --json wrote: {error}") from error
    return sorted(results, key=lambda each: (each.path, each.engine, each.step, each.rules, each.ranks))


if __name__ == "__main__":
    sys.exit(main())
