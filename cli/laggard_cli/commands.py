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
    "run": ("laggard_cli.run", "run a command instrumented"),
    "diagnose": ("laggard_cli.diagnose.command", "say what Prometheus knows of a run: verdicts, evidence, what to do"),
    "top": ("laggard_cli.top", "show a run as it is now, again and again, on the whole terminal"),
    "report": ("laggard_cli.report.command", "write one page about a run: verdicts, pictures, cost, for an incident"),
    "hang": ("laggard_cli.hang.command", "say which rank does not join a collective, from flight-recorder dumps"),
    "replay": (
        "laggard_cli.replay.command",
        "judge a recording by the shipped rules, or traces of torch's profiler, and score that against the truth",
    ),
    "gate": ("laggard_cli.gate.command", "say whether a run is slower than a baseline: for continuous integration"),
    "profile": (
        "laggard_cli.profile.command",
        "have ranks profile their next steps, and compare a culprit with a peer",
    ),
    "trace": ("laggard_cli.trace.command", "put the last steps of several ranks into one trace, on one clock"),
    "stacks": ("laggard_cli.stacks", "say where ranks on this host stand in their Python code, even stopped ones"),
    "rules": ("laggard_cli.rules.command", "render the rule pack, check thresholds"),
    "init": ("laggard_cli.site.command", "write what a site needs: configurations, rules, dashboards, receivers"),
    "doctor": ("laggard_cli.doctor.command", "say what of a monitoring set-up does not work, and what to do"),
    "runbook": ("laggard_cli.runbook", "print the page of an alert with run and rank filled in"),
    "kubernetes": ("laggard_cli.kubernetes", "print the manifest of a job so that its pods run instrumented"),
    "slurm": ("laggard_cli.slurm", "write the nodes that Slurm knows as targets; clean up after a job"),
    "demo": ("laggard_cli.demo.command", "train a real model on 4 ranks, break it, and name the culprit"),
    "completion": ("laggard_cli.completion", "print what makes a shell complete laggard's commands and options"),
    "help": ("laggard_cli.help", "print what a command does and its options"),
    "version": ("laggard_cli.versions", "print the version of laggard and of its rules"),
}

#: What starts ranks, or looks at those of this host.
_OF_RANKS = ("run", "trace", "stacks", "slurm", "demo")


def parser(wanted: Collection[str]) -> argparse.ArgumentParser:
    """Return the parser of all commands, with the arguments of those that are wanted.

    Raises :class:`CommandError` where a package that a wanted command needs is missing.
    """
    whole = Parser(
        prog="laggard", description="Which rank, which phase and which cause makes a training job slow or stuck."
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
