"""Ranks: whose metrics do not arrive, and who is seen by one side alone; clocks of hosts; labels that were replaced."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from datetime import timedelta
from urllib.parse import urlsplit

from promql_parser import display_duration

from laggard_cli.clusters import Run, run_of
from laggard_cli.doctor.findings import FAULT, UNKNOWN, WORKS, Finding, count, some
from laggard_cli.doctor.server import Target
from laggard_cli.doctor.targets import RANKS_PATH
from laggard_cli.labels import CLUSTER, RENAMED
from laggard_cli.prometheus import Prometheus, Sample
from laggard_cli.rules.profiles import Profile
from laggard_cli.units import duration
from laggard_cli.unread import lost, said_of_lost

_RUN, _RANK, _HOST = "training_run", "training_rank", "host_name"
_WHO = f"{CLUSTER}, {_RUN}, {_RANK}"
_BY_RUN = f"group by ({CLUSTER}, {_RUN})"
#: What the rules record of each run that lives.
LIVE = "run:training_ranks_live:count"
#: How far the rules look back for it in production, and how old a run's newest samples are.
_WINDOW = timedelta(minutes=1)
_AGE = f"time() - max by ({CLUSTER}, {_RUN}) (timestamp(training_process_up))"

#: What a node exporter says became of the page of a rank, and what to do. Not of one that is stopped: nothing of the
#: telemetry is wrong there.
_PAGES = {
    "no_answer": "do not answer in time: something holds their interpreter; laggard stacks on the host shows what",
    "rejected": "serve a page that is not valid: the log of laggard-exporter there says why",
    "not_listening": "listen in another network than the exporter: run both in the host's network, or push by OTLP",
}
_STOPPED = f"group by ({_WHO}) (training_process_stopped == 1)"
#: At the end of each page of ranks.
_PAGE_SERIES = "laggard_exporter_rank_pages"
#: By how much a rank's clock is ahead: when its newest step ended, and when that was by the age that the exporter saw.
#: timestamp() and age by themselves: where Prometheus adds types and units as labels, timestamp() drops those.
SKEW = (
    f"max by ({_WHO}) (training_last_step_timestamp_seconds) - on ({_WHO}) "
    f"(max by ({_WHO}) (timestamp(training_process_last_step_age_seconds)) "
    f"- max by ({_WHO}) (training_process_last_step_age_seconds))"
)
#: How many ranks of a run the rules have never seen, and do miss; and how many it has.
_MISSING = (
    f"max by ({CLUSTER}, {_RUN}) (run:training_ranks_missing:count) and on ({CLUSTER}, {_RUN}) "
    f'ALERTS{{alertname="TrainingRankMissing", alertstate="firing", {_RANK}=""}}'
)
_EXPECTED = f"max by ({CLUSTER}, {_RUN}) (run:training_ranks_expected:max)"
#: Between the clock of this machine and the server's: an answer takes time too.
_SKEW_SECONDS = 5.0
#: Labels that metrics of ours carry besides those that may be renamed, and that a target often has too.
_LABELS = (*RENAMED, "namespace", "pod", "container", "node", "device", "port")


def dropped(server: Prometheus, found: Sequence[Target], profile: Profile) -> Iterator[Finding]:
    """Yield metrics that rules read and that are nowhere, though what comes with them is there."""
    absent = {name for names in lost(server, display_duration(2 * profile.scrape_interval)).values() for name in names}
    pages = any(target.health == "up" and urlsplit(target.url).path == RANKS_PATH for target in found)
    if pages and not server.query(f"group({_PAGE_SERIES})"):
        absent.add(_PAGE_SERIES)
    if absent:
        yield Finding("series", FAULT, *said_of_lost(absent))


def unrecorded(server: Prometheus, profile: Profile) -> Iterator[Finding]:
    """Yield the runs whose metrics the server has, and of which its rules, which are evaluated, record nothing."""
    settled = f"offset {display_duration(4 * profile.scrape_interval)}"
    lives = f"{_BY_RUN} (training_process_up == 1 and training_process_up {settled} == 1)"
    unseen = server.query(f"{lives} unless on ({CLUSTER}, {_RUN}) last_over_time({LIVE}[5m])", by=(_RUN,))
    if not unseen:
        return
    window = profile.duration(_WINDOW, LIVE)
    late = {run_of(sample): sample.value for sample in server.query(_AGE, by=(_RUN,))}
    runs = sorted(map(run_of, unseen), key=str)
    if overdue := [run for run in runs if late.get(run, 0) > window.total_seconds()]:
        yield Finding(
            "rules",
            FAULT,
            f"look back {display_duration(window)}, and the newest samples of {some(map(str, overdue))} are "
            f"{duration(max(late[run] for run in overdue))} old",
            "shorten what holds samples up, such as a queue of remote write or of a Collector; or evaluate later: "
            "rule_query_offset in Prometheus (restart it), -rule.evalDelay of vmalert, ruler_evaluation_delay_duration "
            "in Mimir",
        )
    if others := [str(run) for run in runs if run not in overdue]:
        yield Finding(
            "rules",
            FAULT,
            f"record nothing of {some(others)}, whose metrics are here",
            f"compare the query of {LIVE} with the pack's: with enforcedNamespaceLabel, the operator has rules read "
            "their own namespace alone; excludedFromEnforcement exempts them",
        )


def arriving(server: Prometheus, profile: Profile, told: Collection[Run]) -> Iterator[Finding]:
    """Yield ranks that a node exporter sees running and whose own metrics do not arrive, and the other way round.

    Of the runs that are told of already, nothing is said of what does not arrive. One without a name may be any.
    """
    settled = display_duration(2 * profile.scrape_interval)
    trains = (
        f'group by ({_WHO}) (training_process_state{{training_state="running"}} == 1) '
        f"and on ({_WHO}) group by ({_WHO}) (training_process_up == 1) "
        f"and on ({_WHO}) group by ({_WHO}) (training_process_steps_total offset {settled} > 0) "
        f"unless on ({_WHO}) {_STOPPED}"
    )
    reports = f"group by ({_WHO}) (training_steps_total)"
    seen = server.query(trains, by=(_RUN, _RANK))
    silent = [
        sample
        for sample in server.query(f"{trains} unless on ({_WHO}) {reports}", by=(_RUN, _RANK))
        if not {run_of(sample), Run(run_of(sample).cluster, "")} & {*told}
    ]
    pages = server.query(f"max by (instance, result) ({_PAGE_SERIES})", by=("result",))
    bad = {
        result: sorted(
            page.labels.get("instance", "") for page in pages if page.labels["result"] == result and page.value
        )
        for result in _PAGES
    }
    unseen = server.query(
        f'group by ({_WHO}) (training_rank_state{{training_state="running"}} == 1) '
        f"unless on ({_WHO}) group by ({_WHO}) (training_process_up)",
        by=(_RUN, _RANK),
    )
    if apart := {_rank(sample) for sample in silent} & {_rank(sample) for sample in unseen}:
        theirs = [sample for sample in unseen if _rank(sample) in apart]
        yield Finding(
            "ranks",
            FAULT,
            f"another label {CLUSTER} than on their node exporter's metrics: {_named(server, theirs)}",
            f"give both jobs of a host the same label {CLUSTER}, or neither",
        )
        silent, unseen = ([each for each in found if _rank(each) not in apart] for found in (silent, unseen))
    if silent:
        yield Finding("ranks", FAULT, f"metrics do not arrive of {_named(server, silent)}", _reason(pages, bad))
    else:
        for result, hosts in bad.items():
            if hosts:
                yield Finding(
                    "ranks",
                    FAULT,
                    f"ranks on {some(hosts)} {_PAGES[result].partition(': ')[0]}",
                    _PAGES[result].partition(": ")[2],
                )
    if unseen:
        yield Finding(
            "ranks",
            FAULT,
            f"no node exporter shows {_named(server, unseen)}: a stall or a death of them has no rank",
            "run laggard-exporter on their hosts, scrape it, and let it read their LAGGARD_STATE_DIR",
        )
    if missed := server.query(_MISSING, by=(_RUN,)):
        of = {run_of(sample): f" of {sample.value:.0f}" for sample in server.query(_EXPECTED, by=(_RUN,))}
        each = sorted(
            f"{sample.value:.0f}{of.get(run_of(sample), '')} ranks of run {run_of(sample)}" for sample in missed
        )
        yield Finding(
            "ranks",
            FAULT,
            f"the rules have never seen {some(each)}",
            "list the hosts of all ranks in the scrape jobs; of servers that share targets (hashmod, shards of the "
            "operator) each must scrape whole runs: docs/deploy.md, shards",
        )
    if not silent and not unseen and not apart and not missed and not told:
        stopped = server.query(_STOPPED, by=(_RUN, _RANK))
        held = f"; stopped: {_named(server, stopped)}" if stopped else ""
        trained = f"{count(len(seen), 'rank')} seen, metrics of all arrive" if seen else "no rank trains now"
        yield Finding("ranks", WORKS, f"{trained}{held}")


def _reason(pages: list[Sample], bad: dict[str, list[str]]) -> str:
    if not pages:
        return (
            f"scrape {RANKS_PATH} of each node exporter, in a job of its own: laggard init DIR writes one; "
            "where ranks push, their log and the server's say what is refused"
        )
    found = [f"those on {some(hosts)} {_PAGES[result]}" for result, hosts in bad.items() if hosts]
    return "; ".join(found) or "docs/troubleshooting.md: ranks whose metrics do not arrive"


def _named(server: Prometheus, ranks: list[Sample]) -> str:
    """Return the ranks by their runs, with their hosts where those are known."""
    hosts = {
        _who(sample): sample.labels[_HOST]
        for series in ("training_process_info", "training_rank_start_timestamp_seconds")
        for sample in server.query(f"group by ({_WHO}, {_HOST}) ({series})", by=(_RUN, _RANK, _HOST))
    }
    by_run: dict[str, list[str]] = {}
    for sample in sorted(ranks, key=lambda each: (each.labels[_RUN], each.labels[_RANK].zfill(9))):
        host = hosts.get(_who(sample))
        run = str(Run(sample.labels.get(CLUSTER, ""), sample.labels[_RUN]))
        by_run.setdefault(run, []).append(sample.labels[_RANK] + (f" on {host}" if host else ""))
    return "; ".join(f"rank {some(each)} of run {run}" for run, each in by_run.items())


def _rank(sample: Sample) -> tuple[str, str]:
    return sample.labels[_RUN], sample.labels[_RANK]


def _who(sample: Sample) -> tuple[str, str, str]:
    return sample.labels.get(CLUSTER, ""), sample.labels[_RUN], sample.labels[_RANK]


def clocks(server: Prometheus, profile: Profile) -> Iterator[Finding]:
    """Yield hosts, and this machine, whose clocks differ from the server's.

    A rank says when its newest step ended, by its clock; the exporter how long ago that was, when it was scraped. Both
    arrive within an interval, and a step may end in between. The interval is the one that is found: who pushes once a
    minute says what was a minute ago.
    """
    # Not by time() of a query, which VictoriaMetrics evaluates in the past (-search.latencyOffset).
    server.query("vector(1)")
    told = server.clock
    if told is not None and abs(apart := told + 0.5 - time.time()) > _SKEW_SECONDS:
        how = "behind" if apart > 0 else "ahead of"
        yield Finding(
            "clocks",
            FAULT,
            f"the clock of this machine is {duration(round(abs(apart)))} {how} the server's",
            "check that chronyd or ntpd runs on both",
        )
    skew = server.query(SKEW, by=(_RUN, _RANK))
    longest = server.query(
        f"max by ({_WHO}) (max_over_time(training_process_last_step_age_seconds[5m]))", by=(_RUN, _RANK)
    )
    often = f"max by ({_WHO}) (count_over_time(training_last_step_timestamp_seconds[1m]))"
    every = {_who(sample): sample.value for sample in server.query(f"60 / {often}", by=(_RUN, _RANK))}
    least = profile.scrape_interval.total_seconds()
    allowed = {_who(sample): sample.value + max(every.get(_who(sample), 0), least) + 1 for sample in longest}
    wrong = [sample for sample in skew if abs(sample.value) > allowed.get(_who(sample), float("inf"))]
    for sign, how in ((1, "ahead of"), (-1, "behind")):
        found = [sample for sample in wrong if sample.value * sign > 0]
        if found:
            most = max(abs(sample.value) for sample in found)
            yield Finding(
                "clocks",
                FAULT,
                f"about {duration(most)} {how} the server's: the clock of {_named(server, found)}",
                "check that chronyd or ntpd runs on the host, and on the server if several hosts are named",
            )
    if not wrong:
        agree = f"of {count(len(skew), 'rank')} agree with the server's" if skew else ""
        yield Finding("clocks", WORKS, agree) if skew else Finding("clocks", UNKNOWN, "of hosts: no rank trains now")


def labels(server: Prometheus) -> Iterator[Finding]:
    """Yield labels of ours that a target's own replaced; Prometheus keeps those as ``exported_LABEL``."""
    found: dict[str, set[str]] = {}
    for label in _LABELS:
        conflicts = server.query(
            f'group by (job) ({{__name__=~"(training|gpu|host|laggard)_.+", exported_{label}!=""}})', by=("job",)
        )
        for sample in conflicts:
            found.setdefault(sample.labels["job"], set()).add(label)
    for job, each in sorted(found.items()):
        names = some(sorted(each))
        yield Finding(
            "labels",
            FAULT,
            f"job {job} replaces {names} of metrics by labels of the target: rules name the target, not the rank",
            "set honor_labels: true (honorLabels in a PodMonitor), or take these labels from the job's targets",
        )
    if not found:
        yield Finding("labels", WORKS, "no target's label replaces one of a metric")
