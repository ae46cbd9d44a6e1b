"""``laggard doctor``: looks at a server from outside, and says of each thing that does not work what to do."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from laggard_cli.console import show
from laggard_cli.doctor import ranks, rules, server, targets
from laggard_cli.doctor.findings import COLUMN, FAULT, UNKNOWN, Finding, lines, plain
from laggard_cli.errors import CommandError
from laggard_cli.prometheus import Prometheus
from laggard_cli.servers import add_server, connect
from laggard_cli.terminal import printable, to_json
from laggard_cli.unread import renamed, unread

#: Alerts on telemetry that a check here says in other words, and one that always fires.
_SAID = ("LaggardWatchdog", "TrainingTelemetryDown", "TrainingClockSkew")
#: An Alertmanager that takes nothing: LaggardWatchdog is sent to it once a minute.
_UNSENT = "max by (alertmanager) (changes(prometheus_notifications_errors_total[5m])) >= 3"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = (
        "Example:\n  laggard doctor --prometheus http://localhost:9090\n"
        "Exit code 0: no fault found; 1: faults; 2: bad input, or no answer. laggard-exporter doctor checks one host."
    )
    add_server(parser, "the server that is looked at")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Print what is found; 1 where something does not work."""
    prometheus = connect(options)
    try:
        found = list(examine(prometheus))
    finally:
        prometheus.close()
    if options.json:
        print(to_json(plain(prometheus.name, found), indent=2))
    else:
        show(map(printable, lines(prometheus.name, found)), COLUMN)
    return 1 if any(each.status == FAULT for each in found) else 0


def examine(prometheus: Prometheus) -> Iterator[Finding]:
    """Yield what is found in a server. Raises :class:`CommandError` where it does not answer."""
    # The first question: of who does not answer it nothing is known.
    hidden = unread(prometheus)
    try:
        hidden |= renamed(prometheus)
    except CommandError as error:
        yield _without("names", error)
    yield from (Finding("names", FAULT, each.why, each.do) for each in sorted(set(hidden.values())))
    groups: list[server.Group] = []
    try:
        groups = rules.ours(server.groups(prometheus))
        profile = rules.profile_of(groups)
        elsewhere = not groups and bool(prometheus.query(f"group({rules.INFO})"))
        yield from [rules.ELSEWHERE] if elsewhere else rules.check(groups, profile)
        yield from rules.flags(server.flags(prometheus), profile) if groups else ()
    except CommandError as error:
        elsewhere = False
        profile = rules.profile_of(())
        yield _without("rules", error)
    try:
        # Whoever evaluates them sends the alerts.
        yield from () if elsewhere else [rules.alertmanagers(server.alertmanagers(prometheus), groups)]
    except CommandError as error:
        yield _without("alerts", error)
    found: list[server.Target] = []
    try:
        found = targets.ours(prometheus, server.targets(prometheus))
    except CommandError as error:
        # Thanos and Mimir scrape nothing themselves.
        yield _without("targets", error)
    else:
        yield from targets.down(found) if found else [targets.none(prometheus)]
        yield from targets.intervals(found, profile)
    checks = [
        ("ranks", ranks.arriving(prometheus, profile, hidden)),
        ("clocks", ranks.clocks(prometheus, profile)),
        ("labels", ranks.labels(prometheus)),
        ("alerts", _unsent(prometheus)),
        ("alerts", _alerts(prometheus)),
    ]
    if not hidden:
        evaluated = {rule.name for group in groups if group.evaluated for rule in group.rules}
        checks[:0] = [
            ("series", ranks.dropped(prometheus, found, profile)),
            ("rules", ranks.unrecorded(prometheus, profile) if ranks.LIVE in evaluated else iter(())),
        ]
    for check, findings in checks:
        yield from _answered(check, findings)


def _answered(check: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    """Yield what is found, and that a question has no answer: a limit of a server refuses one and not the next."""
    try:
        yield from findings
    except CommandError as error:
        yield _without(check, error)


def _without(check: str, error: CommandError) -> Finding:
    return Finding(check, UNKNOWN, str(error))


def _unsent(prometheus: Prometheus) -> Iterator[Finding]:
    """Yield each Alertmanager that takes nothing, as a server that scrapes itself knows."""
    for sample in prometheus.query(_UNSENT):
        yield Finding(
            "alerts",
            FAULT,
            f"do not reach {sample.labels.get('alertmanager', '')}: sending has failed again and again for minutes",
            "start it, or read in Prometheus' log what it answers",
        )


def _alerts(prometheus: Prometheus) -> Iterator[Finding]:
    """Yield what the rules say of telemetry."""
    for alert in prometheus.alerts():
        labels = alert["labels"]
        said = labels.get("alertname", "")
        if labels.get("training_kind") == "telemetry" and alert["state"] == "firing" and said not in _SAID:
            annotations = alert["annotations"]
            yield Finding(
                "alerts", FAULT, f"{said}: {annotations.get('summary', '')}", annotations.get("recommendation", "")
            )
