"""Asks Prometheus what it knows of runs: their alerts, and what the rules recorded. No diagnosis is made here."""

from __future__ import annotations

import contextlib
from collections import Counter

from laggard_cli.clusters import CLUSTER, RUN, Run, is_of_a_replica, run_of
from laggard_cli.diagnose.ended import commands, ended
from laggard_cli.diagnose.held_back import held_back
from laggard_cli.diagnose.model import MANY, NO_SIGNAL, Diagnosis, Failure, Rank, Verdict
from laggard_cli.doctor import rules
from laggard_cli.doctor.server import groups
from laggard_cli.errors import CommandError
from laggard_cli.nearby import did_you_mean, listed
from laggard_cli.pack import SEVERITIES
from laggard_cli.past.alerts import alerts_at
from laggard_cli.past.times import NOT_KEPT, iso, parse_moment
from laggard_cli.prometheus import Alert, Prometheus, Sample
from laggard_cli.unread import Unread, lost, renamed, said_of_lost, unread

#: Recorded series of a run by the name of the fact that they are; seconds, shares of a step, numbers of ranks, and a
#: ratio of own times.
_FACTS = {
    "ranks_live": "run:training_ranks_live:count",
    "ranks_expected": "run:training_ranks_expected:max",
    "step_seconds": "run:training_step_seconds:mean",
    "data_share": "run:training_data_share:ratio",
    "slowdown": "run:training_slowdown:ratio",
    "communication_floor_share": "run:training_communication_floor_share:ratio",
    "stages": "run:training_stages:count",
    "straggler_threshold": 'run:laggard_threshold:value{name="straggler_score"}',
    # What is recorded each minute, and what the last scrape says.
    "ranks_finished": (
        "count by (cluster, training_run) (group by (cluster, training_run, training_rank)"
        " (run_rank:training_finished:last or last_over_time(training_process_condition[1m]) == 1))"
    ),
    "ranks_waiting_known": 'run:training_signal_available:count{training_signal="communication"}',
}

#: Not by an alert that only waits to fire: it may do so of a run that has ended.
RUNS = (
    "count by (cluster, training_run) (run:training_ranks_live:count or ALERTS{alertstate='firing',training_run!=''})"
)
#: In which ranks are compared, in each interval as verdicts are; but without data in runs that wait for it as a whole,
#: and for a minute after: who is slow in data would seem to be as fast as the others.
OWN_TIMES = (
    "run_rank:training_step_own_seconds:compared unless on (cluster, training_run)"
    " last_over_time(run:training_data_limited:info[2m])"
    " or on (cluster, training_run, training_rank) run_rank:training_step_own_seconds:mean"
)
#: Steps of the last minutes that are no measure of the others, by reason, where there are no others.
_EXCLUDED = (
    "sum by (cluster, training_run, training_reason) ("
    "max by (cluster, training_run, training_rank, training_reason) (increase(training_steps_excluded_total[5m]))) > 0"
    " unless on (cluster, training_run) increase(training_step_own_duration_seconds_count[5m]) > 0"
)
#: On the end of a run: what was before it, where its ranks ended since.
_AFTER = "training_ended_after"
#: When the newest end without a clean end of each run began, of a day, with who ended first and how.
_FAILED = (
    'last_over_time(run_rank:training_failure_timestamp_seconds:first{training_ended_by!="request"}[1d])'
    " unless on (cluster, training_run) run:training_ranks_live:count"
    " unless on (cluster, training_run) (max by (cluster, training_run)"
    ' (last_over_time(run_rank:training_failure_timestamp_seconds:first{training_ended_by!="request"}[1d]))'
    " < on (cluster, training_run) last_over_time(run:training_process_start_timestamp_seconds:min[1d]))"
)
#: When each rank ended without a clean end.
_ENDS = "last_over_time(run_rank:training_failure_timestamp_seconds:max[1d])"
#: Ranks whose last end was a clean one.
_ENDED_CLEANLY = (
    "group by (cluster, training_run, training_rank) (last_over_time(run_rank:training_finished:last[1d]))"
    f" unless on (cluster, training_run, training_rank) {_ENDS}"
)
#: Ranks that live and are not compared: how many by reason, and which where they are few.
_UNCOMPARED = "run_reason:training_ranks_uncompared:count"
_UNCOMPARED_RANKS = "run_rank_reason:training_rank_uncompared:info"
#: How long what belongs to a metric must have been there before that counts as lost.
_SETTLED = "30s"
_WATCHDOG = "LaggardWatchdog"
_RUN, _RANK, _REASON = RUN, "training_rank", "training_reason"
#: Of ranks that make their peers wait now; a verdict follows where that lasts.
_SCORE = "run_rank:training_straggler_score:ratio"
_WAIT = 'run_rank_phase:training_wait_seconds:mean{training_phase="communication"}'


