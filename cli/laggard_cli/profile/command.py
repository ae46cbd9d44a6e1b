"""``laggard profile``: has ranks of a run profile their next steps, and says what differs between two of them."""

from __future__ import annotations

import argparse
import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from laggard.shared.control import MAX_STEPS
from laggard_cli.asking import ask
from laggard_cli.clusters import Run, add_cluster, find_run
from laggard_cli.console import stdout
from laggard_cli.errors import CommandError
from laggard_cli.folders import state_directory
from laggard_cli.kineto.difference import pair, show_differences
from laggard_cli.kineto.run import read_run
from laggard_cli.live import live_run
from laggard_cli.local import LocalRank, choose, local_ranks, permitted, rank_numbers, spans
from laggard_cli.past.times import seconds as seconds_of
from laggard_cli.profile import choice
from laggard_cli.profile.remote import Exporters, RemoteRank, request_from_exporter
from laggard_cli.progress import Progress
from laggard_cli.prometheus import Prometheus
from laggard_cli.servers import add_server, connect, is_named
from laggard_cli.terminal import printable

_COMPARED = 2
#: How far back the clusters of a run are looked for.
_LIVE_SECONDS = 300.0
#: What node exporters may take to withdraw requests.
_STOP_SECONDS = 5.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = (
        "Examples:\n  laggard profile --prometheus http://localhost:9090\n"
        "  laggard profile --run pretrain-7 --ranks 0,3 --steps 5 --output /data/profiles"
    )
    parser.add_argument("--run", dest="name", metavar="NAME", help="the run; may be left out where it is the only one")
    parser.add_argument(
        "--ranks",
        metavar="R,R…",
        help="the ranks, for example 0,3 (default: all on this host; with --prometheus the culprit and a healthy peer)",
    )
    parser.add_argument("--steps", type=int, default=5, help="steps to profile (default %(default)s)")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="where the ranks write (default: state folder)")
    parser.add_argument(
        "--stacks",
        action=argparse.BooleanOptionalAction,
        help="record Python functions, which slows these steps (default: where the verdict is on data or other)",
    )
    parser.add_argument("--state-dir", type=Path, metavar="FOLDER", help="folder of the ranks' state files")
    parser.add_argument("--timeout", default="5m", metavar="DURATION", help="how long to wait (default %(default)s)")
    add_server(parser, "a server that runs laggard's rules, to know the culprit and other hosts")
    add_cluster(parser, "with --prometheus the cluster of the run, where several have one of that name")
    remote = parser.add_argument_group("ranks on other hosts, which their node exporters ask")
    remote.add_argument(
        "--exporter-url",
        default="https://{instance}",
        metavar="URL",
        help="of a node exporter; {instance} and {host} are what Prometheus calls it (default %(default)s)",
    )
    remote.add_argument("--exporter-credentials", type=Path, metavar="FILE", help="holds user:password")
    remote.add_argument("--exporter-ca", type=Path, metavar="FILE", help="authority that signed their certificates")
    remote.add_argument(
        "--exporter-certificate", type=Path, metavar="FILE", help="certificate and key of this client, as PEM"
    )


def run(options: argparse.Namespace) -> int:
    """Ask, follow the replies, compare two traces, and return 1 where a rank gave none."""
    if not 1 <= options.steps <= MAX_STEPS:
        raise CommandError(f"--steps {options.steps} is not 1 to {MAX_STEPS}")
    directory = state_directory(options).absolute()
    output: Path = (options.output or directory).absolute()
    if not output.is_dir():
        if options.output is None:
            raise CommandError(f"--output is missing: the state folder {output}, its default, is not on this host")
        raise CommandError(f"--output must be a folder, got {output}")
    live = live_run(options.local_folder)
    # A local run's server knows of its ranks alone.
    if not is_named(options) and (live is None or live.state_directory != str(directory)):
        name, ranks = choose(directory, options.name, options.ranks)
        plan = _Plan(name, ranks, (), None, in_code=False)
    else:
        with contextlib.closing(connect(options)) as prometheus:
            plan = _planned(prometheus, options, directory)
    found = _asked(plan, options, directory, output)
    if len(found) >= _COMPARED:
        _compare(found, plan.culprit)
    return int(len(found) < len(plan.here) + len(plan.elsewhere))


