"""All collectors together: a scrape asks them at the same time and takes what comes until its deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Collection as Names

from laggard.version import __version__
from laggard_exporter.conventions import (
    BUILD_INFO,
    COLLECTOR_DURATION,
    COLLECTOR_LAST_SUCCESS,
    COLLECTOR_SUCCESS,
    COLLECTOR_SUPPORTED,
)
from laggard_exporter.runner import Collector, Crew, Outcome, Runner, UnsupportedError
from laggard_exporter.samples import Grouped, Sample, grouped

__all__ = ["DEFAULT_TIMEOUT", "Collection", "Collector", "UnsupportedError"]

#: For who does not say how long a scrape may take, in seconds: Prometheus' own default.
DEFAULT_TIMEOUT = 10.0

#: The newest run of a collector tells its health for so long, in seconds; then it is asked again.
HEALTH_SECONDS = 30.0

#: A collector that is asked for its health has so many seconds.
HEALTH_TIMEOUT = 2.0


class Collection:
    """The collectors that are switched on. ``own`` gives further samples about the exporter itself."""

    def __init__(self, collectors: Sequence[Collector], own: Callable[[], Iterable[Sample]] = tuple) -> None:
        crew = Crew()
        self._runners = {collector.name: Runner(collector, crew) for collector in collectors}
        self._own = own

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the collectors."""
        return tuple(self._runners)

    def outcomes(self, names: Names[str] | None = None, timeout: float = DEFAULT_TIMEOUT) -> dict[str, Outcome]:
        """Run the named collectors, or all, at the same time and return how each ended within ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        runners = [runner for runner in self._runners.values() if names is None or runner.name in names]
        runs = [(runner, runner.request()) for runner in runners]
        return {runner.name: runner.wait(run, deadline - time.monotonic()) for runner, run in runs}

    def samples(self, names: Names[str] | None = None, timeout: float = DEFAULT_TIMEOUT) -> Iterator[Grouped]:
        """Yield the samples of each collector, and those about the exporter itself."""
        health = [Sample(BUILD_INFO, (__version__,), 1), *self._own()]
        for name, outcome in self.outcomes(names, timeout).items():
            yield outcome.samples
            health += self._health(name, outcome)
        yield grouped(health)

    def problems(self) -> dict[str, str]:
        """Return for each collector what is wrong with it, empty when nothing is, from runs of the last half minute."""
        old = time.monotonic() - HEALTH_SECONDS
        fresh = {
            name: runner.newest[1] for name, runner in self._runners.items() if runner.newest and runner.newest[0] > old
        }
        missing = self._runners.keys() - fresh.keys()
        fresh |= self.outcomes(missing, HEALTH_TIMEOUT) if missing else {}
        return {name: fresh[name].problem for name in self._runners}

    def _health(self, name: str, outcome: Outcome) -> Iterator[Sample]:
        yield Sample(COLLECTOR_SUCCESS, (name,), not outcome.problem)
        yield Sample(COLLECTOR_DURATION, (name,), outcome.duration)
        if not outcome.problem:
            yield Sample(COLLECTOR_SUPPORTED, (name,), not outcome.unsupported)
        last_success = self._runners[name].last_success
        if last_success is not None:
            yield Sample(COLLECTOR_LAST_SUCCESS, (name,), last_success)