def diagnose(
    prometheus: Prometheus, run: str | None, at: float | None = None, cluster: str | None = None
) -> list[Diagnosis]:
    """Return the named run, or every run that Prometheus knows of now, or at a time in seconds since 1970.

    Of all clusters, or of the named one: in several, one name is that of several runs.

    Raises :class:`CommandError` for a run that is not there, and where none is.
    """
    failed = failures(prometheus, at)
    runs = sorted({run_of(sample) for sample in prometheus.query(RUNS, at, by=(_RUN,))} | failed.keys())
    ranks = _ranks(prometheus, at)
    facts = {name: _by_run(prometheus, series, at) for name, series in _FACTS.items()}
    measured = {name for name, found in ranks.items() if all(rank.wait_seconds is not None for rank in found)}
    hidden: dict[Run, Unread] = {}
    # Where the rules have own times and waits of every rank, they read all that they need.
    if not runs or not set(runs) <= measured & facts["ranks_waiting_known"].keys():
        hidden = {name: said_of_lost(names) for name, names in lost(prometheus, _SETTLED, at).items()}
        hidden |= unread(prometheus, at)
        with contextlib.suppress(CommandError):
            hidden |= renamed(prometheus, at)
    if not runs and hidden:
        raise CommandError(f"Prometheus at {prometheus.name}: {'; '.join(next(iter(hidden.values())))}")
    if not runs and not prometheus.query("laggard_rules_info", at):
        raise CommandError(
            f"Prometheus at {prometheus.name} does not run laggard's rules: no series laggard_rules_info"
            if at is None
            else f"Prometheus at {prometheus.name} has no series laggard_rules_info at {iso(at)}: {NOT_KEPT}"
        )
    wanted = [found for found in runs if run in (None, found.name) and cluster in (None, found.cluster)]
    if not wanted and (run, cluster) != (None, None):
        return _not_now(prometheus, run, at, cluster, runs)
    clusters = any(found.cluster for found in runs)
    verdicts = _verdicts(_alerts_now(prometheus, clusters=clusters) if at is None else alerts_at(prometheus, at))
    scores: dict[Run, dict[str, float]] = {}
    for sample in prometheus.query(_SCORE, at, by=(_RUN, _RANK)):
        scores.setdefault(run_of(sample), {})[sample.labels[_RANK]] = sample.value
    named_ranks = {(verdict.cluster, verdict.run, verdict.rank) for verdict in verdicts}
    unnamed = {
        name: {rank: score for rank, score in found.items() if (name.cluster, name.name, rank) not in named_ranks}
        for name, found in scores.items()
        if name in wanted
    }
    silent = {name for name in wanted if not any((verdict.cluster, verdict.run) == name for verdict in verdicts)}
    failing = _failing(prometheus) if silent and at is None else ""
    waiting = held_back(prometheus, {name: found for name, found in unnamed.items() if found}, at)
    uncompared, named = _uncompared(prometheus, ranks, at)
    excluded: dict[Run, dict[str, float]] = {}
    if any(name not in ranks for name in wanted):
        for sample in prometheus.query(_EXCLUDED, at, by=(_RUN, "training_reason")):
            excluded.setdefault(run_of(sample), {})[sample.labels["training_reason"]] = sample.value
    return [
        Diagnosis(
            run=name.name,
            cluster=name.cluster,
            verdicts=tuple(verdict for verdict in verdicts if (verdict.cluster, verdict.run) == name),
            facts={fact: values[name] for fact, values in facts.items() if name in values},
            ranks=tuple(ranks.get(name, ())),
            standing_out=scores.get(name, {}),
            held_back=waiting.get(name),
            excluded={} if name in ranks else excluded.get(name, {}),
            # Without its label, what arrives of a run is of a run without a name.
            unread="; ".join(hidden.get(name) or (name not in ranks and hidden.get(Run(name.cluster, ""))) or ()),
            failure=failed.get(name),
            see=_see(prometheus, name, failed[name].at) if name in failed else (),
            failing=failing if name in silent and name in ranks else "",
            uncompared=uncompared.get(name, {}),
            uncompared_ranks=dict(sorted(named.get(name, {}).items(), key=_by_number)),
        )
        for name in wanted
    ]