@dataclass(frozen=True)
class _Plan:
    """Who is asked: ranks on this host by their control files, those elsewhere through their node exporters."""

    run: str
    here: Sequence[LocalRank]
    elsewhere: Sequence[RemoteRank]
    #: The rank that a verdict names.
    culprit: int | None
    #: Whether that names a phase in which no operator of torch runs.
    in_code: bool


def _planned(prometheus: Prometheus, options: argparse.Namespace, directory: Path) -> _Plan:
    culprit: int | None = None
    run: Run | None = None
    name: str | None = options.name
    in_code = False
    if options.ranks is None:
        chosen = choice.choose_pair(prometheus, name, options.cluster)
        run, culprit, numbers = chosen.run, chosen.culprit, sorted((chosen.culprit, chosen.peer))
        name, in_code = run.name, chosen.in_code
        where = f", phase {chosen.phase}" if chosen.phase else ""
        shown = printable(f"{chosen.alert} names rank {culprit} of {run}{where}; rank {chosen.peer} is a healthy peer")
        print(shown, flush=True)
    else:
        numbers = rank_numbers(options.ranks)
        if name is None:
            raise CommandError("--run is needed beside --ranks and --prometheus")
        choice.refuse_stalled(prometheus, name, options.cluster)
    here: Mapping[int, LocalRank] = {}
    if directory.is_dir():
        here = local_ranks(directory).get(name, {})
    local = permitted([here[number] for number in numbers if number in here])
    missing = [number for number in numbers if number not in here]
    elsewhere: list[RemoteRank] = []
    if missing:
        exporters = Exporters(
            options.exporter_url, options.exporter_credentials, options.exporter_ca, options.exporter_certificate
        )
        run = run or find_run(
            prometheus, name, options.cluster, "training_process_up", seconds=_LIVE_SECONDS, at=time.time()
        )
        known = choice.addresses(prometheus, run, missing)
        elsewhere = [exporters.rank(name, number, known.get(number)) for number in missing]
    return _Plan(name, local, elsewhere, culprit, in_code)


def _asked(plan: _Plan, options: argparse.Namespace, directory: Path, output: Path) -> dict[int, Path]:
    """Ask all ranks at once, so that they profile the same time; return the files by rank."""
    steps, seconds = int(options.steps), seconds_of("--timeout", options.timeout)
    found: dict[int, Path] = {}
    settings: dict[str, Any] = {
        "output": output,
        "steps": steps,
        "seconds": seconds,
        "stacks": plan.in_code if options.stacks is None else options.stacks,
        "progress": Progress(),
    }
    stopped = threading.Event()

    def request_there(rank: RemoteRank) -> None:
        found.update(request_from_exporter(rank, stopped=stopped, **settings))

    # They end with this process: an interrupt must not wait long for them.
    threads = [threading.Thread(target=request_there, args=(rank,), daemon=True) for rank in plan.elsewhere]
    for thread in threads:
        thread.start()
    try:
        if plan.here:
            found |= ask("profile", plan.run, plan.here, directory=directory, **settings)
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        stopped.set()
        until = time.monotonic() + _STOP_SECONDS
        for thread in threads:
            thread.join(max(until - time.monotonic(), 0))
        numbers = sorted(each.number for each in (*plan.here, *plan.elsewhere))
        who = f"{'ranks' if len(numbers) > 1 else 'rank'} {spans(numbers)} of {plan.run}"
        what = "drop their profiles" if len(numbers) > 1 else "drops its profile"
        settings["progress"].result(f"interrupted: {who} {what} with the next step")
        raise
    settings["progress"].end()
    return found


def _compare(found: Mapping[int, Path], culprit: int | None) -> None:
    """Print what differs between the culprit, or the slowest, and the usual one of the others."""
    print(f"reads {len(found)} traces", flush=True)
    try:
        slow, other = pair(read_run([found[rank] for rank in sorted(found)]).ranks, culprit)
    except CommandError as error:
        print(f"not compared: {error}")
        return
    show_differences(stdout(), slow, other)
