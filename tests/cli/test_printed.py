"""What each command prints, kept in ``golden/COMMAND.txt``: into a pipe, and on terminals of 80 and 120 columns.

``GOLDEN=write pytest tests/cli/test_printed.py`` writes the files; a person reads the difference before a commit.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import pytest

from laggard._summary import Duration, Summary
from laggard_cli.console import show, stdout
from laggard_cli.diagnose.model import Failure, Rank, Verdict
from laggard_cli.doctor.findings import COLUMN, FAULT, UNKNOWN, WORKS, Finding
from laggard_cli.doctor.findings import lines as findings
from laggard_cli.doctor.rules import alertmanagers
from laggard_cli.local_run import card_view
from laggard_cli.local_run.card import Card, Measured
from laggard_cli.local_run.verdicts import Said
from laggard_cli.local_run.voice import Voice
from laggard_cli.main import main
from laggard_cli.report.page import page
from laggard_cli.stacks import Process, Thread, grouped
from laggard_exporter import doctor as node
from tests.cli.gate.runs import write_run
from tests.cli.report.runs import run as report_run
from tests.cli.terminals import forked, is_as_it_was, on_screen
from tests.support.fake_prometheus import Series, fake_prometheus, firing
from tests.support.kineto import Job, Work, write
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
        shown = Card(**given)  # type: ignore[arg-type] - a table
        for each in shown.verdicts[:1]:  # the second is the same one again
            voice.say(f"warning: {each.verdict.alert}: {each.verdict.summary}")
        voice.write(card_view.lines(shown, voice.width, colour=voice.colour))
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


def doctor_of_a_node() -> int:
    """Print what ``laggard-exporter doctor`` says of a node whose driver is missing."""
    print(
        node.as_table(
            (
                node.Finding("state", node.WORKS, 41, "8 ranks"),
                node.Finding("nvml", node.FAILS, 2, "the PCI bus shows 8 GPUs, NVML says driver_not_loaded: is the "
                "driver loaded and readable?"),
                node.Finding("disk", node.WORKS, 16, "", ("host_disk_io_seconds_total",)),
                node.Finding("amd_smi", node.ABSENT, 2, "AMD SMI says library_not_found"),
                node.Finding("cgroup", node.ABSENT, 0, "/sys/fs/cgroup has no control groups"),
            )
        )
    )  # fmt: skip
    return 0


def report() -> int:
    """Print what a page about a run says, less its pictures."""
    print("\n".join(Words.of(page(report_run()))))
    return 0


class Words(HTMLParser):
    """Collects the words of a page, a line for each part of it."""

    #: What begins a line.
    _PARTS = frozenset(
        {"h1", "h2", "h3", "h4", "p", "li", "tr", "figcaption", "summary", "dt", "pre", "footer", "caption", "div"}
    )

    def __init__(self) -> None:
        super().__init__()
        self.lines = [""]
        self._hidden = 0

    @classmethod
    def of(cls, text: str) -> list[str]:
        """Return the lines."""
        parser = cls()
        parser.feed(text)
        return [line for line in (" ".join(each.split()) for each in parser.lines) if line]

    def handle_starttag(self, tag: str, attrs: object) -> None:
        del attrs
        self._hidden += tag in ("svg", "style", "head")
        if tag in self._PARTS:
            self.lines.append("")
        elif tag in ("td", "th", "dd"):
            self.lines[-1] += " | "

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in ("svg", "style", "head")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.lines[-1] += data


def summary() -> int:
    """Print what ``laggard.summary()`` returns, as a script does and as rich does."""
    phases = {name: Duration(seconds, 1.2 * seconds) for name, seconds in MEASURED.phases.items() if seconds}
    found = Summary(
        run="llama-7b",
        rank=2,
        world_size=4,
        steps=2000,
        measured=250,
        excluded={"checkpoint": 6},
        step=Duration(0.0559, 0.061),
        own=Duration(0.022, 0.026),
        phases=phases,
        not_measured=("h2d",),
    )
    print(found)
    console = stdout()
    console.print(found)
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
            ("hang",),
            ("hang", "nowhere"),
            ("rules", "render"),
            ("stacks", "--state-dir", "ranks", "--run", "llama-7"),
            ("stacks", "--state-dir", "ranks", "--ranks", "rank1"),
            ("gate", "--limit", "5x", "--baseline", "baseline", "--candidate", "slow"),
            ("diagnose", "--prometheus", "localhost:9090"),
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
    ("doctor-node", doctor_of_a_node, 0),
    ("doctor-silent", ["doctor", "--prometheus", "ADDRESS"], 0),
    ("errors", wrong_words, 32),
    ("gate", ["gate", "--baseline", "baseline", "--candidate", "slow"], 1),
    ("gate-pass", ["gate", "--baseline", "baseline", "--candidate", "same"], 0),
    ("hang", ["hang", "dumps"], 0),
    ("help", [], 0),
    ("help-gate", ["help", "gate"], 0),
    ("init", ["init", "site"], 0),
    ("profile", ["profile", "--prometheus", "ADDRESS", "--state-dir", "ranks", "--output", "profiles"], 0),
    ("replay", ["replay", "traces", "--truth", "truth.yml"], 1),
    ("report", report, 0),
    ("rules-check", ["rules", "check", "right.yml", "wrong.yml"], 1),
    ("runbook", ["runbook", "TrainingStraggler", "--run", "llama-7b", "--rank", "2"], 0),
    ("runbooks", ["runbook"], 0),
    ("stacks", stacks, 0),
    ("summary", summary, 0),
]
SERIES: dict[str, Series] = {
    "count by (cluster, training_run)": [({"training_run": "llama-7b"}, 4)],
    "run_rank:training_step_own_seconds:compared": [
        ({"training_run": "llama-7b", "training_rank": str(rank)}, 0.11 if rank == 1 else 0.07) for rank in range(2)
    ],
}
TRUTH = """\
runs:
  traces:
    expected:
      - {alert: TrainingStraggler, ranks: ["1"], phase: backward}
      - {alert: TrainingInputBound}
