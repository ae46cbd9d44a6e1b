"""``laggard diagnose`` on a real Prometheus with the rule pack over a run that a test plays."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from laggard_cli.clusters import Run
from laggard_cli.diagnose.gather import failures
from laggard_cli.diagnose.model import Diagnosis, Failure, Rank, Verdict
from laggard_cli.diagnose.view import duration, how_failed, show
from laggard_cli.main import main
from laggard_cli.profile.choice import choose_pair
from laggard_cli.prometheus import Prometheus, Sample
from tests.collector.support import processes
from tests.rules.engine import DATA, RUN, Play, free_address, prometheus, serving
from tests.support.waiting import wait_until

VERDICT = Verdict(
    alert="TrainingStraggler",
    severity="warning",
    run="r",
    rank="2",
    phase="data",
    host="node-1",
    since="2026-01-01T00:00:00Z",
    value=1.5,
    summary="One rank makes the others wait.",
    description="Rank 2 of run r needs 150 ms, its peers 100 ms.",
    recommendation="Compare the DataLoader of this rank with that of its peers.",
    runbook_url="http://runbooks/TrainingStraggler.md",
)

NO_OWN_TIMES = "no own times yet: they need 16 steps of every rank after the warm-up, within half an hour"
#: Seconds of a step of the play.
USUAL = pytest.approx(0.125, rel=0.05)


def diagnosis_of(capsys: pytest.CaptureFixture[str], address: str, *arguments: str) -> dict[str, Any]:
    """The one run that ``--json`` prints."""
    assert main(["diagnose", "--prometheus", address, "--json", *arguments]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    return run


def awaited(
    capsys: pytest.CaptureFixture[str], address: str, holds: Callable[[dict[str, Any]], bool], *arguments: str
) -> dict[str, Any]:
    """The first diagnosis of the one run for which a condition holds: what was asked again may differ."""
    found: list[dict[str, Any]] = []

    def asked() -> bool:
        main(["diagnose", "--prometheus", address, "--json", *arguments])
        printed = capsys.readouterr().out
        # A busy machine may miss the scrapes of a moment.
        found[:] = json.loads(printed)["runs"] if printed else []
        return len(found) == 1 and holds(found[0])

    wait_until(asked, 90)
    return found[0]


def _healthy(diagnosis: dict[str, Any]) -> bool:
    return not diagnosis["missing"] and not diagnosis["verdicts"]


def _step_seconds(diagnosis: dict[str, Any]) -> float:
    return diagnosis["facts"].get("step_seconds", 0.0)


def _excess(diagnosis: dict[str, Any]) -> float:
    first, second, *_ = diagnosis["ranks"]
    return first["own_seconds"] / second["own_seconds"]


@pytest.fixture
def after() -> Iterator[contextlib.ExitStack]:
    """What is ended after the test."""
    with contextlib.ExitStack() as stack:
        yield stack


def _report_says_the_same(capsys: pytest.CaptureFixture[str], address: str, path: Path) -> None:
    """A report says of that time what the rules said, with the arithmetic of the server's own rules."""
    assert main(["report", "--prometheus", address, "--run", RUN, "-o", str(path)]) == 0
    headline = capsys.readouterr().out
    assert re.match(
        r"Rank 2 of run live on node-1 takes \d+\.\d\d times as long as its peers, mostly in data, and they wait",
        headline,
    )
    assert re.search(r" \(since \S+ UTC, costs \d+% of each step\)\.", headline)
    told = path.read_text(encoding="utf-8")
    assert re.search(r"Rank 2 of run live on host node-1 takes .* own work in a step, \d+(\.\d+)?ms against", told)
    assert "Most of the difference is in phase data." in told
    assert "The server does not tell its rules" not in told


