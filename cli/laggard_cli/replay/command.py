"""``laggard replay``."""

from __future__ import annotations

import argparse
import contextlib
import re
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rich.console import Console

from laggard_cli.clusters import Run
from laggard_cli.console import stderr, stdout
from laggard_cli.diagnose.gather import diagnose
from laggard_cli.diagnose.model import Diagnosis, Verdict
from laggard_cli.diagnose.view import show
from laggard_cli.errors import CommandError
from laggard_cli.kineto.reader import is_trace
from laggard_cli.kineto.run import read_run
from laggard_cli.kineto.verdicts import judge as judge_traces
from laggard_cli.kineto.view import plain, show_judgement
from laggard_cli.local_servers.processes import interrupted_by_sigterm
from laggard_cli.prometheus import Prometheus
from laggard_cli.replay.recording import Recording, read_openmetrics
from laggard_cli.replay.server import Pace, Player, missed_evaluations, pace_of, prometheus, serving
from laggard_cli.replay.steps import read_steps, recording_of
from laggard_cli.replay.truth import Fired, Outcome, Truth, judge, read_truth
from laggard_cli.terminal import printable, to_json

#: Of the recordings in a folder: steps, traces, and OpenMetrics by the names that people give it.
_SUFFIXES = (".jsonl", ".json", ".json.gz", ".om", ".prom", ".openmetrics", ".txt")
_NEITHER = "neither a recording nor a trace of torch's profiler"
#: A series of OpenMetrics whose name stands in quotes, or is a label.
_BRACED = re.compile(r'{("(\\.|[^"\\])*"[,}]|\w+=")')
#: An alert is asked for this often.
_ASK_SECONDS = 0.5
#: Share of scrapes and of evaluations that may be missing, and share of the replay after which that is checked.
_MISSED, _SETTLED = 0.1, 0.2
#: Until the first scrape.
_FIRST_SCRAPE_SECONDS = 30.0
#: Each at half the pace of the one before.
_ATTEMPTS = 4


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = (
        "Examples:\n  laggard replay rank-*.jsonl\n  laggard replay trace-rank*.json.gz\n"
        "docs/replay.md describes the formats of recordings."
    )
    parser.add_argument(
        "recordings",
        nargs="+",
        type=Path,
        metavar="RECORDING",
        help="OpenMetrics, steps as JSON lines, or traces of torch's profiler, one a rank; or folders of them",
    )
    parser.add_argument("--truth", type=Path, metavar="FILE", help="what should fire, to compare with")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Print the verdicts, and the score; return 1 when something fired wrongly or not at all."""
    options.recordings = [file for path in options.recordings for file in files_of(path)]
    traces = [path for path in options.recordings if is_trace(path)]
    if traces:
        return _judge(options, traces)
    recording = read(options.recordings)
    truths = read_truth(options.truth, [each.name for each in recording.runs]) if options.truth else []
    pace = pace_of(recording)
    console = stderr() if options.json else stdout()
    console.print(printable(_announcement(recording, pace)), soft_wrap=True)
    for _ in range(_ATTEMPTS - 1):
        try:
            fired, diagnoses = play(recording, pace)
            break
        except TooFastError as error:
            pace = pace.slower()
            console.print(f"{error}; again at half the pace, takes {pace.seconds:.0f} s", soft_wrap=True)
    else:
        fired, diagnoses = play(recording, pace)
    outcomes = [outcome for truth in truths for outcome in judge(truth, fired)]
    if options.json:
        print(to_json(_plain(pace, diagnoses, fired, outcomes if truths else None), indent=2))
    else:
        show(console, diagnoses)
        if truths:
            _show_score(console, truths, outcomes)
    return int(any(outcome.kind != "found" for outcome in outcomes))


def _judge(options: argparse.Namespace, traces: list[Path]) -> int:
    """Print what traces of torch's profiler say: they are too short for the rules' windows, and judged as they are."""
    others = [path for path in options.recordings if path not in traces]
    if others:
        raise CommandError(f"{traces[0]} is a trace of torch's profiler and {others[0]} is not; give one kind")
    run = read_run(traces)
    truths = read_truth(options.truth, [run.name]) if options.truth else []
    judgement = judge_traces(run)
    diagnosis = judgement.diagnosis
    fired = [Fired(each.alert, each.severity, each.run, each.rank, each.phase) for each in diagnosis.verdicts]
    outcomes = [outcome for truth in truths for outcome in judge(truth, fired)]
    if options.json:
        content = {"runs": [{**asdict(diagnosis), "missing": list(diagnosis.missing), **plain(run, judgement)}]}
        print(to_json(content | ({"score": [asdict(outcome) for outcome in outcomes]} if truths else {}), indent=2))
    else:
        console = stdout()
        show_judgement(console, run, judgement)
        if truths:
            _show_score(console, truths, outcomes)
    return int(any(outcome.kind != "found" for outcome in outcomes))


def files_of(path: Path) -> list[Path]:
    """Return a file, or the recordings that lie in a folder.

    Raises:
        CommandError: the folder has none or cannot be listed, or the path is a pipe or a device.
    """
    if not path.is_dir():
        if path.exists() and not path.is_file():
            raise CommandError(f"{path}: must be a file or a folder: it is read more than once")
        return [path]
    try:
        found = sorted(file for file in path.iterdir() if file.name.endswith(_SUFFIXES) and file.is_file())
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}") from error
    if not found:
        raise CommandError(f"{path}: there is no recording in the folder ({', '.join(_SUFFIXES)})")
    return found


def read(paths: list[Path]) -> Recording:
    """Return the files as one recording; JSON lines and OpenMetrics may stand side by side.

    Raises:
        CommandError: a file cannot be read, or is neither.
    """
    recording = Recording()
    steps: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for path in paths:
        try:
            # Not at what else Unicode takes for the end of a line: labels may hold it.
            lines = path.read_text(encoding="utf-8-sig").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else _NEITHER
            raise CommandError(f"{path}: {reason}") from error
        first = next((line.strip() for line in lines if line.strip()), "")
        if not first:
            raise CommandError(f"{path}: the file is empty")
        # Many a binary file is text to its decoder; no series and no step begins like an array.
        if "\0" in first or first[0] == "[" or not first[0].isprintable():
            raise CommandError(f"{path}: {_NEITHER}")
        if first.startswith("{") and not _BRACED.match(first):
            for rank, found in read_steps(path, lines).items():
                steps.setdefault(rank, []).extend(found)
        else:
            recording.series += read_openmetrics(path, lines).series
    recording.series += recording_of(steps).series
    if not recording.series:
        raise CommandError(f"{paths[0]}: there is no sample with a value in it")
    if recording.end <= recording.begin:
        raise CommandError(f"{paths[0]}: all samples are of one time; a recording needs at least a few steps")
    return recording


class TooFastError(CommandError):
    """This machine did not keep up with a replay, so what was not said means nothing."""

    def __init__(self, what: str, share: float) -> None:
        super().__init__(f"this machine is too busy for the replay: {share:.0%} of the {what} are missing")


def play(recording: Recording, pace: Pace) -> tuple[list[Fired], list[Diagnosis]]:
    """Play a recording to the rules; return what fired, in recorded seconds, and what Prometheus knew of each run.

    Raises:
        TooFastError: scrapes or evaluations are missing.
    """
    seen = _Seen(pace)
    player = Player(recording, pace)
    with (
        interrupted_by_sigterm(),
        tempfile.TemporaryDirectory(prefix="laggard-replay-") as folder,
        serving(player) as target,
        prometheus(target, pace, Path(folder)) as address,
        contextlib.closing(Prometheus(address)) as server,
    ):
        # A server looks for its targets for some seconds after it is ready.
        player.wait_for_scrape(_FIRST_SCRAPE_SECONDS)
        player.start()
        while player.position < pace.end:
            time.sleep(_ASK_SECONDS)
            # Before the first evaluation there are no rules to ask.
            if player.position < pace.end and server.query("laggard_rules_info"):
                seen.add(player.position, diagnose(server, None))
            if player.position > pace.begin + _SETTLED * (pace.end - pace.begin) and player.missed > _MISSED:
                raise TooFastError("scrapes", player.missed)
        _check(server, address, pace)
    return seen.fired(), seen.diagnoses(recording.runs)


def _check(server: Prometheus, address: str, pace: Pace) -> None:
    """Raise :class:`TooFastError` where Prometheus lost scrapes or evaluations."""
    scraped = sum(sample.value for sample in server.query(f"sum_over_time(up[{round(1000 * pace.seconds)}ms])"))
    scrapes = 1 - scraped / (pace.seconds / pace.tick)
    for what, missed in (("scrapes", scrapes), ("evaluations", missed_evaluations(address))):
        if missed > _MISSED:
            raise TooFastError(what, missed)


class _Seen:
    """What was seen in the course of a replay."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._fired: dict[tuple[str, ...], Fired] = {}
        self._verdicts: dict[tuple[str, ...], Verdict] = {}
        self._known: dict[Run, Diagnosis] = {}

    def add(self, position: float, diagnoses: list[Diagnosis]) -> None:
        """Take what Prometheus knows now."""
        now = position - self._pace.begin
        firing: set[tuple[str, ...]] = set()
        for diagnosis in diagnoses:
            run = Run(diagnosis.cluster, diagnosis.run)
            if diagnosis.ranks or run not in self._known:
                self._known[run] = diagnosis
            for verdict in diagnosis.verdicts:
                key = (verdict.alert, verdict.cluster, verdict.run, verdict.rank, verdict.phase)
                firing.add(key)
                if key not in self._fired:
                    self._fired[key] = Fired(
                        verdict.alert, verdict.severity, verdict.run, verdict.rank, verdict.phase, begin=now
                    )
                    since = datetime.fromtimestamp(position, timezone.utc).isoformat(timespec="seconds")
                    self._verdicts[key] = replace(verdict, since=f"{since}, {now:.0f} s after the start")
                self._verdicts[key] = replace(verdict, since=self._verdicts[key].since)
        for key, fired in self._fired.items():
            self._fired[key] = replace(fired, end=float("inf") if key in firing else min(fired.end, now))

    def fired(self) -> list[Fired]:
        """Return what fired, the first first."""
        return sorted(self._fired.values(), key=lambda fired: fired.begin)

    def diagnoses(self, runs: list[Run]) -> list[Diagnosis]:
        """Return each run with its verdicts, also those that ended before the recording did."""
        return [
            replace(
                self._known.get(run, Diagnosis(run.name, (), {}, (), cluster=run.cluster)),
                verdicts=tuple(each for each in self._verdicts.values() if (each.cluster, each.run) == run),
            )
            for run in runs
        ]


