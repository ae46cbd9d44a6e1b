"""``laggard run --local``: what is checked before the job starts, the job, and the end as the job's end."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from typing import NoReturn

from laggard.shared import environment
from laggard.shared.names import run_name
from laggard_cli.errors import CommandError
from laggard_cli.local_run.job import Job, end_as
from laggard_cli.local_run.place import make
from laggard_cli.local_run.plan import Plan
from laggard_cli.local_servers.ports import free_ports
from laggard_cli.local_servers.programs import find_prometheus

#: Of the monitor and of the node exporter, whose extras an installation may lack.
_NEEDED = ("httpx", "markdown_it", "numpy", "promql_parser", "rich", "yaml", "prometheus_client", "psutil")
#: A page, a card and the end of the servers; a minute where the machine is busy.
_END_SECONDS = 60.0
#: Ranks of one machine, twice over.
_RANK_PORTS = 32


def run(options: argparse.Namespace, program: str, arguments: Sequence[str], variables: Mapping[str, str]) -> NoReturn:
    """Run the job with its watchers, and end as it does.

    Args:
        options: of ``laggard run``.
        program: path of what is executed.
        arguments: the whole command, the program's name first.
        variables: the job's environment.

    Raises:
        CommandError: something that is needed is not there; nothing was started.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise CommandError(f"--local needs the package {missing[0]}: pip install 'laggard[local]'")
    if options.json is not None and not options.json.absolute().parent.is_dir():
        raise CommandError(f"--json {options.json}: {options.json.absolute().parent} is not a folder; make it first")
    prometheus = find_prometheus()
    name = run_name(variables.get(environment.LAGGARD_RUN, "")) or time.strftime("local-%Y%m%d-%H%M%S")
    place = make(options.folder, name)
    plan = Plan(
        run=name,
        place=place,
        profile=options.profile,
        prometheus=prometheus,
        quiet=options.quiet,
        json=options.json and options.json.absolute(),
        keep=options.keep,
    )
    job = Job(program, arguments, {**variables, **_served(variables), environment.LAGGARD_RUN: name, **_state(plan)})
    try:
        job.watch(lambda channel: _monitor(plan, job.pid, channel))
    except OSError as error:
        _say(f"no verdicts: {error.strerror}")
    status = job.wait()
    if why := job.let_witness_end(_END_SECONDS):
        _say(f"no card: {why}")
        # Its servers ended with it.
        place.clean(keep=options.keep)
    end_as(status)


def _monitor(plan: Plan, job: int, channel: socket.socket) -> None:
    # Imported only here: the process that stands for the job stays small, and no import comes before the job.
    from laggard_cli.local_run.monitor import Monitor  # noqa: PLC0415 - as the comment above says

    Monitor(plan, job, channel).run()


def _say(text: str) -> None:
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            os.write(sys.stderr.fileno(), f"laggard: {text}\n".encode())


def _state(plan: Plan) -> dict[str, str]:
    return {environment.LAGGARD_STATE_DIR: str(plan.place.state_directory)}


def _served(variables: Mapping[str, str]) -> dict[str, str]:
    """Return what has the ranks serve their metrics, beside what they export already."""
    exporters = [
        name for name in variables.get("OTEL_METRICS_EXPORTER", "").split(",") if name.strip() not in ("", "none")
    ]
    if "laggard_prometheus" not in exporters:
        exporters.append("laggard_prometheus")
    port = (
        {}
        if variables.get(environment.OTEL_EXPORTER_PROMETHEUS_PORT)
        else {environment.OTEL_EXPORTER_PROMETHEUS_PORT: str(free_ports(_RANK_PORTS)[0])}
    )
    return {"OTEL_METRICS_EXPORTER": ",".join(exporters), **port}
