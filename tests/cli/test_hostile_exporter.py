"""Whatever a node exporter answers, ``laggard profile`` says in a line what became of a rank."""

from __future__ import annotations

import contextlib
import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard_cli.profile import remote
from laggard_cli.profile.remote import Exporters, RemoteRank, request_from_exporter
from laggard_cli.progress import Progress
from tests.fuzz.test_parsers import fuzz
from tests.support.answering import Answer, Answering, answering

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.sampled_from(("done", "failed")),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
_ANSWERS = st.fixed_dictionaries({}, optional={"id": _VALUES, "status": _VALUES, "reason": _VALUES})
HTML = b"<!doctype html><html><body><form action=/login>Sign in</form></body></html>"


@pytest.fixture(scope="module")
def server() -> Iterator[Answering]:
    """Serve for all examples."""
    with answering() as found:
        yield found


@pytest.fixture
def rank(server: Answering, tmp_path: Path) -> RemoteRank:
    """A rank on a host with a hostile exporter."""
    (tmp_path / "credentials").write_text("user:password")
    return RemoteRank("r", 0, server.url, Exporters(server.url, tmp_path / "credentials", None, None))


def ask(rank: RemoteRank, output: Path) -> tuple[dict[int, Path], list[str]]:
    """Have the rank profiled; return its files and what was printed."""
    output.mkdir(exist_ok=True)
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
        patch.setattr("laggard_cli.profile.remote._POLL_SECONDS", 0.0)
        arguments: dict[str, Any] = {
            "output": output,
            "steps": 5,
            "seconds": 0.05,
            "stacks": False,
            "progress": Progress(),
        }
        found = request_from_exporter(rank, stopped=threading.Event(), **arguments)
    assert list(output.glob(".*")) == []
    assert "\x1b" not in said.getvalue()
    return found, said.getvalue().splitlines()


def test_json_of_any_form(server: Answering, rank: RemoteRank, tmp_path: Path) -> None:
    """Values of any type in the place of an id, a status and a reason end in a file or in a line."""

    @settings(parent=fuzz, max_examples=max(20, fuzz.max_examples // 3), deadline=None)
    @given(st.lists(_ANSWERS | _VALUES, min_size=1, max_size=4))
    def one(pieces: list[Any]) -> None:
        asked = 0

        def answer(_: str, __: dict[str, str]) -> Answer:
            nonlocal asked
            asked += 1
            return Answer(json.dumps(pieces[asked % len(pieces)]).encode())

        server.answer = answer
        found, lines = ask(rank, tmp_path / "out")
        assert lines[-1].startswith("rank 0: ")
        assert len(lines[-1]) < 1000
        assert [lines[-1] == f"rank 0: {path}" for path in found.values()] == [True] * len(found)

    one()


#: What is sent, and what is said of it.
REFUSED = {
    "empty": (Answer(b""), "does not answer as laggard's node exporter"),
    "login page": (Answer(HTML), "does not answer as laggard's node exporter"),
    "list": (Answer(b"[]"), "does not answer as laggard's node exporter"),
    "deep": (Answer(b"[" * 100_000), "does not answer as laggard's node exporter"),
    "bytes": (Answer(bytes(range(256))), "does not answer as laggard's node exporter"),
    "redirect": (Answer(b"", 302, {"Location": "http://127.0.0.1:1/"}), "HTTP 302"),
    "no gzip": (Answer(b"none at all", headers={"Content-Encoding": "gzip"}), "Error -3"),
    "its own words": (Answer(b"many\nlines\x1b[2J", 500), "many lines\\x1b[2J"),
    "not found": (Answer(b"", 404), "start it with --web.enable-profiling"),
    "huge": (Answer(b" " * 3000), "sends more than 0 MiB"),
    "many words": (Answer(b"x" * 900, 403), "x" * 200),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_exporter_is_one_line(
    server: Answering, rank: RemoteRank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A login page, a redirect, garbage and too much cost the rank its profile, and are said."""
    monkeypatch.setattr(remote, "_MOST_ANSWER_BYTES", 1000 if name == "huge" else 1 << 20)
    answer, said = REFUSED[name]
    server.answer = lambda _, __: answer
    found, (line,) = ask(rank, tmp_path / "out")
    assert (found, line.startswith(f"rank 0: {rank.url}: ")) == ({}, True)
    assert said in line


def test_a_trace_that_does_not_end_is_given_up(
    server: Answering, rank: RemoteRank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is longer than a trace may be is not kept."""
    monkeypatch.setattr(remote, "_MOST_TRACE_BYTES", 100)
    answers = iter((b'{"id": "a"}', b'{"status": "done"}', b"x" * 101))
    server.answer = lambda _, __: Answer(next(answers))
    found, lines = ask(rank, tmp_path / "out")
    assert (found, list((tmp_path / "out").iterdir())) == ({}, [])
    assert lines[-1].endswith("sends more than 0 MiB")
