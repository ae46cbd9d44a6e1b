"""The chaos suite's own promises, and one of its cases; all of them are played by ``make chaos``."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

from lab.chaos import report
from lab.chaos.breakages import BREAKAGES
from lab.chaos.faults import FAULTS, Fault
from lab.chaos.network import LINK
from lab.chaos.outages import OUTAGES
from lab.chaos.outside import OUTSIDE
from lab.chaos.own import OWN_FAULTS
from lab.chaos.own_acts import ACTS
from lab.chaos.play import Case, Play, Result
from lab.chaos.stack import Stack
from laggard_cli.diagnose.model import Verdict

FAULT = Fault("broken", "a rank is broken", "kill", ("TrainingRankDied",), process=True)
VERDICT = Verdict("TrainingRankDied", "critical", "broken-2of4", "2", "forward", "a", "", 1, "", "", "", "")


def judged(fault: Fault, *verdicts: Verdict, seconds: float = 5) -> Result:
    """Return the result of a case in which these verdicts were seen after so many seconds."""
    case = Case(fault, world=4, culprit=2)
    result = Result(case, limit=None if fault.silent else 20)
    for verdict in verdicts:
        result.note(verdict, seconds)
    return result


def test_a_case_passes_only_with_the_right_rank_in_time_and_no_other() -> None:
    """Silence, another rank, a late alert and an alert about the whole run fail; a second true alert does not."""
    assert judged(FAULT, VERDICT).passed
    assert judged(FAULT, VERDICT, replace(VERDICT, alert="TrainingStalled")).passed
    assert not judged(FAULT).passed
    assert not judged(FAULT, VERDICT, seconds=21).passed
    assert not judged(FAULT, replace(VERDICT, rank="1")).passed
    assert not judged(FAULT, VERDICT, replace(VERDICT, rank="1")).passed
    assert not judged(FAULT, replace(VERDICT, alert="TrainingStalled")).passed
    assert not judged(FAULT, VERDICT, replace(VERDICT, rank="", alert="TrainingStalled")).passed


def test_where_nothing_is_wrong_every_alert_fails() -> None:
    """And silence passes; where nobody is to blame, only an alert without a rank does."""
    fine = replace(FAULT, alerts=(), silent=10.0, culprit=False)
    assert judged(fine).passed
    assert not judged(fine, VERDICT).passed
    nobody = replace(FAULT, culprit=False)
    assert judged(nobody, replace(VERDICT, rank="")).passed
    assert not judged(nobody, VERDICT).passed


def test_every_fault_has_something_that_happens() -> None:
    """At least 25 distinct faults, no two of one name, each with an act, and no act that no fault uses."""
    names = [fault.name for fault in (*FAULTS, *OWN_FAULTS)]
    assert len(set(names)) == len(names)
    assert sum(fault.silent is None for fault in FAULTS) >= 25
    acts = {fault.act for fault in FAULTS if fault.act}
    assert acts == BREAKAGES.keys() | OUTSIDE.keys() | LINK.keys()
    assert {fault.act for fault in OWN_FAULTS} == ACTS.keys() | OUTAGES.keys()


def test_the_document_lists_what_is_tested() -> None:
    """docs/reliability.md has the tables of the suite."""
    text = report.DOCUMENT.read_text(encoding="utf-8")
    assert report.document(text) == text, "run: python -m lab.chaos --document"
    assert all(f"`{fault.name}` |" in text for fault in (*FAULTS, *OWN_FAULTS))


def test_a_killed_rank_is_named(tmp_path: Path) -> None:
    """On the real stack, within 20 seconds, and nobody else."""
    killed = next(fault for fault in FAULTS if fault.name == "killed")
    stack = Stack(tmp_path, places=1)
    with stack.servers, contextlib.closing(Play(stack, print)) as play:
        result = play.play(Case(killed, world=3, culprit=1))
    assert result.passed, result
