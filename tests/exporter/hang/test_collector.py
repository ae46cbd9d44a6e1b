"""Collector hang: facts of stalled ranks' dumps, of the right process and moment alone, whatever the files contain."""

from __future__ import annotations

import json
import os
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from laggard.shared import dumps, statefile
from laggard.shared.phases import Phase
from laggard.shared.statefile import Facts
from laggard_exporter.hang.collector import HangCollector
from laggard_exporter.hang.dump_file import DumpError
from laggard_exporter.hang.reader import read_facts
from laggard_exporter.ranks.files import DEAD_FILE_SECONDS
from tests.exporter.support import as_dict, fresh, live_rank
from tests.support.recorded_job import RecordedJob

WORLD, PAIR = "00000000f4dbdf22", "000000006abf4a83"


class Stalled:
    """A live rank that stands still, and its dump."""

    def __init__(self, directory: Path, facts: Facts, word: int, progress: int) -> None:
        self.directory = directory
        self._facts, self._word, self._progress = facts, word, progress
        self.collector = HangCollector(directory)

    def path(self, *, run: str = "run-1", older: int = 0, before: int = 0) -> Path:
        """The file of its dump; of another run, an earlier process or an earlier moment where told so."""
        start, progress = self._facts.start_boottime_ns - older, self._progress - before
        return self.directory / dumps.file_name(run, self._facts.rank, start, progress, self._word)

    def samples(self) -> dict[str, float]:
        """What is exported, with names cut short."""
        identity = 'training_rank="3",training_run="run-1"'
        found: dict[str, float] = {}
        for series, value in as_dict(self.collector.collect()).items():
            name, _, labels = series.partition("{")
            labels = labels.removesuffix("}").replace(f",{identity}", "").replace(identity, "").replace("training_", "")
            name = name.removeprefix("training_process_").removeprefix("laggard_exporter_")
            found[f"{name}{{{labels}}}" if labels else name] = value
        return found


@pytest.fixture
def stalled(tmp_path: Path) -> Iterator[Stalled]:
    """Return rank 3 of run-1, which has moved 17 times."""
    facts = fresh()
    word = statefile.pack(Phase.COMMUNICATION, facts.start_boottime_ns + 1)
    words = {statefile.PROGRESS: 17, statefile.PHASE: word}
    with live_rank(tmp_path, facts, words):
        yield Stalled(tmp_path, facts, word, 17)


def results(read: int = 0, rejected: int = 0, waiting: int = 0) -> dict[str, float]:
    """What became of the dumps."""
    found = {"read": read, "rejected": rejected, "waiting": waiting}
    return {f'hang_dumps{{result="{result}"}}': count for result, count in found.items()}


def dump() -> dict[str, Any]:
    """What rank 3 of four says that waits for rank 2 in the second collective of all, after two of a pair."""
    groups = {"0": (0, 1, 2, 3), "7": (2, 3)}
    job = RecordedJob(groups, [("0", "all_reduce"), ("7", "broadcast"), ("0", "all_gather")], stops={2: 2})
    return job.dump(3)


def test_the_facts_of_a_stalled_rank_are_exported_until_it_goes_on(stalled: Stalled) -> None:
    """Nothing without a dump; with it how far the rank has come in each group, and what it waits in."""
    assert stalled.samples() == results()
    stalled.path().write_text(json.dumps({"dumps": [dump()]}))
    found = stalled.samples()
    call = next(series for series in found if series.startswith("hang_pending")).split('"')[1]
    pending = f'hang_pending{{collective_call="{call}",collective_operation="all_gather",process_group="{WORLD}"}}'
    assert found == {
        "hang_transfer": 0,
        f'hang_issued{{process_group="{WORLD}"}}': 2,
        f'hang_issued{{process_group="{PAIR}"}}': 1,
        pending: 2,
        f'hang_begun{{process_group="{WORLD}"}}': 1,
        **results(read=1),
    }
    stalled.path().unlink()
    assert stalled.samples() == results()


