"""What each command prints, kept in ``golden/COMMAND.txt``: into a pipe, and on terminals of 80 and 120 columns.

``GOLDEN=write pytest tests/cli/test_printed.py`` writes the files; a person reads the difference before a commit.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from laggard_cli.console import show
from laggard_cli.diagnose.model import Failure, Rank, Verdict
from laggard_cli.doctor.findings import COLUMN, FAULT, UNKNOWN, WORKS, Finding
from laggard_cli.doctor.findings import lines as findings
from laggard_cli.doctor.rules import alertmanagers
from laggard_cli.local_run import card_view
from laggard_cli.local_run.card import Card, Measured
from laggard_cli.local_run.verdicts import Said
from laggard_cli.local_run.voice import Voice
from laggard_cli.main import main
from laggard_cli.stacks import Process, Thread, grouped
from tests.cli.gate_runs import write_run
from tests.cli.terminals import forked, is_as_it_was, uncoloured
from tests.support.fake_prometheus import Series, fake_prometheus, firing
from tests.support.recorded_job import RecordedJob

RUNBOOK = "https://github.com/laggard-project/laggard/blob/main/rules/runbooks/TrainingStraggler.md"
VERDICT = Verdict(
    alert="TrainingStraggler",
    severity="warning",
    run="llama-7b",
    rank="2",
    phase="data",
    host="node-1",
    since="2026-01-01T00:00:00Z",
    value=5.13,
    summary="Rank 2 of run llama-7b on node-1 takes 5.13 times as long as its peers, mostly in data, and they wait "
    "for it.",
    description="Rank 2 of run llama-7b on host node-1 takes 5.13 times as long as its peers for its own work in a "
    "step, 55.4ms against 10.8ms, and they wait for it. Most of the difference is in phase data.",
    recommendation="Compare the DataLoader of this rank with that of its peers: its workers, the CPU share and the "
    "storage of its host, the size of its shard.",
    runbook_url=RUNBOOK,
)
RANKS = (Rank("2", 0.0554, 0.0005), *(Rank(str(rank), 0.0108, 0.0451) for rank in (0, 1, 3)))
MEASURED = Measured(
    step_seconds=0.0559,
    phases={"data": 0.0169, "forward": 0.0051, "backward": 0.0, "communication": 0.0338, "other": 0.0001},
    ranks=RANKS,
    hooks_share=0.0012,
)


def _ago(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - seconds))


WRONG = """\
groups:
  - name: mine
    rules:
      - {record: laggard_threshold_override, labels: {name: stragler_score, training_run: a}, expr: vector(1.5)}
      - {record: laggard_threshold_override, labels: {name: straggler_score}, expr: vector(1.5)}
