"""The sub-commands of ``laggard``, each in a module that is imported only when it is needed."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Collection
from typing import Any

from laggard.shared import statefile
from laggard.version import VERSIONS
from laggard_cli.arguments import Parser
from laggard_cli.errors import CommandError

#: Sub-command, the module that has its ``configure`` and ``run``, and one line of help.
COMMANDS = {
    "run": (
        "laggard_cli.run",
        "run a job with laggard's instrumentation; --local also watches it, with no server to install",
    ),
    "diagnose": ("laggard_cli.diagnose.command", "show the verdicts on a run, with evidence and what to do"),
    "top": ("laggard_cli.top", "show a run live, on the whole terminal"),
    "report": ("laggard_cli.report.command", "write one page about a run: verdicts, pictures, cost"),
    "hang": ("laggard_cli.hang.command", "name the rank that does not join a collective, from flight-recorder dumps"),
    "replay": (
        "laggard_cli.replay.command",
        "apply the rules to a recording, or to traces of torch's profiler, and score the verdicts against the truth",
    ),
    "gate": ("laggard_cli.gate.command", "check whether a run is slower than a baseline: for continuous integration"),
    "profile": (
        "laggard_cli.profile.command",
        "profile the next steps of ranks, and compare the culprit with a peer",
    ),
    "trace": ("laggard_cli.trace.command", "merge the last steps of several ranks into one trace, on one clock"),
    "stacks": ("laggard_cli.stacks", "show where ranks on this host are in their Python code, even stopped ones"),
    "rules": ("laggard_cli.rules.command", "render the rule pack, check thresholds"),
    "init": ("laggard_cli.site.command", "write the files of a site: configurations, rules, dashboards, receivers"),
    "doctor": ("laggard_cli.doctor.command", "check a monitoring set-up, and say what to do about each fault"),
    "runbook": ("laggard_cli.runbook", "print the runbook of an alert, with run and rank filled in"),
    "kubernetes": ("laggard_cli.kubernetes", "add laggard to the manifest of a job"),
    "slurm": ("laggard_cli.slurm", "write Slurm's nodes as targets for Prometheus; clean up after a job"),
    "demo": ("laggard_cli.demo.command", "train a real model on 4 ranks, break it, and name the culprit"),
    "completion": ("laggard_cli.completion", "print the completion script of a shell"),
    "help": ("laggard_cli.help", "print the help of a command"),
    "version": ("laggard_cli.versions", "print the version of laggard and of its rules"),
}

#: What starts ranks, or looks at those of this host.
_OF_RANKS = ("run", "trace", "stacks", "slurm", "demo")


def parser(wanted: Collection[str]) -> argparse.ArgumentParser:
    """Return the parser of all commands, with the arguments of those that are wanted.

    Raises :class:`CommandError` where a package that a wanted command needs is missing.
    """
    whole = Parser(
        prog="laggard",
        description="Which rank, which phase and which cause makes a training job slow or stuck.",
        epilog="Example:\n  laggard run --local torchrun --nproc-per-node 4 train.py\n"
        "laggard help COMMAND shows the options of a command.",
    )
    whole.add_argument("--version", action="version", version=f"laggard {VERSIONS}")
    commands = whole.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    for command, (module, summary) in COMMANDS.items():
        sub_parser = commands.add_parser(command, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        if command in wanted:
            loaded = _load(command, module)
            loaded.configure(sub_parser)
            sub_parser.set_defaults(run=loaded.run)
    return whole


def _load(command: str, module: str) -> Any:
    if command in _OF_RANKS and statefile.fcntl is None:
        raise CommandError(f"{command} needs ranks on this host, so Linux or macOS, and this is {sys.platform}")
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in ("laggard", "laggard_cli", "laggard_exporter"):
            raise
        raise CommandError(f"{command} needs the package {error.name}: pip install 'laggard[cli]'") from error