"""


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
    (folder / "profiles").mkdir()
    (folder / "traces").mkdir()
    traces = write(Job([Work(), Work(backward=80)]), folder / "traces")
    (folder / "truth.yml").write_text(TRUTH)
    (folder / "wrong.yml").write_text(WRONG)
    (folder / "right.yml").write_text(RIGHT)
    verdict = firing("TrainingStraggler", "llama-7b", "1")
    verdict["labels"]["training_phase"] = "backward"
    words = [sys.executable, "-m", "tests.cli.answering_ranks", folder / "ranks", *traces]
    with (
        fake_prometheus(SERIES, [verdict]) as address,
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as ranks,
    ):
        assert ranks.stdout is not None
        assert ranks.stdout.readline() == b"ready\n"
        yield Place(folder, address)
        ranks.communicate()


@pytest.mark.parametrize(("name", "command", "code"), CASES, ids=[name for name, *_ in CASES])
def test_each_command_reads_well(
    name: str, command: Sequence[str] | Callable[[], int], code: int, place: Place
) -> None:
    """As a person has read it; what is piped has no colour and no spaces at the end of a line."""
    parts: dict[str, str] = {}
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
        lines = on_screen(shown).splitlines()
        if not columns:
            assert "\x1b" not in shown
            assert [line for line in lines if line != line.rstrip()] == []
        text = "".join(f"{line.rstrip()}\n" for line in lines).replace(str(place.folder), "FOLDER")
        title = f"{columns} columns" if columns else "into a pipe"
        # What is the same everywhere stands there once.
        parts[text] = f"{parts[text]}, {title}" if text in parts else title
    is_as_it_was(f"{name}.txt", "\n".join(f"-- {titles} --\n{text}" for text, titles in parts.items()))
