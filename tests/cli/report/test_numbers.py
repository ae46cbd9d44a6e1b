"""``laggard report``: of which moment the numbers in a verdict's text are."""

from __future__ import annotations

from pathlib import Path

from laggard_cli.clusters import Run
from laggard_cli.prometheus import Prometheus
from laggard_cli.report.history import Counted
from laggard_cli.report.span import Span
from laggard_cli.report.verdicts import Problem, read
from tests.cli.gate.runs import prometheus_with

BEGIN, STEP = 1_700_000_000, 15
#: Own times of the slow rank over those of its peers while its alert fires; it has recovered when the alert ends.
SLOW = [1.5] * 60 + [1.05] * 4
_RANK = 'training_run="r",training_rank="2"'


def _series() -> str:
    series = {
        'ALERTS{alertname="TrainingStraggler",alertstate="firing",severity="warning",training_kind="speed",'
        f'training_phase="forward",{_RANK}}}': [1.0] * len(SLOW),
        f"run_rank:training_straggler_score:named{{{_RANK}}}": SLOW,
        f"run_rank:training_straggler_score:last{{{_RANK}}}": SLOW,
        f'run_rank_phase:training_straggler_phase:info{{{_RANK},training_phase="forward"}}': [1.0] * len(SLOW),
        'run:training_ranks_live:count{training_run="r"}': [4.0] * len(SLOW),
        f"run_rank:training_step_own_seconds:compared{{{_RANK}}}": SLOW,
        'run_peer_group:training_step_own_seconds:reference{training_run="r"}': [1.0] * len(SLOW),
    }
    lines = [
        f"{name} {value} {BEGIN + STEP * number}"
        for name, values in series.items()
        for number, value in enumerate(values)
    ]
    return "\n".join([*lines, "# EOF\n"])


def _told(url: str, end: float) -> Problem:
    server = Prometheus(url)
    try:
        ((problem,), _) = read(Counted(server, lambda _: None), server, Run("", "r"), Span(BEGIN, end, STEP, 60), [])
    finally:
        server.close()
    return problem


def test_numbers_of_a_verdict_that_is_over_are_not_those_of_the_recovery(tmp_path: Path) -> None:
    """An alert outlasts a fault by minutes: its text has the numbers of its middle, and the newest while it fires."""
    with prometheus_with(tmp_path, _series()) as url:
        over = _told(url, BEGIN + 3600)
        assert "takes 1.50 times as long as its peers" in over.summary
        lasting = _told(url, BEGIN + STEP * 62)
        assert "takes 1.05 times as long as its peers" in lasting.summary
