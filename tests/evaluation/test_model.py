"""The evaluation's step model and scenarios: what they produce has the properties that the rules rely on."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from evaluation.draw import Draw
from evaluation.engine import BINARY, run
from evaluation.exposition import EPOCH, STALE, incarnations
from evaluation.job import OWN, Hang, Job, MetricsLost, Pause, Slow, Supply
from evaluation.scenarios import ALL, SCENARIOS
from evaluation.score import record, summary
from evaluation.steps import Training
from laggard.conventions import Phase
from laggard_cli.replay.truth import Fired


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
        job = Job("r", 4, 0.1, compile=0, loader=(4, 2, 0.5), faults=faults)
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
    assert samples[0].tolist() == [EPOCH]
    assert samples[1].view(np.uint64) == STALE.view(np.uint64)
    assert np.isnan(samples[2]).all()
    assert samples[2].view(np.uint64) != STALE.view(np.uint64)


def test_every_alert_has_its_cases() -> None:
    """Each judged alert has at least 20 runs in which it must fire and 20 near misses, with two seeds."""
    positives: Counter[str] = Counter()
    near: Counter[str] = Counter()
    for name, make in SCENARIOS.items():
        for ranks in (2, 4, 8, 64, 512):
            for seed in (1, 2):
                case = make(Draw(seed, name, ranks))
                positives.update({alert for alert, *_ in case.expected})
                near.update(case.near)
                assert make(Draw(seed, name, ranks)) == case
                assert all(rank < ranks for _, culprits, *_ in case.expected for rank in culprits)
                assert all(begin < case.job.horizon - 120 for *_, begin, _ in case.expected)
    assert len(SCENARIOS) >= 30
    assert {alert: positives[alert] >= 20 for alert in ALL} == dict.fromkeys(ALL, True)
    assert {alert: near[alert] >= 20 for alert in ALL} == dict.fromkeys(ALL, True)


def test_the_summary_counts() -> None:
    """Precision, recall and what was taken for what follow from the records."""
    case = SCENARIOS["slow_forward"](Draw(1, "slow_forward", 4))
    (_, (rank,), *_), job = case.expected[0], case.job
    begin = case.expected[0][3]
    right = Fired("TrainingStraggler", "warning", job.run, str(rank), "forward", begin + 100)
    wrong = Fired("TrainingInputBound", "warning", job.run, "", "data", begin + 100)
    other = Fired("TrainingElse", "warning", job.run)
    result = summary([record(case, [right, wrong, other]), record(case, [])])
    assert result["alerts"]["TrainingStraggler"]["recall"] == 0.5
    assert result["alerts"]["TrainingStraggler"]["median_delay"] == 100
    assert result["pooled"]["precision"] == 0.5
    assert result["others"] == {"TrainingElse": {"": 1}}
    assert result["confusion"] == {
        "TrainingStraggler": {
            "runs": 2,
            "TrainingInputBound": 1,
            "TrainingStraggler": 1,
            "no TrainingStraggler": 1,
        }
    }


@pytest.mark.skipif(not BINARY.exists(), reason="no rule engine: run scripts/build_rule_engine.sh, which needs Go")
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
