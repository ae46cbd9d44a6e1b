"""Runs another program and writes each step that laggard finds as a line of JSON, as it is reported.

Arguments: a folder for the lines, the program, its arguments. Times are ``perf_counter_ns``, as a program's own
stopwatch reads them.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from laggard._report import Report
from laggard._steps import Step
from laggard.shared.phases import Phase

_report_steps = Report.steps


def _steps(report: Report, steps: Sequence[Step], one_in: int = 1) -> None:
    _report_steps(report, steps, one_in)
    for step in steps:
        row = {
            "started": step.started,
            "ended": step.ended,
            "own": step.own,
            "phases": {phase.label: step.phases[phase] for phase in Phase if step.phases[phase]},
            "waits": [(begin, end) for phase, begin, end in step.intervals if phase == Phase.COMMUNICATION],
        }
        lines.write(json.dumps(row) + "\n")
    lines.flush()


if __name__ == "__main__":
    # The last steps are reported on the way out.
    lines = Path(sys.argv[1], f"steps-{os.environ.get('RANK', '0')}.jsonl").open("w")  # noqa: SIM115 - open to the end
    Report.steps = _steps
    del sys.argv[:2]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    runpy.run_path(sys.argv[0], run_name="__main__")