def _not_now(
    prometheus: Prometheus, run: str | None, at: float | None, cluster: str | None, runs: list[Run]
) -> list[Diagnosis]:
    """Return how a run ended that was asked for. Raises :class:`CommandError` where there was none."""
    over = ended(prometheus, run, cluster) if run is not None and at is None else []
    if over:
        return [
            Diagnosis(each.name, (), {}, (), cluster=each.cluster, ended=end, see=_see(prometheus, each, end.at))
            for each, end in over
        ]
    asked = " ".join(f"--{flag} {value!r}" for flag, value in (("run", run), ("cluster", cluster)) if value is not None)
    then = "now" if at is None else f"at {iso(at)}"
    known = f"runs {then}: {listed(map(str, runs))}" if runs else f"there is no run {then}"
    near = did_you_mean(run, {found.name for found in runs}) if run is not None else ""
    raise CommandError(f"{asked} is not in Prometheus at {prometheus.name}; {known}{near}")


def _see(prometheus: Prometheus, run: Run, at: str) -> tuple[str, ...]:
    return commands(prometheus, run, parse_moment(at))


def _by_number(rank: tuple[str, str]) -> tuple[int, str]:
    return _number(rank[0])


def _number(rank: str) -> tuple[int, str]:
    return len(rank), rank


def firing(prometheus: Prometheus) -> list[Verdict]:
    """Return the verdicts on all runs, the gravest first."""
    return _verdicts(prometheus.alerts())


def _verdicts(alerts: list[Alert]) -> list[Verdict]:
    fire = [alert for alert in alerts if alert["state"] == "firing"]
    # Each of a pair of servers has its own; the one that was first is told.
    once: dict[frozenset[tuple[str, str]], Alert] = {}
    for alert in sorted(fire, key=lambda alert: alert["activeAt"]):
        labels = {name: text for name, text in alert["labels"].items() if not is_of_a_replica(name)}
        if labels.get("alertname", "").startswith("Training"):
            once.setdefault(frozenset(labels.items()), alert)
    verdicts = map(_verdict, once.values())
    return sorted(
        verdicts, key=lambda verdict: (SEVERITIES.index(verdict.gravity), verdict.since, verdict.alert, verdict.rank)
    )


def _alerts_now(prometheus: Prometheus, *, clusters: bool) -> list[Alert]:
    """Return the alerts; :class:`CommandError` where they cannot be all, as from Thanos query without its ruler."""
    alerts = prometheus.alerts_in_clusters() if clusters else prometheus.alerts()
    told = any(alert["labels"].get("alertname") == _WATCHDOG for alert in alerts)
    if not told and prometheus.query(f'ALERTS{{alertname="{_WATCHDOG}",alertstate="firing"}}'):
        raise CommandError(
            f"Prometheus at {prometheus.name} does not know which alerts fire: {_WATCHDOG}, which always does, is not "
            "among them. What evaluates the rules is away, or was never named to it"
        )
    return alerts


def _verdict(alert: Alert) -> Verdict:
    labels, annotations = alert["labels"], alert["annotations"]
    return Verdict(
        alert=labels["alertname"],
        severity=labels.get("severity", ""),
        run=labels.get(_RUN, ""),
        rank=labels.get(_RANK, ""),
        phase=labels.get("training_phase", ""),
        host=labels.get("host_name", ""),
        since=alert["activeAt"],
        value=alert["value"],
        summary=annotations.get("summary", ""),
        description=annotations.get("description", "").strip(),
        recommendation=annotations.get("recommendation", "").strip(),
        runbook_url=annotations.get("runbook_url", ""),
        peer_group=labels.get("training_peer_group", ""),
        cluster=labels.get(CLUSTER, ""),
    )


