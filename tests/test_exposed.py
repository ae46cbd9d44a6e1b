"""What simulators write is what ranks and exporters expose, so that they cannot drift from each other."""

from __future__ import annotations

import importlib
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lab.evaluation import load
from lab.evaluation.model.exposition import incarnations
from lab.evaluation.model.surroundings import EXCESS
from lab.evaluation.plan import cases
from lab.evaluation.scenarios import SCENARIOS
from lab.scale.values import name_and_labels
from laggard._log import WATCHED
from laggard.shared.metrics import DROP_REASONS, EXCLUSION_REASONS, QUANTILES, SIGNALS
from laggard.shared.phases import STILL_SECONDS, Phase, RankState
from laggard_exporter.nvml.table import CLOCK_EVENT_BITS, CLOCK_EVENT_FIELDS, READINGS
from tests.dashboards.left_out import left_out
from tests.dashboards.world import FAULTS
from tests.rules import engine
from tests.rules.pack import FOREIGN, INPUTS, ROOT, emitted

_PROMTOOL_TESTS = ROOT / "promtool-tests"
#: What a scrape adds, and what a site may.
_ADDED = frozenset({"job", "instance", "cluster", "replica"})
#: The words that a label of ours may have; of reasons by the metric.
_WORDS: Mapping[str, Iterable[str]] = {
    "training_phase": [phase.label for phase in Phase],
    "training_state": [state.label for state in RankState],
    "training_quantile": QUANTILES,
    "training_signal": SIGNALS,
    "training_value": WATCHED.values(),
    "training_gc_generation": "012",
}
_REASONS: Mapping[str, Iterable[str]] = {
    "training_steps_excluded_total": EXCLUSION_REASONS,
    "training_steps_excluded_duration_seconds_total": EXCLUSION_REASONS,
    "training_telemetry_dropped_total": DROP_REASONS,
}


class _Everything:
    """As names that rules read: all of them."""

    def __contains__(self, name: object) -> bool:
        return True


_Series = Iterator[tuple[str, Mapping[str, str]]]


def _of_the_load() -> _Series:
    everything: Any = _Everything()
    for target in load.targets(8, everything):
        yield from map(name_and_labels, target.series)


def _of_the_model() -> _Series:
    everything: Any = _Everything()
    for case in cases(1, SCENARIOS, [8]):
        for target in itertools.chain.from_iterable(each.targets(everything) for each in incarnations(case.job)):
            yield from map(name_and_labels, target.series)


def _of_the_live_runs() -> _Series:
    play = engine.Play()
    pages = [play.exposition()]
    play.stuck = 1
    play._edge -= 2 * STILL_SECONDS
    pages.append(play.exposition())
    play.state = "finished"
    pages.append(play.exposition())
    for family in text_string_to_metric_families("".join(pages)):
        for sample in family.samples:
            yield sample.name, sample.labels


def _of_the_dashboards() -> _Series:
    """What panels read and the model leaves out."""
    everything: Any = _Everything()
    jobs = [case.job for case in cases(1, FAULTS, [8])]
    targets = [target for job in jobs for each in incarnations(job) for target in each.targets(everything)]
    for target in left_out(targets):
        yield from map(name_and_labels, target.series)


def _of_the_plays() -> _Series:
    generate = importlib.import_module("generate")
    for module in sorted((_PROMTOOL_TESTS / "plays").glob("*.py")):
        for play in importlib.import_module(f"plays.{module.stem}").PLAYS:
            for name, labels in generate._played(play).world.series():
                # Plays of adapters and of foreign alerts bring series of others; AMD's begin with gpu_ too.
                if name.startswith(("training_", "gpu_")) and name not in FOREIGN:
                    yield name, dict(labels)


def _device_words() -> Mapping[str, frozenset[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for reading in READINGS:
        found[reading.family.name] |= {*reading.labels, *reading.states}
    found |= {"gpu_clock_event_seconds_total": set(CLOCK_EVENT_FIELDS), "gpu_clock_event_active": set(CLOCK_EVENT_BITS)}
    return {name: frozenset(words) for name, words in found.items()}


@pytest.mark.parametrize(
    "simulated", [_of_the_load, _of_the_model, _of_the_plays, _of_the_live_runs, _of_the_dashboards]
)
def test_what_is_simulated_is_exposed(simulated: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each series has a name, labels and words in them that the product gives."""
    monkeypatch.syspath_prepend(_PROMTOOL_TESTS)
    known, devices = emitted(), _device_words()
    wrong: set[str] = set()
    seen = 0
    for name, labels in simulated():
        seen += 1
        if name == EXCESS or name in INPUTS:
            continue  # a user's series, too many of them; and what a user records beside the pack
        if name not in known:
            wrong.add(name)
            continue
        wrong |= {f"{name}{{{label}}}" for label in labels.keys() - known[name] - _ADDED}
        for label, value in labels.items():
            words = _REASONS.get(name) if label == "training_reason" else _WORDS.get(label)
            if name in devices and label not in {"uuid", *_ADDED}:
                words = devices[name]
            if words is not None and value not in words:
                wrong.add(f"{name}{{{label}={value}}}")
    assert wrong == set()
    assert seen > 100
