"""``laggard init``: writes the files of a site, and has the servers' own tools look at them."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from laggard.shared.addresses import http_url
from laggard_cli.errors import CommandError
from laggard_cli.labels import add_labels, parse_names
from laggard_cli.rules import RulesError, rules_folder
from laggard_cli.rules.profiles import load_profile
from laggard_cli.site.files import Site, site_files
from laggard_exporter.web.address import PORT, parse_address

#: A name or an address of IPv4, without a port; IPv6 in brackets.
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?|\[[0-9A-Fa-f:.]+\]")
#: What looks at a file of the site, where it is installed.
_CHECKS = {
    "promtool": ("check", "config", "prometheus.yml"),
    "amtool": ("check-config", "alertmanager.yml"),
}
_CHECK_SECONDS = 60


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = "Example:\n  laggard init site --cluster east --targets node-1,node-2"
    parser.add_argument("folder", type=Path, metavar="DIR", help="where the files go; nothing there is overwritten")
    parser.add_argument("--profile", default="production", help="profile of the rules (default %(default)s)")
    parser.add_argument("--cluster", metavar="NAME", help="name of the cluster, where one server has several")
    parser.add_argument(
        "--targets",
        action="append",
        default=[],
        metavar="HOST[:PORT],…",
        help=f"the hosts that run laggard-exporter; may be repeated (default localhost, port {PORT})",
    )
    parser.add_argument(
        "--grafana",
        default="http://localhost:3000",
        metavar="URL",
        help="where people reach Grafana, for the links of alerts (default %(default)s)",
    )
    parser.add_argument("--runbook-base", metavar="URL", help="where the runbooks are, instead of the project's own")
    add_labels(parser, "another name for a label, for example training_run=run_id or cluster=k8s_cluster")


def run(options: argparse.Namespace) -> int:
    """Write the files, all or none."""
    folder: Path = options.folder
    if "$" in (options.cluster or ""):
        raise CommandError(f"--cluster must be without $, which Prometheus replaces, got {options.cluster!r}")
    try:
        site = Site(
            profile=load_profile(rules_folder(), options.profile),
            targets=_targets(options.targets),
            cluster=options.cluster or "",
            grafana=_url("--grafana", options.grafana),
            runbooks=_url("--runbook-base", options.runbook_base) if options.runbook_base else "",
            labels=parse_names(options.label),
        )
        texts = site_files(site)
    except RulesError as error:
        raise CommandError(str(error)) from error
    _write(folder, texts)
    print(f"{len(texts)} files in {folder}: profile {site.profile.name}, {', '.join(site.targets[:3])}{_more(site)}")
    for line in _checked(folder):
        print(line)
    print(f"next: {folder / 'README.md'} has what to fill in, and how to start")
    return 0


def _more(site: Site) -> str:
    return f" and {len(site.targets) - 3} more" if len(site.targets) > 3 else ""  # noqa: PLR2004 - as many are named


def _url(flag: str, text: str) -> str:
    try:
        return http_url(text)
    except ValueError as error:
        raise CommandError(f"{flag} {error}; try http://localhost:3000") from error


def _targets(given: list[str]) -> list[str]:
    """Return ``HOST:PORT`` of each host, once, in the order given."""
    hosts = [host.strip() for each in given for host in each.split(",")] or ["localhost"]
    return list(dict.fromkeys(map(_target, hosts)))


def _target(text: str) -> str:
    mistake = f"--targets must be HOST or HOST:PORT, separated by commas, got {text!r}; try node-1,node-2:{PORT}"
    try:
        address = parse_address(f"{text}:{PORT}" if _HOST.fullmatch(text) else text)
    except ValueError as error:
        raise CommandError(mistake) from error
    if not _HOST.fullmatch(f"[{address.host}]" if ":" in address.host else address.host) or not address.port:
        raise CommandError(mistake)
    return str(address)


def _write(folder: Path, texts: Mapping[str, str]) -> None:
    there = [name for name in texts if os.path.lexists(folder / name)]
    if there:
        more = f" and {len(there) - 1} more" if len(there) > 1 else ""
        raise CommandError(
            f"{folder} has {there[0]}{more} already, which stays; name another folder, or write rules and dashboards "
            "alone by laggard rules render"
        )
    try:
        for name, text in texts.items():
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{error.filename or folder}: {error.strerror}") from error


def _checked(folder: Path) -> Iterator[str]:
    """Yield what the servers' own tools say. Raises :class:`CommandError` where one refuses a file."""
    for tool, arguments in _CHECKS.items():
        found = shutil.which(tool)
        if found is None:
            yield f"{tool} is not on PATH: {arguments[-1]} is not checked"
            continue
        try:
            done = subprocess.run(
                [found, *arguments], cwd=folder, capture_output=True, text=True, timeout=_CHECK_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            yield f"{tool} does not run ({error}): {arguments[-1]} is not checked"
            continue
        if done.returncode:
            said = " ".join((done.stderr or done.stdout).split())
            raise CommandError(f"{folder / arguments[-1]} is written, and {tool} refuses it: {said}", code=1)
        yield f"{tool}: {arguments[-1]} is valid"