def failures(prometheus: Prometheus, at: float | None) -> dict[Run, Failure]:
    """Return how each run failed of which nothing lives."""
    # The last one counts: the newest, and of one end what was said once all its ranks were seen.
    newest = sorted(
        prometheus.query(_FAILED, at, by=(_RUN, "training_ended_by")),
        key=lambda each: (each.value, each.labels.get(_AFTER, ""), bool(each.labels.get(_RANK))),
    )
    unnamed = any(not each.labels.get(_RANK) for each in newest)
    ends = prometheus.query(_ENDS, at, by=(_RUN, _RANK)) if unnamed else []
    clean = prometheus.query(_ENDED_CLEANLY, at, by=(_RUN, _RANK)) if unnamed else []
    return {run_of(sample): _failure(sample, ends, clean) for sample in newest}


def _failure(first: Sample, ends: list[Sample], clean: list[Sample]) -> Failure:
    run, rank = run_of(first), first.labels.get(_RANK, "")
    failed = {each.labels[_RANK] for each in ends if run_of(each) == run and each.value >= first.value}
    finished = [] if rank else [each.labels[_RANK] for each in clean if run_of(each) == run]
    return Failure(
        rank=rank,
        host=first.labels.get("host_name", ""),
        phase=first.labels.get("training_phase", ""),
        ended_by=first.labels.get("training_ended_by", ""),
        ended_with=first.labels.get("training_ended_with", ""),
        at=iso(first.value),
        ended_after=first.labels.get(_AFTER, ""),
        only=failed.pop() if len(failed) == 1 else "",
        finished=tuple(sorted(finished, key=_number)),
    )


def _uncompared(
    prometheus: Prometheus, ranks: dict[Run, list[Rank]], at: float | None
) -> tuple[dict[Run, dict[str, float]], dict[Run, dict[str, str]]]:
    """Return of each run how many ranks are not compared, by reason, and which, each with its reason.

    The reasons are recorded every two minutes. Who has an own time by now is compared, whatever they say.
    """
    compared = {(run, rank.rank) for run, found in ranks.items() for rank in found}
    named: dict[Run, dict[str, str]] = {}
    told: set[tuple[Run, str]] = set()
    for sample in prometheus.query(_UNCOMPARED_RANKS, at, by=(_RUN, _RANK, _REASON)):
        run, rank, reason = run_of(sample), sample.labels[_RANK], sample.labels[_REASON]
        told.add((run, reason))
        if reason == NO_SIGNAL or (run, rank) not in compared:
            named.setdefault(run, {})[rank] = reason
    counted: dict[Run, dict[str, float]] = {
        run: {reason: float(number) for reason, number in Counter(found.values()).items()}
        for run, found in named.items()
    }
    # Of many nobody has the names. Other counts are of names, and follow them later.
    for sample in prometheus.query(_UNCOMPARED, at, by=(_RUN, _REASON)):
        run, reason = run_of(sample), sample.labels[_REASON]
        if reason == MANY or (reason == NO_SIGNAL and (run, reason) not in told):
            counted.setdefault(run, {})[reason] = sample.value
    return counted, named


def _failing(prometheus: Prometheus) -> str:
    """Return what is said of rules that fail; nothing where the server does not say."""
    try:
        found = [rule.name for group in rules.ours(groups(prometheus)) for rule in group.rules if rule.health == "err"]
    except CommandError:
        return ""
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return f"not judged by rules that fail: {found[0]}{more}; laggard doctor says why" if found else ""


def _by_run(prometheus: Prometheus, series: str, at: float | None) -> dict[Run, float]:
    return {run_of(sample): sample.value for sample in prometheus.query(series, at, by=(_RUN,))}


def _ranks(prometheus: Prometheus, at: float | None) -> dict[Run, list[Rank]]:
    waits = {
        (run_of(sample), sample.labels[_RANK]): sample.value for sample in prometheus.query(_WAIT, at, by=(_RUN, _RANK))
    }
    ranks: dict[Run, dict[str, Rank]] = {}
    for sample in prometheus.query(OWN_TIMES, at, by=(_RUN, _RANK)):
        run, rank = run_of(sample), sample.labels[_RANK]
        ranks.setdefault(run, {})[rank] = Rank(rank, sample.value, waits.get((run, rank)))
    return {
        run: sorted(found.values(), key=lambda rank: rank.own_seconds, reverse=True) for run, found in ranks.items()
    }
