"""Which ranks to profile where nobody names them: the culprit of a verdict, and one healthy peer."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

from laggard_cli.clusters import RUN, Run, run_of
from laggard_cli.diagnose.gather import OWN_TIMES, diagnose, firing
from laggard_cli.diagnose.model import Diagnosis, Verdict
from laggard_cli.errors import CommandError
from laggard_cli.pack import SEVERITIES, kind
from laggard_cli.prometheus import Prometheus, Sample

#: Verdicts on a rank that takes no request: its process is dead or stands still.
_STANDS_STILL = "hang"
#: Of equal severity, the verdict that compares ranks goes before those on a GPU or a host.
_FIRST = "TrainingStraggler"
#: No rank of such a run ends a step, and a profile is of steps.
_STALLED = "TrainingStalled"
#: Of a step, what torch's operators do not show: the script's own code, and what reads data.
_CODE = frozenset({"other", "data"})
#: A rank as a label has it. What a server answers besides is of nobody that can be asked.
_RANK = re.compile(r"[0-9]{1,7}\Z")


@dataclass(frozen=True)
class Choice:
    """A run, the rank that a verdict names, and a peer that none names."""

    run: Run
    culprit: int
    peer: int
    alert: str
    phase: str = ""

    @property
    def in_code(self) -> bool:
        """Whether the time goes where no operator runs, so that only Python functions show on what."""
        return self.phase in _CODE


def choose_pair(prometheus: Prometheus, run: str | None, cluster: str | None = None) -> Choice:
    """Return culprit and healthy peer of a run, or of the only one with a culprit: of its gravest verdict on a rank.

    Raises:
        CommandError: no verdict names a rank that goes on, it has no peer, or the run is stalled.
    """
    found: dict[Run, tuple[Verdict, Diagnosis]] = {}
    stalled: list[Verdict] = []
    for diagnosis in diagnose(prometheus, run, cluster=cluster):
        still = [each for each in diagnosis.verdicts if each.alert == _STALLED]
        stalled += still[:1]
        if still:
            continue
        verdicts = [each for each in diagnosis.verdicts if _RANK.match(each.rank) and kind(each.alert) != _STANDS_STILL]
        verdicts.sort(key=lambda verdict: (SEVERITIES.index(verdict.gravity), verdict.alert != _FIRST))
        if verdicts:
            found[Run(diagnosis.cluster, diagnosis.run)] = verdicts[0], diagnosis
    if stalled and not found:
        _refuse(stalled[0])
    if not found:
        of = f" of {run}" if run else ""
        raise CommandError(f"no verdict names a rank{of} that goes on; give --ranks")
    if len(found) > 1:
        flag = "--cluster" if len({each.name for each in found}) == 1 else "--run"
        raise CommandError(f"{flag} is needed: verdicts name ranks of {', '.join(map(str, sorted(found)))}")
    ((name, (first, diagnosis)),) = found.items()
    named = {verdict.rank for verdict in diagnosis.verdicts}
    culprit = int(first.rank)
    return Choice(name, culprit, _healthy(prometheus, name, culprit, named), first.alert, first.phase)


def refuse_stalled(prometheus: Prometheus, run: str, cluster: str | None) -> None:
    """Raise :class:`CommandError` where a verdict says that a run makes no progress."""
    for verdict in firing(prometheus):
        if verdict.alert == _STALLED and verdict.run == run and cluster in (None, verdict.cluster):
            _refuse(verdict)


def _refuse(verdict: Verdict) -> NoReturn:
    ranks = f" --ranks {verdict.rank}" if _RANK.match(verdict.rank) else ""
    raise CommandError(
        f"{verdict.run} is stalled ({_STALLED}): no step ends that could be profiled; "
        f"laggard stacks --run {shlex.quote(verdict.run)}{ranks} shows where it stands"
    )


def _healthy(prometheus: Prometheus, run: Run, culprit: int, named: set[str]) -> int:
    """Return the peer with the median own time among those of the culprit's group that no verdict names."""
    own = list(_of_run(prometheus.query(OWN_TIMES, by=(RUN,)), run))
    groups = {sample.labels["training_rank"]: sample.labels.get("training_peer_group", "") for sample in own}
    peers = sorted(
        (sample.value, int(sample.labels["training_rank"]))
        for sample in own
        if sample.labels["training_rank"] not in {*named, str(culprit)}
        and groups[sample.labels["training_rank"]] == groups.get(str(culprit), "")
    )
    if not peers:
        raise CommandError(f"rank {culprit} of {run} has no peer that no verdict names; give --ranks")
    return peers[(len(peers) - 1) // 2][1]


def addresses(prometheus: Prometheus, run: Run, ranks: Sequence[int]) -> dict[int, tuple[str, str]]:
    """Return by rank the address at which Prometheus scrapes the node exporter that sees it, and the host's name."""
    wanted = f'training_rank=~"{"|".join(map(str, ranks))}"'
    series = prometheus.query(
        f"group by (cluster, training_run, training_rank, instance) (training_process_up{{{wanted}}} == 1)", by=(RUN,)
    )
    hosts = {
        int(sample.labels["training_rank"]): sample.labels.get("host_name", "")
        for sample in _of_run(prometheus.query(f"run_rank:training_place:info{{{wanted}}}", by=(RUN,)), run)
    }
    return {
        int(sample.labels["training_rank"]): (
            sample.labels["instance"],
            hosts.get(int(sample.labels["training_rank"]), ""),
        )
        for sample in _of_run(series, run)
        if sample.labels.get("instance")
    }


def _of_run(samples: Iterable[Sample], run: Run) -> Iterator[Sample]:
    """Yield the samples of a run's ranks."""
    for sample in samples:
        if RUN in sample.labels and run_of(sample) == run and _RANK.match(sample.labels.get("training_rank", "")):
            yield sample