def test_verdicts_come_from_the_rules(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], after: contextlib.ExitStack
) -> None:
    """Too early nothing is judged, health is said, a slow rank is named with evidence; a wrong run is one line.

    Who watches sees the newest answer, and keeps it when the server is gone.
    """
    play = Play()
    # On no machine are there 16 steps before the rules have been asked.
    play.data = [60.0] * 4
    with serving(play) as target, prometheus(target, tmp_path) as server:
        address = server.address
        early = awaited(capsys, address, lambda run: run["missing"] == [NO_OWN_TIMES], "--run", RUN)
        assert early["verdicts"] == []

        play.data = [DATA] * 4
        # Whether all ranks can tell their waiting, and the length of a step, are recorded each minute, which is eight
        # seconds here, from what another group records.
        healthy = awaited(capsys, address, lambda run: _healthy(run) and _step_seconds(run) == USUAL, "--run", RUN)
        assert (healthy["missing"], healthy["standing_out"]) == ([], {})
        assert healthy["facts"]["ranks_live"] == healthy["facts"]["ranks_expected"] == 4

        healthy_at = time.time()
        assert main(["diagnose", "--prometheus", address, "--run", "other"]) == 2
        assert capsys.readouterr().err == (
            f"laggard diagnose: error: --run 'other' is not in Prometheus at {address}; runs now: {RUN}\n"
        )

        play.data[2] += 0.05
        # What is shown of each rank is as new as the verdict.
        slow = awaited(capsys, address, lambda run: bool(run["verdicts"]))
        assert _excess(slow) > 1.2
        assert list(slow["standing_out"]) == ["2"]
        (verdict,) = slow["verdicts"]
        found = {name: verdict[name] for name in ("alert", "severity", "rank", "phase", "host")}
        assert found == {
            "alert": "TrainingStraggler",
            "severity": "warning",
            "rank": "2",
            "phase": "data",
            "host": "node-1",
        }
        assert verdict["runbook_url"].endswith("TrainingStraggler.md")
        assert slow["ranks"][0]["rank"] == "2"

        _report_says_the_same(capsys, address, tmp_path / "report.html")
        # Whom laggard profile would ask.
        with contextlib.closing(Prometheus(address)) as client:
            pair = choose_pair(client, None)
        assert (pair.run.name, pair.culprit, pair.alert) == (RUN, 2, "TrainingStraggler")
        assert pair.peer in {0, 1, 3}

        assert main(["diagnose", "--prometheus", address]) == 0
        text = capsys.readouterr().out
        assert "TrainingStraggler  warning  rank 2, phase data, host node-1" in text

        # A shell starts what runs in its background with SIGINT ignored, and children inherit that.
        heeding = ["env", "--default-signal=INT", sys.executable, "-m", "laggard_cli.main"]
        watching = [*heeding, "diagnose", "--prometheus", address, "--watch", "0.2"]
        one_line_each_time([*watching, "--json"])
        as_it_was(capsys, address, verdict, healthy_at)
        lines = after.enter_context(ended(subprocess.Popen([*watching, "--json"], stdout=subprocess.PIPE)))
        # Before the server goes, both have had an answer.
        assert lines.stdout is not None
        assert select.select([lines.stdout], [], [], 20)[0]
        screen, terminal = after.enter_context(on_a_terminal(watching))
        shown = b""
        while shown.count(b"TrainingStraggler") < 3:
            shown += os.read(terminal, 65536)
    _go_on_without_the_server(screen, terminal, lines)


def _go_on_without_the_server(screen: subprocess.Popen[Any], terminal: int, lines: subprocess.Popen[Any]) -> None:
    """The server is gone: the terminal keeps the last answer, each line of JSON says why there is none."""
    shown = b""
    while b"since then: Prometheus at" not in shown:
        shown += os.read(terminal, 65536)
    # The last answer stays below it; a terminal gives a page in pieces.
    while b"TrainingStraggler" not in shown.partition(b"since then: Prometheus at")[2]:
        shown += os.read(terminal, 65536)
    assert lines.stdout is not None
    answers = [json.loads(lines.stdout.readline())]
    while "error" not in answers[-1]:
        answers.append(json.loads(lines.stdout.readline()))
    assert "runs" in answers[0]
    assert answers[-1]["error"].startswith("Prometheus at")
    for process in (screen, lines):
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130


class Recorded(Play):
    """What a server with the rules has written to another one, which does not evaluate them."""

    def exposition(self) -> str:
        """Return series as they are recorded."""
        firing = 'ALERTS{alertname="LaggardWatchdog",alertstate="firing"} 1\n'
        return f'{firing}laggard_rules_info{{version="1.0.0"}} 1\nrun:training_ranks_live:count{{training_run="r"}} 4\n'


