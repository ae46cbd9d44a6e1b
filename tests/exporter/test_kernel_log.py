"""The kernel's log has one reading, whoever looks for what."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from laggard_exporter import kernel_log
from laggard_exporter.kernel_log import KernelLog, LogReader

ALL = re.compile(r"^.*$")


def texts(reader: LogReader) -> list[tuple[str, float, bool]]:
    """Return the messages that are new to a reader, with their time and whether they are old."""
    return [(message.match[0], message.since_boot, message.is_old) for message in reader.read()]


def append(path: Path, text: str) -> None:
    """Append to the log."""
    with path.open("a") as file:
        file.write(text)


def test_each_reader_gets_what_it_looks_for(tmp_path: Path) -> None:
    """What one reader took is still there for the others, each message once, and what nobody wants is not kept."""
    path = tmp_path / "kmsg"
    path.write_text("6,1,100,-;old\n")
    log = KernelLog(path)
    everything, news = log.reader(ALL), log.reader(re.compile("ne[wx]"))
    assert texts(everything) == [("old", 0.0001, True)]
    append(path, "4,2,2000000,-;new; with a semicolon\n SUBSYSTEM=pci; new\nnew nonsense\n4,3,x,-;next\n4,4,400,-;ha")
    assert texts(everything) == [("new; with a semicolon", 2, False), ("next", 0, False)]
    assert texts(everything) == []
    append(path, "lf\n")
    assert texts(news) == [("new", 2, False), ("nex", 0, False)]
    assert texts(everything) == [("half", 0.0004, False)]


def test_a_log_that_runs_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that the kernel has overwritten are skipped; the end and an error of the log end the reading."""
    path = tmp_path / "kmsg"
    path.touch()
    reader = KernelLog(path).reader(ALL)
    answers: list[Exception | bytes] = [BrokenPipeError(), b"4,9,1,-;left\n", BlockingIOError(), OSError(5, "broken")]

    def read(*_: object) -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(os, "read", read)
        assert texts(reader) == [("left", 1e-6, True)]
        assert reader.problem == ""
        assert texts(reader) == []
        assert reader.problem == f"{path}: broken"
    assert texts(reader) == []
    assert reader.problem == ""


def test_a_device_like_the_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that blocks, as the kernel's does, is read without waiting; a flood is read over several scrapes."""
    monkeypatch.setattr(kernel_log, "MOST_RECORDS", 2)
    path = tmp_path / "fifo"
    os.mkfifo(path)
    reader = KernelLog(path).reader(re.compile("wanted"))
    assert reader.read() == []
    writer = os.open(path, os.O_WRONLY)
    try:
        assert reader.read() == []
        os.write(writer, b"4,1,1,-;wanted\n" * 3 + b"4,1,1,-;x" * 900 + b"\n" + b"4,1,1,-;wanted\n" * 2000)
        first = reader.read()
        assert 0 < len(first) < 2003
        assert sum(len(reader.read()) for _ in range(10)) + len(first) == 2003
        assert not any(message.is_old for message in first)
    finally:
        os.close(writer)


def test_a_reader_that_does_not_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that nobody fetches take bounded memory: the newest are kept."""
    monkeypatch.setattr(kernel_log, "_WAITING", 3)
    path = tmp_path / "kmsg"
    path.write_text("".join(f"4,1,1,-;{number}\n" for number in range(9)))
    log = KernelLog(path)
    busy, idle = log.reader(re.compile("8")), log.reader(ALL)
    assert [message.match[0] for message in busy.read()] == ["8"]
    assert [message.match[0] for message in idle.read()] == ["6", "7", "8"]
