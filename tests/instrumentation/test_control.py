"""Control files: who may ask, what is understood, and that a request is handled once."""

from __future__ import annotations

import json
import os
import pwd
import re
import time
from pathlib import Path
from typing import Any

import pytest

from laggard import _identity, _process
from laggard._requests import ControlFile
from laggard.shared import control
from laggard.shared.control import ControlError, Reply, Request

GOOD = {"id": "a-1", "request": "trace"}


class Asked:
    """Stands for what takes requests: the trace and the profiler."""

    installed = True
    name = "profile"

    def __init__(self) -> None:
        self.requests: list[tuple[Any, ...]] = []
        self.answer: Any = None
        self.stacks: list[bool] = []
        self.withdrawn: list[Any] = []

    def request(self, *arguments: Any, stacks: bool = False) -> None:
        self.requests.append(arguments[:-1])
        self.answer = arguments[-1]
        self.stacks.append(stacks)

    def withdraw(self, answer: Any) -> None:
        self.withdrawn.append(answer)


class Reported:
    """Stands for a report of which only the identity is asked."""

    identity = _identity.Identity("a/b", 3, 1, 8, 0, "", "", "")


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Asked, Asked, ControlFile]:
    """A control file's reader in a state folder of its own."""
    monkeypatch.setenv("LAGGARD_STATE_DIR", str(tmp_path))
    trace, profiler = Asked(), Asked()
    hook = ControlFile(_process.Process(), trace, profiler)  # pyright: ignore[reportArgumentType] - only requests are made
    hook.installed = True
    hook.state_file_opened(memoryview(bytearray(8)).cast("Q"))
    return trace, profiler, hook


def look(hook: ControlFile) -> None:
    """One turn of the drain."""
    hook.report(Reported())  # pyright: ignore[reportArgumentType] - stands for a report


def test_without_a_state_file_the_folder_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder in which no file could be made may not answer the drain either."""
    monkeypatch.setenv("LAGGARD_STATE_DIR", str(tmp_path))
    profiler = Asked()
    hook = ControlFile(_process.Process(), Asked(), profiler)  # pyright: ignore[reportArgumentType] - as above
    control.write(tmp_path / "a%2Fb-3.control", Request("one", "profile"))
    look(hook)
    assert profiler.requests == []


def test_a_request_is_handled_once_and_answered(asked: tuple[Asked, Asked, ControlFile], tmp_path: Path) -> None:
    """Accepted at once, done or failed when it is; the same id, or the same file, is not another request."""
    trace, profiler, hook = asked
    path, reply = tmp_path / "a%2Fb-3.control", tmp_path / "a%2Fb-3.reply"
    look(hook)
    control.write(path, Request("one", "profile", "/x.json", 7))
    look(hook)
    look(hook)
    assert (trace.requests, profiler.requests) == ([], [(7, "/x.json")])
    assert control.read_reply(reply, os.geteuid()) == Reply("one", "accepted")
    profiler.answer("")
    look(hook)
    assert control.read_reply(reply, os.geteuid()) == Reply("one", "done")
    control.write(path, Request("one", "profile", "/x.json", 7))
    look(hook)
    control.write(path, Request("two", "trace"))
    look(hook)
    assert (trace.requests, len(profiler.requests)) == ([("",)], 1)
    trace.answer("no room")
    look(hook)
    assert control.read_reply(reply, os.geteuid()) == Reply("two", "failed", "no room")
    profiler.installed = False
    control.write(path, Request("three", "profile"))
    look(hook)
    assert control.read_reply(reply, os.geteuid()) == Reply("three", "failed", "hook profile is off in this process")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a%2Fb-3.control", "a%2Fb-3.reply"]


def test_a_request_stands_while_its_file_does(asked: tuple[Asked, Asked, ControlFile], tmp_path: Path) -> None:
    """Without its file the profile is withdrawn, once, and no reply is left for nobody to remove."""
    _, profiler, hook = asked
    path, reply = tmp_path / "a%2Fb-3.control", tmp_path / "a%2Fb-3.reply"
    control.write(path, Request("one", "profile", stacks=True))
    look(hook)
    assert (profiler.stacks, profiler.withdrawn) == ([True], [])
    answer = profiler.answer
    path.unlink()
    reply.unlink()
    look(hook)
    answer("profile withdrawn")
    look(hook)
    assert profiler.withdrawn == [answer]
    assert list(tmp_path.iterdir()) == []
    control.write(path, Request("two", "profile"))
    assert "stacks" not in json.loads(path.read_text())
    look(hook)
    assert control.read_reply(reply, os.geteuid()) == Reply("two", "accepted")
    assert profiler.stacks == [True, False]


def test_a_request_to_an_earlier_process_is_not_taken(
    asked: tuple[Asked, Asked, ControlFile], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After a restart the file that is still there asks nobody for anything."""
    trace, _, hook = asked
    path = tmp_path / "a%2Fb-3.control"
    control.write(path, Request("one", "trace"))
    os.utime(path, (time.time() - 60, time.time() - 60))
    look(hook)
    assert trace.requests == []
    assert caplog.records == []


