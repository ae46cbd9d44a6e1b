"""The demo's own promises; that its verdicts are right is shown by ``make demo``."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from laggard_cli.demo.acts import ACTS, Act, Truth
from laggard_cli.demo.play import Result
from tests.cli.test_diagnose import VERDICT


def processes_of(marker: str) -> list[str]:
    """Command lines of processes that carry a marker in their environment."""
    found: list[str] = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            if marker.encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


def test_an_act_is_right_only_with_exactly_the_truth_in_time() -> None:
    """A missing, a late, a wrong and an additional verdict are wrong; silence is right where nothing is injected."""
    act = Act("slow", truth=Truth("TrainingStraggler", rank="2", phase="data"))
    other = Act("slow", truth=Truth("TrainingStraggler", rank="1", phase="data"))
    assert Result(act, [VERDICT], 10).right
    assert not Result(act, [], None).right
    assert not Result(act, [VERDICT], None).right
    assert not Result(other, [VERDICT], 10).right
    assert not Result(Act("healthy"), [VERDICT]).right
    assert Result(Act("healthy")).right
    cause = Act("caused", truth=Truth("TrainingRankFrozen", rank="2", symptoms=("TrainingStraggler",)))
    assert not Result(cause, [VERDICT], None).right
    frozen = replace(VERDICT, alert="TrainingRankFrozen")
    assert Result(cause, [frozen, VERDICT], 10).right
    assert not Result(cause, [frozen, replace(VERDICT, rank="1")], 10).right
    assert Result(Act("any phase", truth=Truth("TrainingStraggler", rank="2")), [VERDICT], 10).right


def test_the_acts_are_those_that_are_promised() -> None:
    """Health, four faults, and a clean end."""
    assert [(act.fault is None, act.truth and act.truth.alert) for act in ACTS] == [
        (True, None),
        (False, "TrainingStraggler"),
        (False, "TrainingStraggler"),
        (False, "TrainingInputBound"),
        (False, "TrainingRankFrozen"),
        (True, None),
    ]


def test_interrupt_ends_everything(tmp_path: Path) -> None:
    """Ctrl-C in the middle leaves no process and no file, whatever was started until then."""
    marker = f"LAGGARD_TEST_MARKER={tmp_path}"
    name, _, value = marker.partition("=")
    demo = subprocess.Popen(
        # A shell starts what runs in its background with SIGINT ignored, and children inherit that.
        ["env", "--default-signal=INT", sys.executable, "-m", "laggard_cli.main", "demo"],
        env={**os.environ, name: value, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline = time.monotonic() + 60
    while sum("faulty.py" in line for line in processes_of(marker)) < 5:  # the launcher and four ranks
        assert time.monotonic() < deadline
        assert demo.poll() is None, demo.communicate()[0]
        time.sleep(0.2)
    demo.send_signal(signal.SIGINT)
    output, _ = demo.communicate(timeout=40)
    assert demo.returncode == 130, output
    assert "Traceback" not in output
    while processes_of(marker):  # data workers notice the end of their rank after a while
        assert time.monotonic() < deadline + 40, processes_of(marker)
        time.sleep(0.2)
    assert list(tmp_path.iterdir()) == []
