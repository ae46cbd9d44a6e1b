"""State files that expire, vanish or are hostile, and folders that cannot be read."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest

from laggard.shared import statefile
from laggard.shared.phases import Phase
from laggard_exporter.ranks import files as rank_files
from laggard_exporter.ranks.state import StateCollector
from tests.exporter.ranks.state_files import NOW, WAITING, collect, rank_series, ranks, results
from tests.exporter.support import FACTS, NANOSECONDS, as_dict, dead_file, fresh, live_rank, starting_with


def test_a_dead_file_expires(tmp_path: Path) -> None:
    """A dead file is exported until 15 minutes after its last sign of life; then it is removed."""
    path = dead_file(tmp_path, words=WAITING)
    last_moment = 20 * NANOSECONDS + 900 * NANOSECONDS
    assert results(collect(tmp_path, last_moment).items()) == {"exported": 1}
    assert path.exists()
    samples = collect(tmp_path, last_moment + 1)
    assert starting_with(samples, "training_process_") == {}
    assert results(samples.items()) == {"expired": 1}
    assert not path.exists()
    assert results(collect(tmp_path, last_moment + 1).items()) == {}


def test_a_live_file_never_expires(tmp_path: Path) -> None:
    """A rank that hangs for a day is exported for a day."""
    with live_rank(tmp_path, words=WAITING):
        samples = ranks(tmp_path, 20 * NANOSECONDS + 86_400 * NANOSECONDS)
        assert samples[rank_series("training_process_phase_age_seconds")] == 86_400


def test_an_expired_file_of_somebody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An expired file that may not be removed stays without harm."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    path = dead_file(tmp_path)
    monkeypatch.setattr(os, "unlink", refuse)
    assert results(collect(tmp_path, 10_000 * NANOSECONDS).items()) == {"expired": 1}
    assert path.exists()


def test_a_run_that_is_not_known_yet(tmp_path: Path) -> None:
    """A rank that does not know its run yet is counted and not exported."""
    dead_file(tmp_path, replace(FACTS, run=""))
    samples = collect(tmp_path)
    assert starting_with(samples, "training_process_") == {}
    assert results(samples.items()) == {"no_run": 1}


def test_a_vanished_file_leaves_nothing(tmp_path: Path) -> None:
    """The scrape after a file vanished has none of its series, from the same collector."""
    collector = StateCollector(tmp_path, clock=lambda: NOW)
    path = dead_file(tmp_path)
    assert rank_series("training_process_up") in as_dict(collector.collect())
    path.unlink()
    assert starting_with(as_dict(collector.collect()), "training_process_") == {}


def test_a_folder_that_comes_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A missing folder is a normal state, said in a metric and once in the log; ranks that come are found."""
    caplog.set_level(logging.INFO)
    directory = tmp_path / "later"
    collector = StateCollector(directory, clock=lambda: NOW)
    for _ in range(2):
        samples = as_dict(collector.collect())
        assert samples["laggard_exporter_state_directory_exists"] == 0
        assert results(samples.items()) == {}
    assert [record.getMessage() for record in caplog.records] == [
        f"state folder {directory} does not exist yet: no rank has started here"
    ]
    dead_file(directory)
    samples = as_dict(collector.collect())
    assert samples["laggard_exporter_state_directory_exists"] == 1
    assert results(samples.items()) == {"exported": 1}


def test_a_folder_that_can_not_be_listed(tmp_path: Path) -> None:
    """A folder that is a file or a symbolic link fails the collector: that is not the same as no ranks."""
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("file", "link"):
        with pytest.raises(OSError, match=name):
            collect(tmp_path / name)


