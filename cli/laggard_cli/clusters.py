"""What tells a run from all others: its name, in its cluster where a site's series say which that is."""

from __future__ import annotations

import argparse
from typing import NamedTuple

from laggard_cli.errors import CommandError
from laggard_cli.labels import CLUSTER
from laggard_cli.prometheus import Prometheus, Sample, quoted

RUN = "training_run"


class Run(NamedTuple):
    """One run. The cluster is empty where no series names any."""

    cluster: str
    name: str

    def __str__(self) -> str:
        return f"{self.name} of cluster {self.cluster}" if self.cluster else self.name

    def matcher(self, *more: str) -> str:
        """Return the matchers of its series; a name may hold anything."""
        own = (f"{CLUSTER}={quoted(self.cluster)}", f"{RUN}={quoted(self.name)}")
        return "{" + ",".join((*own, *more)) + "}"


def run_of(sample: Sample) -> Run:
    """Return the run that a sample is of."""
    return Run(sample.labels.get(CLUSTER, ""), sample.labels[RUN])


def is_of_a_replica(label: str) -> bool:
    """Return whether a label says which of a pair of servers has a series, as prometheus_replica does by convention."""
    return label.strip("_").endswith("replica")


def add_cluster(parser: argparse.ArgumentParser, what: str) -> None:
    """Add ``--cluster``."""
    parser.add_argument("--cluster", metavar="NAME", help=what)


def find_run(server: Prometheus, name: str, cluster: str | None, series: str, *, seconds: float, at: float) -> Run:
    """Return the run of a name, of the named cluster or else of the only one that has it.

    Args:
        server: that has the run.
        name: of the run.
        cluster: what was asked for, if anything was.
        series: one that every run has.
        seconds: how far back from ``at`` it may be.
        at: seconds since 1970.

    Raises:
        CommandError: several clusters have a run of that name, and none was named.
    """
    if cluster is not None:
        return Run(cluster, name)
    own = f"{series}{{{RUN}={quoted(name)}}}[{seconds:.0f}s]"
    found = sorted(
        {each.labels.get(CLUSTER, "") for each in server.query(f"group by ({CLUSTER}) (last_over_time({own}))", at)}
    )
    if len(found) > 1:
        raise CommandError(f"run {name!r} is in several clusters: {', '.join(map(repr, found))}; give --cluster")
    return Run(found[0] if found else "", name)