def _announcement(recording: Recording, pace: Pace) -> str:
    length = pace.end - pace.begin
    text = f"{len(recording.series)} series of {', '.join(map(str, recording.runs))} over {length:.0f} s"
    if pace.stretch > 1:
        text += f", stretched {pace.stretch:.3g} times for the windows of the rules (durations keep their values)"
    return f"{text}; takes {pace.seconds:.0f} s"


def _show_score(console: Console, truths: list[Truth], outcomes: list[Outcome]) -> None:
    right = sum(outcome.kind == "found" for outcome in outcomes)
    runs = f"{len(truths)} run{'s' * (len(truths) != 1)}"
    console.print(f"truth: {runs}, {right} of {len(outcomes)} verdicts right")
    for outcome in outcomes:
        rank = f", rank {outcome.rank}" if outcome.rank else ""
        after = "" if outcome.delay is None else f", after {outcome.delay:.0f} s"
        phase = "" if outcome.phase_right else ", in another phase than the one at fault"
        line = f"  {outcome.kind:<10} {outcome.alert}, run {outcome.run}{rank}{after}{phase}"
        console.print(printable(line), soft_wrap=True)


def _plain(
    pace: Pace, diagnoses: list[Diagnosis], fired: list[Fired], outcomes: list[Outcome] | None
) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "seconds": pace.end - pace.begin,
        "stretch": pace.stretch,
        "runs": [{**asdict(diagnosis), "missing": list(diagnosis.missing)} for diagnosis in diagnoses],
        "fired": [{name: value for name, value in asdict(each).items() if value != float("inf")} for each in fired],
    }
    if outcomes is not None:
        plain["score"] = [asdict(outcome) for outcome in outcomes]
    return plain