def _corrupt(path: Path, offset: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[offset : offset + len(data)] = data
    path.write_bytes(content)


def make_hostile_files(directory: Path) -> int:
    """Fill the folder with everything that is no state file of ours and return how many there are."""
    good = dead_file(directory / "elsewhere")
    (directory / "link.state").symlink_to(good)
    (directory / "dangling.state").symlink_to(directory / "nothing")
    os.mkfifo(directory / "fifo.state")
    (directory / "folder.state").mkdir()
    (directory / "empty.state").touch()
    (directory / "truncated.state").write_bytes(good.read_bytes()[:2048])
    (directory / "longer.state").write_bytes(good.read_bytes() + b"\0")
    (directory / "random.state").write_bytes(os.urandom(statefile.SIZE))
    (directory / "line\nbreak.state").touch()
    _corrupt(dead_file(directory), 8, b"\xff")  # another version
    _corrupt(dead_file(directory), statefile.PHASE * 8 + 7, b"\x7f")  # no phase of ours
    _corrupt(dead_file(directory), statefile.STATE * 8, b"\x09")  # no state of ours
    _corrupt(dead_file(directory), 16, b"\1")  # facts that are being written for ever
    dead_file(directory, replace(FACTS, boot_id=bytes(16)))
    future = NOW + 1
    dead_file(directory, replace(FACTS, start_boottime_ns=future))
    dead_file(directory, words={statefile.PHASE: statefile.pack(Phase.DATA, future)})
    dead_file(directory, words={statefile.LAST_STEP: future})
    return sum(path.name.endswith(".state") for path in directory.iterdir())


def test_hostile_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever else lies in the folder is counted, logged once per file, and costs no rank its series."""
    hostile = make_hostile_files(tmp_path)
    assert hostile == 17
    dead_file(tmp_path, replace(FACTS, rank=0))
    collector = StateCollector(tmp_path, clock=lambda: NOW)
    for _ in range(2):
        samples = as_dict(collector.collect())
        assert results(samples.items()) == {"exported": 1, "rejected": hostile}
        assert rank_series("training_process_up", rank="0") in samples
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == len(set(messages)) == hostile
    assert all(message.isprintable() and ".state" in message for message in messages)


def test_a_file_of_another_boot(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is kept, for on a shared folder it is another host's and its rank may live; the log says what to do."""
    path = dead_file(tmp_path, replace(FACTS, boot_id=bytes(16)))
    assert results(collect(tmp_path).items()) == {"rejected": 1}
    (record,) = caplog.records
    assert record.getMessage() == (
        f"state file {path}: of host 'node-7' before this boot, or of another host. Give each host its own folder, "
        "which a boot empties"
    )
    assert path.exists()


def test_one_user_can_not_fill_the_scrape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a number of files a user's oldest files are rejected, so the scrape stays bounded."""
    monkeypatch.setattr(rank_files, "FILES_PER_USER", 3)
    for rank, age in enumerate((40, 0, 10, 30, 20)):
        path = dead_file(tmp_path, replace(FACTS, rank=rank))
        os.utime(path, (1000 - age, 1000 - age))
    samples = collect(tmp_path)
    assert results(samples.items()) == {"exported": 3, "rejected": 2}
    present = [str(rank) for rank in range(5) if rank_series("training_process_up", rank=str(rank)) in samples]
    assert present == ["1", "2", "4"]


def test_what_dead_ranks_left_hides_nobody_who_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that lives is shown among any number of newer files that the exporter may not remove."""
    monkeypatch.setattr(rank_files, "FILES_PER_USER", 3)
    collector = StateCollector(tmp_path)
    with live_rank(tmp_path, fresh(rank=0)):
        (alive,) = tmp_path.iterdir()
        os.utime(alive, (1000, 1000))
        for rank in range(5):
            samples = as_dict(collector.collect())
            assert samples[rank_series("training_process_up", rank="0")] == 1
            dead_file(tmp_path, fresh(rank=rank + 1))
        assert results(as_dict(collector.collect()).items()) == {"exported": 3, "rejected": 3}


def test_a_file_that_others_can_write(tmp_path: Path) -> None:
    """A file that its group or everybody can write is not believed."""
    for mode, result in ((0o644, "exported"), (0o664, "rejected"), (0o646, "rejected"), (0o600, "exported")):
        path = dead_file(tmp_path)
        path.chmod(mode)
        assert results(collect(tmp_path).items()) == {result: 1}
        path.unlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files to others")
def test_a_rank_of_somebody_else(tmp_path: Path) -> None:
    """A newer file of another user does not take over a live rank."""
    with live_rank(tmp_path, words={statefile.STEPS: 7}) as process:
        for number in range(4):  # whatever their random names are
            path = dead_file(tmp_path, replace(FACTS, start_boottime_ns=(20 + number) * NANOSECONDS))
            os.chown(path, 65534, 65534)
        samples = collect(tmp_path)
        assert results(samples.items())["exported"] == 1
        assert results(samples.items())["rejected"] >= 1
        assert samples[rank_series("training_process_steps_total")] == 7
        assert samples[rank_series("training_process_up")] == 1
        assert process.poll() is None