def test_gloo_says_less_and_counts_by_itself(stalled: Stalled) -> None:
    """Both recorders of a process in one file: gloo's group is another one, and has nothing to say of devices."""
    of_gloo = dump()
    for entry in of_gloo["entries"]:
        entry["profiling_name"] = entry["profiling_name"].replace("nccl:", "gloo:")
        entry["state"] = "scheduled"
    stalled.path().write_text(json.dumps({"dumps": [dump(), of_gloo]}))
    found = stalled.samples()
    assert sum(series.startswith("hang_issued") for series in found) == 4
    assert [series for series in found if "begun" in series] == [f'hang_begun{{process_group="{WORLD}"}}']


def test_a_dump_of_another_process_moment_or_run_is_not_read(stalled: Stalled) -> None:
    """An earlier process, an earlier stall, another run: not theirs."""
    for path in (stalled.path(older=1), stalled.path(before=1), stalled.path(run="run-2")):
        path.write_text(json.dumps(dump()))
    assert stalled.samples() == results()


def test_what_a_killed_rank_left_is_removed_after_a_while(stalled: Stalled) -> None:
    """Not the dump of a rank that lives, nor one of a moment ago."""
    old, recent = stalled.path(older=1), stalled.path(older=2)
    for path in (old, recent, stalled.path()):
        path.write_text(json.dumps(dump()))
    long_ago = time.time() - DEAD_FILE_SECONDS - 1
    for path in (old, stalled.path()):
        os.utime(path, (long_ago, long_ago))
    stalled.samples()
    assert [path.exists() for path in (old, recent, stalled.path())] == [False, True, True]


def _link(path: Path) -> None:
    path.with_name("elsewhere").write_text(json.dumps(dump()))
    path.symlink_to("elsewhere")


def _writable_for_all(path: Path) -> None:
    path.write_text(json.dumps(dump()))
    path.chmod(0o666)


def _gigabyte(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**30)


HOSTILE = {
    "a symbolic link": _link,
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "writable for all": _writable_for_all,
    "a gigabyte": _gigabyte,
    "a deep list": lambda path: path.write_text("[" * 10**6),
    "a deep pickle": lambda path: path.write_bytes(b"\x80\x02" + b"]" + b"]a" * 10**6),
    "a pickle with 100 GB of memo": lambda path: path.write_bytes(b"\x80\x02Nr\xff\xff\xff\xff."),
    "a pickle that runs code": lambda path: path.write_bytes(pickle.dumps(os.getcwd)),
    "a huge number": lambda path: path.write_text(
        json.dumps({**dump(), "entries": [{**entry, "collective_seq_id": 10**400} for entry in dump()["entries"]]})
    ),
    "nothing": Path.touch,
    "no dump": lambda path: path.write_text('{"dumps": 7}'),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_rejected_and_costs_little(name: str, stalled: Stalled) -> None:
    """It gives no sample, the scrape takes seconds at most, and it is looked at once."""
    HOSTILE[name](stalled.path())
    began = time.monotonic()
    assert stalled.samples() == results(rejected=1)
    assert time.monotonic() - began < 10
    read = stalled.collector._read
    stalled.collector._read = lambda *_: pytest.fail("read again")
    assert stalled.samples() == results(rejected=1)
    stalled.collector._read = read


def test_a_dump_that_takes_too_long_is_given_up(stalled: Stalled) -> None:
    """Its reader is killed, and the reason says how long it had."""
    stalled.path().write_text(json.dumps(dump()))
    with pytest.raises(DumpError, match="longer than 0 s"):
        read_facts(stalled.path(), os.geteuid(), 0.001)


def test_another_users_dump_is_not_read(stalled: Stalled) -> None:
    """Whoever guesses the name cannot speak for the rank."""
    stalled.path().write_text(json.dumps(dump()))
    with pytest.raises(DumpError, match="others than the rank's user"):
        read_facts(stalled.path(), os.geteuid() + 1, 5)


def test_what_does_not_fit_into_a_scrape_waits_for_the_next(stalled: Stalled, monkeypatch: pytest.MonkeyPatch) -> None:
    """No scrape reads for longer than it may; what was read stays."""
    stalled.path().write_text(json.dumps(dump()))
    monkeypatch.setattr("laggard_exporter.hang.collector.SCRAPE_SECONDS", -1.0)
    assert stalled.samples() == results(waiting=1)
    monkeypatch.undo()
    assert results(read=1).items() <= stalled.samples().items()
