"""``laggard demo``."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from laggard_cli.demo.acts import ACTS, Act
from laggard_cli.demo.display import Display, show_result, show_summary
from laggard_cli.demo.play import Play, Result, all_right
from laggard_cli.demo.stack import Stack
from laggard_cli.errors import CommandError
from laggard_cli.local_servers.processes import interrupted_by_sigterm


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = (
        "Example:\n  laggard demo --json demo.json\n"
        "Ends with code 1 when a verdict is wrong; an act with a fault has two tries."
    )
    parser.add_argument(
        "--acts",
        nargs="+",
        metavar="ACT",
        choices=[act.name for act in ACTS],
        default=[act.name for act in ACTS],
        help=f"play the healthy act and these: {', '.join(act.name for act in ACTS[1:])} (default all)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results as JSON")
    parser.add_argument("--keep", action="store_true", help="leave the servers up at the end, until Ctrl-C")


def run(options: argparse.Namespace) -> int:
    """Play all acts; return 0 when every verdict was right."""
    console = Console()
    with (
        interrupted_by_sigterm(),
        tempfile.TemporaryDirectory(prefix="laggard-demo-") as folder,
        Stack(Path(folder), _run_name()) as stack,
    ):
        if options.keep:
            _show_addresses(console, stack)
        started = time.monotonic()
        results = _play(console, stack, chosen(options.acts))
        console.print(f"Played in {time.monotonic() - started:.0f} s, with the start of the job.", highlight=False)
        if options.json is not None:
            _write(options.json, results)
        right = all_right(results)
        if options.keep:
            _show_addresses(console, stack)
            console.print("Ctrl-C ends them.")
            _wait_for_interrupt()
    return 0 if right else 1


def chosen(names: list[str]) -> list[Act]:
    """Return the acts of these names in the order of the demo, after the healthy one, which measures the step."""
    return [act for act in ACTS if act is ACTS[0] or act.name in names]


def _play(console: Console, stack: Stack, acts: list[Act]) -> list[Result]:
    with Display(console) as show:
        play = Play(stack, acts, show, lambda result: show_result(console, result))
        results = play.play()
    show_summary(console, play, results)
    return results


def _write(path: Path, results: list[Result]) -> None:
    plain: list[dict[str, Any]] = [
        {**asdict(result), "right": result.right, "seconds": result.seconds} for result in results
    ]
    try:
        path.write_text(json.dumps({"right": all_right(results), "acts": plain}, indent=2))
    except OSError as error:
        raise CommandError(f"--json {path}: {error.strerror}") from error


def _show_addresses(console: Console, stack: Stack) -> None:
    for name, address in stack.addresses.items():
        console.print(f"{name}: {address}")


def _wait_for_interrupt() -> None:
    try:
        while True:
            time.sleep(1)
    except KeyboardInterrupt:
        return


def _run_name() -> str:
    return f"demo-{time.strftime('%H%M%S')}"