def test_a_request_that_the_kernel_dates_a_tick_late_is_taken(
    asked: tuple[Asked, Asked, ControlFile], tmp_path: Path
) -> None:
    """A file's time is up to 10 ms behind the clock, and so before the start of a process that was there already."""
    trace, _, hook = asked
    path = tmp_path / "a%2Fb-3.control"
    dated = time.time_ns() - 9_000_000
    hook.forked()
    control.write(path, Request("one", "trace"))
    os.utime(path, ns=(dated, dated))
    look(hook)
    assert len(trace.requests) == 1


def test_a_bad_file_costs_one_line(
    asked: tuple[Asked, Asked, ControlFile], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is named with the reason, once, and the next good one is taken."""
    trace, _, hook = asked
    path = tmp_path / "a%2Fb-3.control"
    path.write_text("{")
    for _ in range(3):
        look(hook)
    (record,) = caplog.records
    assert record.message.startswith(f"control file ignored: {path}: no JSON")
    control.write(path, Request("one", "trace"))
    look(hook)
    assert trace.requests == [("",)]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "no JSON"),
        ("[" * 4000, "no JSON"),
        ("[]", "no JSON object"),
        (json.dumps({"id": "a"}), "no request"),
        (json.dumps({"request": "trace"}), "no id"),
        (json.dumps({**GOOD, "id": "../x"}), "is not 1 to 64 letters"),
        (json.dumps({**GOOD, "request": "reboot"}), "request must be one of trace, profile, got 'reboot'"),
        (json.dumps({**GOOD, "steps": True}), "steps is bool, not int"),
        (json.dumps({**GOOD, "steps": 0}), "steps 0 is not 1 to 1000"),
        (json.dumps({**GOOD, "steps": 10**30}), "is not 1 to 1000"),
        (json.dumps({**GOOD, "path": "relative"}), "'relative' is not absolute"),
        (json.dumps({**GOOD, "path": "/a\0b"}), "is not absolute"),
        (json.dumps({**GOOD, "command": "x"}), "unknown field 'command'"),
        (json.dumps({**GOOD, "path": "/" + "x" * 9000}), "longer than 8192 bytes"),
    ],
)
def test_anything_but_a_good_request_is_refused(content: str, reason: str, tmp_path: Path) -> None:
    """The error names the file and what is wrong with it."""
    path = tmp_path / "x.control"
    path.write_text(content)
    with pytest.raises(ControlError, match=f"^{re.escape(str(path))}: .*{re.escape(reason)}"):
        control.read_request(path)


def test_only_a_file_that_its_owner_alone_may_write_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's file, one that others may write, a link, a folder and a FIFO are refused without blocking."""
    path = tmp_path / "x.control"
    path.write_text(json.dumps(GOOD))
    assert control.read_request(path) == Request("a-1", "trace", "", 5)
    path.chmod(0o666)
    with pytest.raises(ControlError, match="others than its owner may write it"):
        control.read_request(path)
    path.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(path, 4711, -1)
        with pytest.raises(ControlError, match="belongs to user 4711"):
            control.read_request(path)
        # Root may ask anybody's process.
        os.chown(path, 0, -1)
        monkeypatch.setattr(os, "geteuid", lambda: 4711)
        assert control.read_request(path).id == "a-1"
    link, fifo = tmp_path / "link.control", tmp_path / "fifo.control"
    link.symlink_to(path)
    os.mkfifo(fifo)
    for other, reason in ((link, "symbolic links"), (fifo, "not a regular file"), (tmp_path, "not a regular file")):
        with pytest.raises(ControlError, match=reason):
            control.read_request(other)


def test_one_more_user_may_ask(
    asked: tuple[Asked, Asked, ControlFile],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The user in LAGGARD_CONTROL_USER, by number or name, is heard, but names no path; everybody else is not."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    trace, _, hook = asked
    path = tmp_path / "a%2Fb-3.control"
    nobody = pwd.getpwnam("nobody").pw_uid

    def ask(number: int, owner: int, where: str = "") -> None:
        control.write(path, Request(f"id-{number}", "trace", where))
        os.chown(path, owner, -1)
        look(hook)

    ask(1, nobody)
    assert (trace.requests, "belongs to user" in caplog.records[-1].message) == ([], True)
    for number, user in enumerate((str(nobody), "nobody"), 2):
        monkeypatch.setenv("LAGGARD_CONTROL_USER", user)
        ask(number, nobody)
        assert len(trace.requests) == number - 1
    ask(4, 4711)
    assert "belongs to user 4711" in caplog.records[-1].message
    ask(5, nobody, "/etc/x.json")
    assert f"'/etc/x.json' of user {nobody}, whose traces go to the state folder only" in caplog.records[-1].message
    ask(6, 0, "/x.json")
    monkeypatch.setenv("LAGGARD_CONTROL_USER", "no such user")
    ask(7, nobody)
    assert "LAGGARD_CONTROL_USER must be a user of this host, got 'no such user'" in caplog.records[-2].message
    assert "belongs to user" in caplog.records[-1].message
    assert trace.requests == [("",), ("",), ("/x.json",)]


def test_file_names_are_distinct_and_fit(tmp_path: Path) -> None:
    """Any run's name makes a file name inside the folder, and two runs never the same one."""
    runs = ["a", "a/b", "../..", "läufer" * 21, "läufer" * 20 + "x", "%2F", "/"]
    names = [control.stem(run, 10_000) for run in runs]
    assert len(set(names)) == len(runs)
    for name in names:
        (tmp_path / f"{name}{control.REQUEST_SUFFIX}").touch()
    assert len(list(tmp_path.iterdir())) == len(runs)
