"""``laggard run CMD…``: sensible defaults, then OpenTelemetry's own launcher.

Everything set here is an environment variable that a user may set instead; a value that is set already stays.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import NoReturn

from laggard.shared import environment
from laggard_cli.errors import CommandError

_LAUNCHER = "opentelemetry-instrument"
_PROPAGATORS = "OTEL_PROPAGATORS"
_FOLDER = "laggard-runs"
#: Of a program, which the kernel reads to learn by what it is started.
_FIRST_LINE = 256
#: For which a job may wait until it is known whether its Python has laggard.
_PROBE_SECONDS = 10.0

_DEFAULTS = {
    "OTEL_SERVICE_NAME": "training",
    "OTEL_METRICS_EXPORTER": "laggard_prometheus",
    "OTEL_TRACES_EXPORTER": "none",
    "OTEL_LOGS_EXPORTER": "none",
    "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "laggard,otel",
    environment.LAGGARD_PROVIDERS: "replaceable",
}

#: Where an OTLP endpoint is given, everything goes there; a run of minutes must not wait a minute for its first point.
_OTLP_DEFAULTS = {
    "OTEL_METRICS_EXPORTER": "otlp",
    "OTEL_TRACES_EXPORTER": "otlp",
    "OTEL_METRIC_EXPORT_INTERVAL": "15000",
    "OTEL_EXPORTER_OTLP_TIMEOUT": "3",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = (
        "Examples:\n  laggard run --local torchrun --nproc-per-node 8 train.py\n"
        "  laggard run torchrun --nproc-per-node 8 train.py --epochs 3"
    )
    parser.add_argument("--run", dest="name", metavar="NAME", help="name of the run, equal on all nodes")
    parser.add_argument("--workload", metavar="NAME", help="name of what is trained, stable across runs")
    parser.add_argument(
        "--local",
        action="store_true",
        help="watch the job on this machine, with no server to install: start a node exporter and a Prometheus on "
        "loopback, print verdicts as they come and a card at the end, and end with the job and its exit code",
    )
    local = parser.add_argument_group("with --local")
    local.add_argument("--quiet", action="store_true", help="with --local: print no verdicts and no card")
    local.add_argument("--json", type=Path, metavar="FILE", help="with --local: also write the card as JSON")
    local.add_argument(
        "--folder",
        type=Path,
        metavar="FOLDER",
        help=f"with --local: where the run gets a folder of its own (default {_FOLDER})",
    )
    local.add_argument(
        "--keep",
        action="store_true",
        help="with --local: keep Prometheus' data, its configuration, the rules and the logs",
    )
    local.add_argument(
        "--profile",
        choices=("local", "quick", "fast", "production"),
        default="local",
        help="with --local: of the rules; local takes least beside production, quick and above all fast are sooner "
        "with a verdict (default local)",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="CMD…", help="the command and its arguments")


def run(options: argparse.Namespace) -> NoReturn:
    """Replace this process by the launcher. Raises :class:`CommandError` where that cannot work."""
    command: list[str] = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        raise CommandError("no command; example: laggard run torchrun --nproc-per-node 8 train.py")
    # The launcher beside this interpreter belongs to the environment that laggard is installed in.
    beside = Path(sys.executable).with_name(_LAUNCHER)
    launcher = str(beside) if beside.exists() else shutil.which(_LAUNCHER)
    if launcher is None:
        raise CommandError(f"{_LAUNCHER} is not installed: pip install 'laggard[otel]'")
    command = _startable(command)
    variables = {**os.environ, **defaults(dict(os.environ), options.name, options.workload)}
    _leave_out_propagators(variables)
    if options.local:
        # It needs packages that the rest of this command does without.
        from laggard_cli.local_run.command import run as run_local  # noqa: PLC0415 - as above

        run_local(options, launcher, [launcher, *command], variables)
    for flag in ("quiet", "json", "folder", "keep"):
        if getattr(options, flag):
            raise CommandError(f"--{flag} needs --local")
    os.environ.update(variables)
    os.execv(launcher, [launcher, *command])  # noqa: S606 - handing over is the purpose


def _startable(command: list[str]) -> list[str]:
    """Return the command as a shell would start it; raise :class:`CommandError` for what none could."""
    name, *arguments = command
    program = shutil.which(name)
    if program is None:
        if name.endswith(".py") and Path(name).is_file():
            raise CommandError(f"command {name!r} is not executable; try laggard run python {name}")
        raise CommandError(f"command {name!r} is not {'executable' if Path(name).is_file() else 'on PATH'}")
    interpreter: str | None = program
    with contextlib.suppress(OSError), Path(program).open("rb") as file:  # not every program may be read
        first = file.readline(_FIRST_LINE)
        named = os.fsdecode(first[2:].replace(b"\t", b" ").strip(b" \n")) if first.startswith(b"#!") else ""
        if named:
            interpreter, *options = named.split(" ")
            if not Path(interpreter).exists():
                raise CommandError(f"command {name!r} is a script for {interpreter!r}, which does not exist")
            if Path(interpreter).name == "env" and options:
                interpreter = shutil.which(options[-1])
        elif b"\0" not in first:
            # A shell, env and timeout read what is no binary as a script of sh.
            return ["/bin/sh", program, *arguments]
    if interpreter is not None and _lacks_laggard(interpreter):
        print(
            f"laggard run: {interpreter} has no laggard, so nothing of what it runs is measured; install it there: "
            f"{interpreter} -m pip install 'laggard[otel]'",
            file=sys.stderr,
            flush=True,
        )
    return command


def _lacks_laggard(interpreter: str) -> bool:
    """Return whether a program is the Python of another environment, in which laggard is not installed."""
    path = Path(interpreter)
    if not path.name.startswith("python") or path.parent.resolve() == Path(sys.executable).parent.resolve():
        return False
    probe = [interpreter, "-c", "import laggard, opentelemetry.instrumentation"]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(probe, capture_output=True, timeout=_PROBE_SECONDS, check=False).returncode == 1
    return False


def _leave_out_propagators(variables: dict[str, str]) -> None:
    """Leave out propagators that are not installed. The launcher would end with a traceback before the job begins."""
    named = [name.strip() for name in variables.get(_PROPAGATORS, "").split(",")]
    installed = {entry.name for entry in entry_points(group="opentelemetry_propagator")} if any(named) else set[str]()
    kept = [name for name in named if name in installed or name.lower() == "none"]
    missing = [name for name in named if name and name not in kept]
    if missing:
        variables[_PROPAGATORS] = ",".join(kept) or "none"
        print(
            f"laggard run: {_PROPAGATORS} must name propagators that are installed, got {', '.join(missing)}; the job "
            "runs without; to have them, install their packages beside laggard",
            file=sys.stderr,
            flush=True,
        )


def defaults(present: dict[str, str], run: str | None, workload: str | None) -> dict[str, str]:
    """Return the variables to add to an environment."""
    otlp = any(name in present for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"))
    wanted = {**_DEFAULTS, **(_OTLP_DEFAULTS if otlp else {})}
    added = {name: value for name, value in wanted.items() if name not in present}
    named = {environment.LAGGARD_RUN: run, environment.LAGGARD_WORKLOAD: workload}
    return {**added, **{variable: value for variable, value in named.items() if value}}