def test_a_server_that_does_not_know_the_alerts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A server that has what the rules recorded and not their alerts is no reason to call a run healthy."""
    configuration = tmp_path / "prometheus.yml"
    address = free_address()
    with serving(Recorded()) as target, processes(tmp_path) as started:
        scraped = [{"job_name": "recorded", "static_configs": [{"targets": [target]}]}]
        configuration.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": scraped}))
        arguments = [f"--config.file={configuration}", f"--web.listen-address={address}", "--storage.tsdb.path=data"]
        started.start("prometheus", ["prometheus", *arguments])
        started.wait("prometheus", f"http://{address}/-/ready")
        with contextlib.closing(Prometheus(f"http://{address}")) as client:
            wait_until(lambda: bool(client.query("ALERTS")), 20)
        assert main(["diagnose", "--prometheus", f"http://{address}"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        f"laggard diagnose: error: Prometheus at http://{address} does not know which alerts fire: LaggardWatchdog, "
        "which always does, is not among them. What evaluates the rules is away, or was never named to it\n"
    )


@contextlib.contextmanager
def on_a_terminal(command: list[str]) -> Iterator[tuple[subprocess.Popen[Any], int]]:
    """Run a command on a terminal of its own, whose other end is given, and end it afterwards."""
    terminal, end = os.openpty()
    environment = {**os.environ, "COLUMNS": "150", "LINES": "60", "TERM": "xterm"}
    try:
        with ended(subprocess.Popen(command, stdout=end, env=environment)) as process:
            os.close(end)
            yield process, terminal
    finally:
        os.close(terminal)


def as_it_was(capsys: pytest.CaptureFixture[str], address: str, verdict: dict[str, Any], healthy_at: float) -> None:
    """Ask for the past: the same verdict with the words of the rules, and health before it."""
    (again,) = diagnosis_of(capsys, address, "--at", str(time.time()))["verdicts"]
    told = ("alert", "severity", "rank", "phase", "host", "summary", "recommendation", "runbook_url")
    # By how much it is slow goes on to grow in the first seconds.
    then, now = ([re.sub(r"[\d.]+ times", "", found[name]) for name in told] for found in (verdict, again))
    assert now == then
    assert re.match(r"Rank 2 of run .* takes .*ms against .*ms", again["description"])
    assert again["since"][:19].replace(" ", "T") == verdict["since"][:19]
    assert again["value"] > 1.2
    assert diagnosis_of(capsys, address, "--at", str(healthy_at))["verdicts"] == []
    for arguments, line in (
        (("--at", "2001-01-01"), "laggard's rules were not evaluated then, or no raw samples of that time are kept"),
        (("--at", "2300-01-01"), "--at must be in the past, got '2300-01-01'; try "),
        (("--at", "now"), "--at must be a time, got 'now'; try 2026-01-31T08:00:00Z"),
        (("--at", "1", "--watch"), "--at is about the past: neither --watch nor --stacks goes with it"),
    ):
        assert main(["diagnose", "--prometheus", address, *arguments]) == 2
        assert line in capsys.readouterr().err


def one_line_each_time(command: list[str]) -> None:
    """Read two answers, and end who gives them with Ctrl-C."""
    with ended(subprocess.Popen(command, stdout=subprocess.PIPE, text=True)) as lines:
        assert lines.stdout is not None
        first, second = (json.loads(lines.stdout.readline()) for _ in range(2))
        assert first["runs"][0]["verdicts"][0]["rank"] == second["runs"][0]["verdicts"][0]["rank"] == "2"
        assert second["time"] >= first["time"] + 0.2
        lines.send_signal(signal.SIGINT)
        assert lines.wait(10) == 130


@contextlib.contextmanager
def ended(process: subprocess.Popen[Any]) -> Iterator[subprocess.Popen[Any]]:
    """End the process afterwards."""
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def rendered(diagnoses: list[Diagnosis], width: int) -> list[str]:
    """Lines of the text in a terminal of a given width, without colours."""
    console = Console(width=width, force_terminal=False, color_system=None, record=True, quiet=True)
    with console.capture() as capture:
        console.quiet = False
        show(console, diagnoses)
    return capture.get().splitlines()


@pytest.mark.parametrize("width", [50, 120])
def test_the_text_fits_and_says_everything(width: int) -> None:
    """Verdict first, then why, what to do and the runbook; no line is wider than the terminal."""
    ranks = tuple(Rank(str(rank), 0.15 if rank == 2 else 0.1, 0.01) for rank in range(12))
    facts = {"ranks_live": 12.0, "ranks_expected": 12.0, "step_seconds": 0.16, "data_share": 0.4}
    lines = rendered([Diagnosis("r", (VERDICT,), facts, ranks)], width)
    assert max(len(line) for line in lines) <= width
    text = " ".join(" ".join(lines).split())
    order = ["run r", "TrainingStraggler", "why", "do", "runbook", "own time", "the 8 slowest of 12 ranks"]
    positions = [text.index(part) for part in order]
    assert positions == sorted(positions)
    assert "12 of 12 ranks step 160 ms data 40%" in text


def test_health_and_missing_data_are_told_apart() -> None:
    """No alert is health only where the ranks were compared."""
    ranks = (Rank("0", 0.1, None),)
    facts = {"ranks_live": 3.0, "ranks_expected": 3.0, "data_share": 0.04, "ranks_waiting_known": 3.0}
    several = tuple(Rank(str(rank), own, 0.01) for rank, own in enumerate((0.102, 0.1, 0.1)))
    text = " ".join(" ".join(rendered([Diagnosis("r", (), facts, several)], 100)).split())
    assert text.partition("rank own")[0] == (
        "run r 3 of 3 ranks data 4% healthy: no alert fires; the slowest rank needs 2.0% more than the median of 3 "
        "ranks; no rank is missing; waiting for data is 4% of a step "
    )
    early = tuple(replace(rank, wait_seconds=None) for rank in several)
    assert "not judged: who waits for whom" in " ".join(rendered([Diagnosis("r", (), facts, early)], 100))
    known = {"ranks_live": 1.0, "ranks_waiting_known": 1.0}
    assert "healthy: no alert fires" in " ".join(rendered([Diagnosis("r", (), known, ranks)], 100))
    assert "not judged: at least one rank" in " ".join(rendered([Diagnosis("r", (), {"ranks_live": 1.0}, ranks)], 100))
    assert "not judged: no own times yet" in " ".join(rendered([Diagnosis("r", (), {"ranks_live": 1.0}, ())], 100))
    assert "not judged: no live rank" in " ".join(rendered([Diagnosis("r", (), {}, ())], 100))
    assert " ".join(rendered([], 100)).startswith("No training run is known to Prometheus now.")


@pytest.mark.parametrize(
    ("named", "counts", "said"),
    [
        ({"2": "outside_window"}, {"outside_window": 1}, "1 of 3 ranks is not compared: rank 2 (no recent step: "),
        # Recorded each minute, so a rank may be gone since.
        ({}, {}, "1 of 3 ranks is not compared"),
        ({"2": "no_metrics", "3": "no_steps", "10": "no_steps"}, {"no_metrics": 1, "no_steps": 2},
         "3 of 3 ranks are not compared: rank 2 (none of its metrics has arrived for 5 minutes), ranks 3 and 10 (no"),
        ({}, {"many": 170.0}, "170 of 170 ranks are not compared"),
    ],
)  # fmt: skip
def test_healthy_means_that_all_live_ranks_were_compared(
    named: dict[str, str], counts: dict[str, float], said: str
) -> None:
    """Where a rank was left out, it is said beside what is known of the others, and beside a verdict on them."""
    facts = {"ranks_live": 3.0, "ranks_expected": 3.0, "ranks_waiting_known": 2.0}
    ranks = (Rank("0", 0.101, 0.01), Rank("1", 0.1, 0.01))
    partly = Diagnosis("r", (), facts, ranks, uncompared=counts, uncompared_ranks=named)
    (missing,) = partly.missing
    assert missing.startswith(said)
    text = " ".join(" ".join(rendered([partly], 250)).split())
    assert "no alert fires; the slowest rank needs 1.0% more than the median of 2 ranks" in text
    assert missing in text
    assert "healthy" not in text
    assert "not judged" not in text
    assert missing in " ".join(rendered([replace(partly, verdicts=(VERDICT,))], 250))
    seen = {**facts, "ranks_live": 2.0}
    gone = replace(partly, facts=seen, uncompared={}, uncompared_ranks={})
    assert gone.missing == ("1 of 3 ranks is not seen, so nothing is said of it",)
    assert "healthy" not in " ".join(rendered([gone], 250))
    assert replace(gone, verdicts=(VERDICT,)).missing == ()
    for facts in ({**seen, "ranks_finished": 1.0}, {**seen, "ranks_expected": 2.0}):
        whole = replace(gone, facts=facts)
        assert whole.missing == ()
        assert "healthy: no alert fires" in " ".join(rendered([whole], 250))


def test_who_keeps_the_others_from_being_compared_is_named() -> None:
    """The rank without a step is why no window holds steps of all; a run that has just begun has no such rank."""
    facts = {"ranks_live": 3.0}
    begun = Diagnosis("r", (), facts, (), uncompared_ranks=dict.fromkeys("012", "few_steps"))
    assert begun.missing == (
        "no own times yet: they need 16 steps of every rank after the warm-up, within half an hour",
    )
    kept = replace(begun, uncompared_ranks={**begun.uncompared_ranks, "1": "no_steps"})
    assert kept.missing[1:] == (
        "1 of 3 ranks is not compared: rank 1 (no step that counts has ended for 5 minutes)",
    )  # fmt: skip


def test_a_rank_that_stands_out_is_not_called_healthy() -> None:
    """Until a verdict is due, the slowest rank that its peers wait for is named with its excess."""
    known = {"ranks_live": 1.0, "ranks_waiting_known": 1.0}
    early = Diagnosis("r", (), known, (Rank("0", 0.1, None),), {"1": 2.0, "2": 96.53})
    assert " ".join(" ".join(rendered([early], 200)).split()).partition(" rank own")[0] == (
        "run r 1 ranks no verdict yet: rank 2 needs 96.5 times as long as its peers for its own work in a step; "
        "a verdict waits until that lasts"
    )
    none = replace(early, facts={**known, "straggler_threshold": 1.2}, standing_out={})
    two = {**none.facts, "ranks_live": 2.0}
    slow = replace(none, facts=two, ranks=(Rank("2", 0.13, 0.0), Rank("0", 0.1, 0.0)))
    assert " ".join(" ".join(rendered([slow], 200)).split()).partition(" rank own")[0] == (
        "run r 2 ranks no alert fires; the slowest rank needs 30.0% more than the median of 2 ranks; the rules "
        "have not found so far that the others wait for it"
    )
    late = " ".join(rendered([replace(early, verdicts=(VERDICT,))], 200))
    assert "no verdict yet" not in late


def test_a_run_that_ended_after_a_stall_says_so() -> None:
    """No rank that ended first is named, nor looked for: it only waited."""
    ended = Failure("", "", "", "signal", "SIGABRT", "2026-01-05T12:00:00Z", ended_after="stall")
    assert how_failed(ended).endswith("by SIGABRT, after it had made no progress, as TrainingStalled reported")


def test_a_run_that_was_killed_together_names_the_host() -> None:
    """Who of several on a host was first is not known, where it was is."""
    ended = Failure("", "node-2", "", "unknown", "", "2026-01-05T12:00:00Z")
    assert " on host node-2 without a word" in how_failed(ended)
    assert how_failed(ended).endswith("; which rank ended first is not known")


def test_the_one_rank_that_failed_is_said() -> None:
    """Where nobody knows who was first, who failed is said; and what the kernel says of an end."""
    ended = Failure("", "", "", "exception", "OSError", "2026-01-05T12:00:00Z", only="3")
    assert how_failed(ended).endswith("; which rank ended first is not known, only rank 3 is known to have failed")
    left = replace(ended, finished=("0",))
    assert how_failed(left).endswith("to have failed; rank 0 ended cleanly, which the others may have lost")
    assert "; 2 ranks ended cleanly" in how_failed(replace(left, finished=("0", "1")))
    killed = Failure("1", "node-2", "forward", "unknown", "SIGSEGV", "2026-01-05T12:00:00Z")
    assert how_failed(killed).endswith(
        ": rank 1 on host node-2 ended first, in phase forward, without a word (SIGSEGV)"
    )


class _Answering(Prometheus):
    """A server whose series are those of a run that failed a while ago; ``ends`` are its ranks' ends."""

    def __init__(self, first: str, ends: dict[str, float], finished: list[str]) -> None:
        super().__init__("http://localhost:9")
        run = {"training_run": "r"}
        self._answers = {
            "first": [Sample({**run, "training_rank": first, "training_ended_by": "exception"}, 100.0)],
            "failure_timestamp_seconds:max": [Sample({**run, "training_rank": rank}, at) for rank, at in ends.items()],
            "finished": [Sample({**run, "training_rank": rank}, 1.0) for rank in finished],
        }

    def query(self, expression: str, at: float | None = None, by: tuple[str, ...] = ()) -> list[Sample]:
        """Return what is asked for by the first name that an expression has."""
        places = {name: expression.find(name) for name in self._answers if name in expression}
        return self._answers[min(places, key=places.__getitem__)] if places else []


def test_who_ended_cleanly_is_known_of_a_failed_run() -> None:
    """Where nobody was first, the ranks that ended cleanly are named, by their numbers; else nobody asks."""
    nobody = failures(_Answering("", {"3": 100.0}, ["10", "2"]), None)
    assert (nobody[Run("", "r")].only, nobody[Run("", "r")].finished) == ("3", ("2", "10"))
    assert failures(_Answering("3", {"3": 100.0}, ["10", "2"]), None)[Run("", "r")].finished == ()


def test_durations_read_well() -> None:
    """Milliseconds below a second, three digits."""
    assert [duration(seconds) for seconds in (0.0123, 0.5, 1, 75.36)] == ["12.3 ms", "500 ms", "1 s", "75.4 s"]
