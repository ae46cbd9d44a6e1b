"""The evaluation's step model and scenarios: what they produce has the properties that the rules rely on."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from lab.evaluation.draw import Draw
from lab.evaluation.engine import BINARY, read_by_rules, rule_files, run
from lab.evaluation.model.exposition import Incarnation, incarnations
from lab.evaluation.model.faults import (
    Collection,
    GpuFault,
    Hang,
    Held,
    Leak,
    MetricsLost,
    Recompile,
    Roaming,
    Slow,
    Supply,
    Throttle,
    Unsteady,
)
from lab.evaluation.model.job import OWN, Case, Expectation, Gpus, Job, Loader, Numbers, Pause, Usage
from lab.evaluation.model.steps import Training
from lab.evaluation.model.target import EPOCH, STALE
from lab.evaluation.plan import SIZES, cases
from lab.evaluation.report import BEGIN, END, table, with_figures
from lab.evaluation.scenarios import ALL, SCENARIOS
from lab.evaluation.scenarios.consequences import with_consequences
from lab.evaluation.score import record, summary
from laggard.shared.phases import Phase
from laggard_cli.replay.truth import Fired
from tests.rules.pack import FOREIGN


def test_waiting_equalises_the_step() -> None:
    """Own time and waiting add up to the same step on all ranks, and the slow rank is the one that waits least."""
    job = Job("r", 4, 0.2, cv=0.1, faults=(Slow(ranks=(2,), phase=Phase.FORWARD, factor=1.5),))
    moment = Training(job, 4, start=0, seed=1).at(300)
    steps = moment.phase_seconds / moment.counted
    assert steps.sum(axis=0) == pytest.approx(np.full(4, steps[:, 0].sum()), rel=0.002)
    own = steps[list(OWN)].sum(axis=0)
    assert own[2] / np.delete(own, 2) == pytest.approx(np.full(3, 1.5), rel=0.03)
    assert steps[Phase.COMMUNICATION].argmin() == 2
    assert moment.floor[2] < 0.2 * 0.05


def test_a_hang_leaves_the_others_in_the_collective() -> None:
    """Who hangs stays in its phase, the others wait in the collective after it, and no step ends."""
    job = Job("r", 4, 0.2, faults=(Hang(begin=60, ranks=(1,), phase=Phase.DATA),))
    training = Training(job, 4, start=0, seed=1)
    before, later = training.at(90), training.at(120)
    assert list(later.phase) == [Phase.COMMUNICATION, Phase.DATA, Phase.COMMUNICATION, Phase.COMMUNICATION]
    assert list(later.inside) == [True, False, True, True]
    assert later.sequence[0] == later.sequence[1] + 1
    assert later.phase_age - before.phase_age == pytest.approx(np.full(4, 30))
    assert (later.steps == before.steps).all()


def test_a_slow_loader_empties_the_queue() -> None:
    """Workers that need 1.5 steps for what one takes make the step so long: who has no batch waits, and all for it."""

    def step(*faults: Supply) -> tuple[float, float]:
        job = Job("r", 4, 0.1, compile=0, loader=Loader(4, share=0.5), faults=faults)
        moment = Training(job, 4, start=0, seed=1).at(300)
        seconds = moment.phase_seconds / moment.counted
        return float(seconds[:, 0].sum()), float(seconds[Phase.DATA].max())

    healthy, waits = step()
    assert waits < 0.01 * healthy
    starved, waits = step(Supply(factor=1.5))
    assert starved / healthy == pytest.approx(1.5, rel=0.1)
    assert waits > 0.1 * starved


def test_counters_never_fall() -> None:
    """Whatever happens, no counter falls, not even by a rounding error: Prometheus would see a reset."""
    job = Job("r", 3, 0.7, pauses=(Pause(Phase.CHECKPOINT, 30, 5, alone=True),), lost_scrapes=0.0)
    (incarnation,) = incarnations(job)
    known: dict[str, float] = {}
    for target in incarnation.targets({"training_steps_total", "training_step_own_duration_seconds_sum"}):
        for time in np.arange(25, 400, 3.7):
            for series, value in zip(target.series, target.read(time), strict=True):
                assert value >= known.get(series, 0.0)
                known[series] = value
    assert len(known) == 6


def test_what_is_gone_is_marked_once() -> None:
    """A scrape that fails marks the series that the one before found; later ones are silent."""
    job = Job("r", 2, 0.2, lost_scrapes=0.0, faults=(MetricsLost(begin=100, ranks=(0,)),))
    (incarnation,) = incarnations(job)
    target = next(iter(incarnation.targets({"training_rank_start_timestamp_seconds"})))
    samples = [target.sample(time) for time in (90.0, 105.0, 120.0)]
    assert samples[0].tolist() == [EPOCH, EPOCH]
    assert samples[1].view(np.uint64)[0] == STALE.view(np.uint64)
    assert np.isnan(samples[2]).tolist() == [True, False]
    assert samples[2].view(np.uint64)[0] != STALE.view(np.uint64)


def test_some_ranks_are_scraped_more_rarely() -> None:
    """Each rank has one target for its own metrics, and the rare ones one that is read in every fourth interval."""
    (incarnation,) = incarnations(Job("r", 8, 0.2, rare=(2, 5)))
    own = [each for each in incarnation.targets({"training_steps_total"}) if each.series]
    ranks = {each.every: sorted(line.split("training_rank\t")[1][0] for line in each.series) for each in own[-1:]}
    assert ranks == {4: ["2", "5"]}
    assert sorted(line.split("training_rank\t")[1][0] for each in own[:-1] for line in each.series) == list("013467")
    assert {each.every for each in own[:-1]} == {1}


def _values(incarnation: Incarnation, names: set[str], *times: float) -> list[dict[str, float]]:
    """Return what is exposed at some times, by series without run and place."""
    found: list[dict[str, float]] = [{} for _ in times]
    for target in incarnation.targets(names):
        for values, time in zip(found, times, strict=True):
            for series, value in zip(target.series, target.read(time), strict=True):
                name, *pairs = series.split("\t")
                labels = dict(zip(pairs[::2], pairs[1::2], strict=True))
                kept = [labels[key] for key in sorted(labels) if key not in ("training_run", "instance")]
                values[" ".join([name, *kept])] = float(value)
    return found


def test_what_is_rare_shows_in_the_tail_alone() -> None:
    """One step in forty that takes twice as long moves the last percentile of its phase, and no other quantile."""
    fault = Unsteady(ranks=(1,), phase=Phase.FORWARD, chance=0.025, excess=1.0)
    training = Training(Job("r", 2, 0.1, cv=0.02, faults=(fault,)), 2, start=0, seed=1)
    training.at(200)
    quantiles = training.quantiles(np.arange(2)) / 0.1
    row = OWN.index(Phase.FORWARD)
    assert quantiles[:, row, 0] == pytest.approx([0.3, 0.3, 0.3], abs=0.03)
    assert quantiles[:2, row, 1] == pytest.approx([0.3, 0.3], abs=0.03)
    assert quantiles[2, row, 1] > 1


def test_quantiles_of_few_steps_are_unknown() -> None:
    """The longest of a few steps is no percentile: the last one is known from the hundredth step on."""
    training = Training(Job("r", 2, 0.1, cv=0.02), 2, start=0, seed=1)
    seen: set[int] = set()
    for seconds in np.arange(0.1, 20, 0.1):
        counted = int(training.at(float(seconds)).counted.min())
        known = np.isfinite(training.quantiles(np.arange(2))).all(axis=(1, 2))
        if counted == training.at(float(seconds)).counted.max():
            seen.add(counted)
            assert known.tolist() == [counted >= steps for steps in (2, 20, 100)], counted
    assert {1, 2, 19, 20, 99, 100} <= seen


def test_collections_cost_the_run_more_than_a_rank() -> None:
    """Each rank stops for 1 step in 40; at different steps the run of four loses four times that."""

    def lost(*, together: bool) -> tuple[float, float]:
        fault = Collection(every=40, pause=1.0, together=together)
        moment = Training(Job("r", 4, 0.1, cv=0, spread=0, transfer=0, faults=(fault,)), 4, start=0, seed=3).at(400)
        return float(moment.phase_seconds[:, 0].sum() / moment.counted[0] / 0.1 - 1), float(moment.collected_seconds[0])

    together, collected = lost(together=True)
    assert together == pytest.approx(1 / 40, rel=0.1)
    assert lost(together=False)[0] == pytest.approx(4 / 40, rel=0.1)
    assert collected == pytest.approx(400 / 0.1025 / 40 * 0.1, rel=0.02)


def test_what_compiles_anew_stays_out_of_the_means() -> None:
    """A compilation every 20 s for 4 s takes a fifth of the time, which no step in the means has."""
    fault = Recompile(begin=100, every=20, seconds=4)
    training = Training(Job("r", 2, 0.1, compile=0, warmup=0, faults=(fault,)), 2, start=0, seed=1)
    before, after = training.at(99), training.at(499)
    assert after.recompilations - before.recompilations == pytest.approx(20, abs=1)
    assert (after.excluded_seconds - before.excluded_seconds)[1:].sum() / 400 == pytest.approx(0.2, abs=0.03)
    assert after.phase_seconds.sum(axis=0) / after.counted == pytest.approx(
        before.phase_seconds.sum(axis=0) / before.counted, rel=0.02
    )


def test_a_hot_gpu_is_slow_and_says_so() -> None:
    """A GPU at half of its clock doubles the compute of its rank, and its driver counts for how long it was held."""
    throttle = Throttle(begin=100, ranks=(1,), clock=0.5, told=0.9)
    job = Job("r", 2, 0.1, cv=0.02, gpus=Gpus(), faults=(throttle,), lost_scrapes=0)
    (incarnation,) = incarnations(job)
    names = {"gpu_clock_hertz", "gpu_clock_event_seconds_total", "training_phase_duration_seconds_sum"}
    times = np.arange(90, 301, 15.0)
    first, *_, last = _values(incarnation, names, *times)
    assert last["gpu_clock_hertz sm GPU-r-1"] / first["gpu_clock_hertz sm GPU-r-1"] == pytest.approx(0.5, rel=0.05)
    held = "gpu_clock_event_seconds_total hw_thermal GPU-r-1"
    assert last[held] - first[held] == pytest.approx(0.9 * 195, rel=0.1)
    spent = {
        rank: last[f"training_phase_duration_seconds_sum backward {rank}"]
        - first[f"training_phase_duration_seconds_sum backward {rank}"]
        for rank in "01"
    }
    assert spent["1"] / spent["0"] == pytest.approx(2, rel=0.1)


def test_what_is_broken_shows_on_its_own_gpu() -> None:
    """A lost GPU answers no more, memory that leaks grows at its speed, and nothing else changes."""
    faults = (GpuFault(begin=50, rank=1, kind="lost", size=0), Leak(ranks=(0,), speed=2.0**20))
    job = Job("r", 2, 0.1, gpus=Gpus(), usage=Usage(), faults=faults, lost_scrapes=0)
    (incarnation,) = incarnations(job)
    before, after = _values(incarnation, {"gpu_up", "training_memory_usage_bytes"}, 40.0, 140.0)
    assert [before[f"gpu_up GPU-r-{rank}"] for rank in (0, 1)] == [1, 1]
    assert [after[f"gpu_up GPU-r-{rank}"] for rank in (0, 1)] == [1, 0]
    grown = {key: after[key] - before[key] for key in after if "host_rss" in key}
    assert grown == {
        "training_memory_usage_bytes host_rss 0": pytest.approx(100 * 2.0**20),
        "training_memory_usage_bytes host_rss 1": 0,
    }


def test_consequences_follow_from_the_steps() -> None:
    """A run of uneven batches must be called so; one that is nearly even, and one of two hosts, must not."""
    job = Job("r", 8, 0.2, cv=0.02, horizon=2000)
    uneven = with_consequences(Case(replace(job, faults=(Roaming(begin=200, factor=1.6),))))
    assert [each.alert for each in uneven.expected] == ["TrainingDataImbalance"]
    assert with_consequences(Case(replace(job, faults=(Roaming(begin=200, factor=1.05),)))).expected == ()
    staged = with_consequences(Case(replace(job, stages=(1.0, 1.5))))
    assert staged.expected == (Expectation("TrainingStageSlow", ("stage-1",), begin=20.0),)


def test_what_rules_read_is_exposed() -> None:
    """Each series of ranks and GPUs that a rule reads is exposed by some simulated job, or is known not to be."""
    (incarnation,) = incarnations(
        Job(
            "r", 2, 0.1, gpus=Gpus(), usage=Usage(), numbers=Numbers(scaler=True), loader=Loader(2),
            faults=(GpuFault(kind="xid_79"), Held()),
        )
    )  # fmt: skip
    # AMD's exporter begins its names with gpu_ too.
    read = {name for name in read_by_rules(rule_files()) if name.startswith(("training_", "gpu_"))} - FOREIGN.keys()
    shown = {series.split("\t")[0] for target in incarnation.targets(read) for series in target.series}
    assert read - shown <= _NOT_SIMULATED


#: Facts of cost, of versions and of paths that no scenario is about, what recorders and RAS say, and how jobs ended.
_NOT_SIMULATED = {
    "gpu_clock_event_active",
    "gpu_driver_info",
    "gpu_energy_joules_total",
    "gpu_retired_pages_pending",
    "gpu_xid_errors_total",
    "training_flops_total",
    "training_process_failure_last_step_age_seconds",
    "training_process_failure_timestamp_seconds",
    "training_process_hang_begun",
    "training_process_hang_issued",
    "training_process_hang_pending",
    "training_process_hang_peer",
    "training_process_hang_transfer",
    "training_process_ras_behind",
    "training_process_ras_missing",
    "training_samples_total",
}


def test_every_alert_has_its_cases() -> None:
    """With two seeds each alert of the pack has twenty runs in which it must fire, and twenty near misses."""
    positives: Counter[str] = Counter()
    near: Counter[str] = Counter()
    for case in (*cases(1, SCENARIOS, SIZES[:4]), *cases(2, SCENARIOS, SIZES[:4])):
        alerts = {each.alert for each in case.expected}
        positives.update(alerts)
        near.update(case.near)
        assert alerts.isdisjoint(case.near), case.job.run
        assert alerts | {*case.near, *case.allowed} <= ALL, case.job.run
        culprits = [culprit for each in case.expected for culprit in each.culprits]
        assert all(culprit < case.job.ranks for culprit in culprits if isinstance(culprit, int))
        assert all(each.begin < case.job.horizon - 120 for each in case.expected), case.job.run
    assert len(SCENARIOS) >= 120
    assert {alert: positives[alert] >= 20 for alert in ALL} == dict.fromkeys(ALL, True)
    assert {alert: near[alert] >= 20 for alert in ALL} == dict.fromkeys(ALL, True)


def test_the_summary_counts() -> None:
    """Precision, recall and what was taken for what follow from the records."""
    case = replace(SCENARIOS["slow_forward"].make(Draw(1, "slow_forward", 4)), scenario="slow_forward")
    ((rank,), begin), job = (case.expected[0].culprits, case.expected[0].begin), case.job
    right = Fired("TrainingStraggler", "warning", job.run, str(rank), "forward", begin + 100)
    wrong = Fired("TrainingInputBound", "warning", job.run, "", "data", begin + 100)
    other = Fired("TrainingElse", "warning", job.run)
    result = summary([record(case, [right, wrong, other]), record(case, [])])
    assert result["alerts"]["TrainingStraggler"]["recall"] == 0.5
    assert result["alerts"]["TrainingStraggler"]["median_delay"] == 100
    assert result["pooled"]["precision"] == 0.5
    assert result["others"] == {"TrainingElse": {"slow_forward": 1}}
    assert result["confusion"] == {"TrainingStraggler": {"runs": 2, "false": {"TrainingInputBound": 1}}}
    assert "| TrainingStraggler | 2 | TrainingInputBound 1 |" in table({**result, "failed_rules": {}})


def test_figures_take_their_place_in_a_document() -> None:
    """What stands between the two lines is replaced, and nothing else; a document without them is refused."""
    result = {"seeds": [7, 8], "failed_rules": {}, **summary([])}
    once = with_figures(f"before\n\n{BEGIN}\nold\n{END}\n\nafter\n", result)
    assert once.startswith(f"before\n\n{BEGIN}\n\nSeeds 7 and 8: 0 runs of 0 scenarios.\n")
    assert once.endswith(f"\n\n{END}\n\nafter\n")
    assert with_figures(once, result) == once
    with pytest.raises(ValueError, match="figures: made by"):
        with_figures("before\nafter\n", result)


@pytest.mark.skipif(
    not BINARY.exists(), reason="no rule engine: run scripts/tools/build_rule_engine.sh, which needs Go"
)
def test_the_engine_names_who_is_at_fault() -> None:
    """In virtual time the shipped rules name a slow and a stuck rank with their phases, and of a healthy run none."""
    jobs = [
        Job("slow", 4, 0.2, faults=(Slow(begin=200, ranks=(2,), phase=Phase.DATA, factor=1.5),), seed=1, horizon=600),
        Job("stuck", 4, 0.2, faults=(Hang(begin=300, ranks=(1,), phase=Phase.DATA),), seed=2, horizon=600),
        Job("healthy", 8, 0.2, seed=3, horizon=600),
    ]
    result = run(jobs, seed=1)
    assert result.failed == {}
    judged = [each for each in result.fired if each.alert in ALL]
    assert sorted((each.run, each.alert, each.rank, each.phase) for each in judged) == [
        ("slow", "TrainingStraggler", "2", "data"),
        ("stuck", "TrainingStalled", "1", "data"),
    ]
    assert [each.begin for each in run(jobs, seed=1).fired] == [each.begin for each in result.fired]
