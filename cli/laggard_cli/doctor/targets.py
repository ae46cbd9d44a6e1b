"""Targets: which are laggard's, which are down and why, and whether they are scraped as often as the rules need."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from urllib.parse import urlsplit

from promql_parser import display_duration

from laggard_cli.doctor.findings import FAULT, UNKNOWN, WORKS, Finding, count, some
from laggard_cli.doctor.server import Target
from laggard_cli.prometheus import Prometheus
from laggard_cli.rules.profiles import Profile
from laggard_exporter.web.address import PORT

#: Where a node exporter serves the metrics of its ranks.
RANKS_PATH = "/ranks/metrics"

#: What the error of a scrape holds, and what to do. The first that fits counts.
_ADVICE = (
    (
        r"connection refused",
        "start laggard-exporter there, and have it listen beyond its own host: --web.listen-address=:9495",
    ),
    (
        r"no such host|server misbehaving|name resolution",
        "correct the name in the list of targets, or the server's DNS",
    ),
    (
        r"deadline exceeded|i/o timeout|Timeout",
        "open the port between the server and the host; if it answers slowly, the exporter's log says what is slow",
    ),
    (r"no route to host|unreachable", "check the network between the server and the host"),
    (r"\b40[13]\b", "give the job the basic_auth or the certificate that --web.config.file of the exporter asks for"),
    (
        r"\b404\b",
        f"metrics_path must be /metrics or {RANKS_PATH}; an older exporter lacks the second: update it",
    ),
    (
        r"HTTP response to HTTPS client|does not look like a TLS handshake",
        "the exporter serves without TLS: set scheme: http",
    ),
    (r"malformed HTTP response|\b400\b", "the exporter serves with TLS: set scheme: https and tls_config"),
    (r"x509|certificate|tls:", "name the authority of the exporter's certificate in tls_config: ca_file"),
    (r"\b503\b", "the exporter cannot read the state folder: its log says why"),
    (
        r"limit exceeded",
        "raise this limit of the job; of the operator, that of the monitor and enforced… of its Prometheus",
    ),
)
#: With which the error of a request begins: its address is said already.
_REQUEST = re.compile(r'^Get "[^"]*": ')
_ELSE = "open the address from the server's host, and compare what it says"


def ours(server: Prometheus, found: Sequence[Target]) -> list[Target]:
    """Return the targets of each pool that has, or by its name or address seems to have, an exporter or a rank."""
    known = {
        (sample.labels.get("job", ""), sample.labels.get("instance", ""))
        for series in ("laggard_exporter_build_info", "training_steps_total")
        for sample in server.query(f"group by (job, instance) (last_over_time({series}[1h]))")
    }
    pools = {
        target.pool
        for target in found
        if "laggard" in target.pool
        or (target.pool, target.instance) in known
        or urlsplit(target.url).path == RANKS_PATH
        or urlsplit(target.url).port == PORT
    }
    return [target for target in found if target.pool in pools]


def down(found: Sequence[Target]) -> Iterator[Finding]:
    """Yield what is said of each pool and each reason for which targets of it are down."""
    grouped: dict[tuple[str, str], list[Target]] = {}
    for target in found:
        if target.health == "down":
            grouped.setdefault((target.pool, advice(target.error)), []).append(target)
    for (pool, do), each in grouped.items():
        where = some(target.instance for target in each)
        reason = _REQUEST.sub("", each[0].error) or "without a reason"
        yield Finding("targets", FAULT, f"{where} of job {pool}: down, {reason}", do)
    if waiting := [target.instance for target in found if target.health not in ("up", "down")]:
        yield Finding("targets", UNKNOWN, f"{some(waiting)}: not scraped yet")
    if up := sum(target.health == "up" for target in found):
        pools = some(sorted({target.pool for target in found if target.health == "up"}))
        yield Finding("targets", WORKS, f"{count(up, 'target')} up, of job {pools}")


def advice(error: str) -> str:
    """Return what to do about the error of a scrape."""
    return next((do for pattern, do in _ADVICE if re.search(pattern, error)), _ELSE)


def none(server: Prometheus) -> Finding:
    """Return what is said of a server that scrapes nothing of laggard's, though an agent may do so for it."""
    # Also under names that are changed on the way.
    if server.query('group({__name__=~".*laggard.exporter.build.info.*"})'):
        return Finding("targets", WORKS, "none of its own: what node exporters serve is written to it")
    if server.query("group(training_steps_total)"):
        return Finding(
            "targets",
            FAULT,
            "no node exporter is scraped, though metrics of ranks arrive: stalls and deaths have no rank",
            f"start laggard-exporter on each host, and scrape its port {PORT}",
        )
    return Finding(
        "targets",
        FAULT,
        "no target: this server scrapes no node exporter",
        f"start laggard-exporter on each host and list its port {PORT}: laggard init DIR writes the configuration",
    )


def intervals(found: Iterable[Target], profile: Profile) -> Iterator[Finding]:
    """Yield the pools that are scraped more rarely than the profile of the rules needs."""
    wanted = profile.scrape_interval
    by_pool: dict[str, set[timedelta]] = {}
    for target in found:
        if target.interval is not None:
            by_pool.setdefault(target.pool, set()).add(target.interval)
    rare = {pool: max(each) for pool, each in by_pool.items() if max(each) > wanted}
    for interval in sorted(set(rare.values())):
        pools = [pool for pool, each in rare.items() if each == interval]
        yield Finding(
            "interval",
            FAULT,
            f"job {some(pools)}: scraped every {display_duration(interval)}, and the rules (profile {profile.name}) "
            f"need {display_duration(wanted)}: verdicts come late or not at all",
            f"set scrape_interval: {display_duration(wanted)}",
        )
    if by_pool and not rare:
        yield Finding("interval", WORKS, f"all are scraped every {display_duration(wanted)} or oftener")