"""
RIGHT = WRONG.replace("stragler", "straggler").replace("score}", "score, training_run: b}")


@dataclass
class Place:
    """A folder with what commands are given, and a server."""

    folder: Path
    address: str


def card(**changes: object) -> Callable[[], int]:
    """Return what prints the end of a local run as its monitor does."""
    given: dict[str, object] = {
        "run": "llama-7b",
        "ended": "exit code 0",
        "seconds": 204.0,
        "ranks_seen": 4,
        "steps": 2000,
        "measured": MEASURED,
        "verdicts": (Said(VERDICT, 100.0, 191.0, over=True), Said(VERDICT, 300.0)),
        "judgement": "",
        "failure": None,
        "costs": ("", "0.17 rank-hours: 75% of each step; \u00d7 4 ranks \u00d7 3.4 min = 0.17 rank-hours"),
        "processor_seconds": 3.1,
        "report": Path("laggard-runs/llama-7b/report.html"),
        "folder": None,
        **changes,
    }

    def show() -> int:
        voice = Voice()
        voice.say(f"warning: {VERDICT.alert}: {VERDICT.summary}")
        voice.write(card_view.lines(Card(**given), voice.width, colour=voice.colour))  # type: ignore[arg-type] - a table
        return 0

    return show


def stacks() -> int:
    """Print what ``laggard stacks`` says of three ranks, of which one stands elsewhere."""
    waits = Thread(
        "main thread", False, ("all_reduce (torch/distributed/distributed_c10d.py:2810)", "train (train.py:41)")
    )
    loads = Thread("main thread", True, ("read (storage.py:17)", "__getitem__ (data.py:88)", "train (train.py:38)"))
    for line in grouped(
        {
            0: [Process("rank", 4001, (waits,))],
            1: [Process("rank", 4002, (waits,))],
            2: [
                Process("rank", 4003, (loads,)),
                Process("data worker", 4010, problem="py-spy did not answer within 20 s"),
            ],
        }
    ):
        print(line)
    return 0


def doctor() -> int:
    """Print what ``laggard doctor`` says of a server in which some things work and others do not."""
    found = (
        Finding("rules", WORKS, "503 rules of version 1.2.3 are evaluated, profile production"),
        alertmanagers([], []),
        Finding(
            "targets",
            FAULT,
            "2 of 9 targets down, of job laggard-exporter: node-7:9495, node-8:9495: connection refused",
            "start laggard-exporter there, and see its log",
        ),
        Finding("clocks", UNKNOWN, "of hosts: no rank trains now"),
    )
    show(findings("http://prometheus:9090", found), COLUMN)
    return 0


def wrong_words() -> int:
    """Give each kind of word with a mistake in it; the sum of the exit codes."""
    return sum(
        said([*words])
        for words in (
            ("diagnos",),
            ("gate", "--basline", "baseline", "--candidate", "slow"),
            ("rules", "chek", "wrong.yml"),
            ("rules", "render", "--profile", "quik", "--output", "x"),
            ("runbook", "TrainingStragler"),
            ("diagnose", "--prometheus", "ADDRESS", "--run", "llama-7"),
            ("report", "--prometheus", "ADDRESS", "--run", "llama-7b", "--from", "25:00"),
            ("hang", "nowhere"),
            ("run", "--local", "no-such-program"),
            ("top", "--prometheus", "http://127.0.0.1:9"),
        )
    )


def said(words: list[str]) -> int:
    """Print a command and what it says; return its exit code."""
    print(f"$ laggard {' '.join(words)}", flush=True)
    try:
        return main([os.environ["ADDRESS"] if word == "ADDRESS" else word for word in words])
    except SystemExit as error:
        return int(error.code or 0)


#: Name of the file, what is run, and its exit code.
CASES: list[tuple[str, Sequence[str] | Callable[[], int], int]] = [
    ("card", card(), 0),
    (
        "card-failed",
        card(
            ended="exit code 1",
            verdicts=(),
            costs=(),
            failure=Failure("3", "node-1", "forward", "exception", "RuntimeError", _ago(190)),
            judgement="not judged: too short to compare; own times need 16 steps of every rank after the warm-up, and "
            "half a minute",
        ),
        0,
    ),
    ("card-healthy", card(verdicts=(), costs=(), judgement="healthy: no alert fires; no rank is missing"), 0),
    ("doctor", doctor, 0),
    ("doctor-silent", ["doctor", "--prometheus", "ADDRESS"], 0),
    ("errors", wrong_words, 20),
    ("gate", ["gate", "--baseline", "baseline", "--candidate", "slow"], 1),
    ("gate-pass", ["gate", "--baseline", "baseline", "--candidate", "same"], 0),
    ("hang", ["hang", "dumps"], 0),
    ("help", [], 0),
    ("help-gate", ["help", "gate"], 0),
    ("init", ["init", "site"], 0),
    ("rules-check", ["rules", "check", "right.yml", "wrong.yml"], 1),
    ("runbook", ["runbook", "TrainingStraggler", "--run", "llama-7b", "--rank", "2"], 0),
    ("runbooks", ["runbook"], 0),
    ("stacks", stacks, 0),
]
SERIES: dict[str, Series] = {"count by (cluster, training_run)": [({"training_run": "llama-7b"}, 4)]}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Recordings, dumps and rules."""
    folder = tmp_path_factory.mktemp("printed")
    write_run(folder / "baseline")
    write_run(folder / "same", seed=2)
    write_run(folder / "slow", seed=2, slow=1.2)
    (folder / "dumps").mkdir()
    RecordedJob({"0": (0, 1, 2, 3)}, [("0", "all_reduce"), ("0", "all_gather")], stops={3: 1}).write(
        folder / "dumps", as_pickle=False
    )
    (folder / "dumps" / "notes.txt").write_text("not a dump")
    (folder / "wrong.yml").write_text(WRONG)
    (folder / "right.yml").write_text(RIGHT)
    with fake_prometheus(SERIES, [firing("TrainingStraggler", "llama-7b", "2")]) as address:
        yield Place(folder, address)


@pytest.mark.parametrize(("name", "command", "code"), CASES, ids=[name for name, *_ in CASES])
def test_each_command_reads_well(
    name: str, command: Sequence[str] | Callable[[], int], code: int, place: Place
) -> None:
    """As a person has read it; what is piped has no colour and no spaces at the end of a line."""
    parts: list[str] = []
    for columns in (0, 80, 120):
        # What init wrote before is in its way.
        shutil.rmtree(place.folder / "site", ignore_errors=True)

        def run() -> int:
            os.environ["ADDRESS"] = place.address
            if callable(command):
                return command()
            return main([place.address if word == "ADDRESS" else word for word in command])

        ended, shown = forked(run, columns, place.folder)
        assert ended == code, shown
        lines = uncoloured(shown).splitlines()
        if not columns:
            assert "\x1b" not in shown
            assert [line for line in lines if line != line.rstrip()] == []
        # A bar of progress is erased when it is full.
        text = "".join(f"{line.rstrip()}\n" for line in lines if "━━" not in line)
        title = f"{columns} columns" if columns else "into a pipe"
        parts.append(f"-- {title} --\n{text.replace(str(place.folder), 'FOLDER')}")
    is_as_it_was(f"{name}.txt", "\n".join(parts))
