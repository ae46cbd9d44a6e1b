"""``laggard gate``: what cannot be read or compared is one line."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from laggard_cli.main import main
from tests.cli.gate.runs import error_of, lines_of, write_run


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"laggard_baseline": 2}, "a baseline of schema 2, not 1; save it again with this version"),
        ({"laggard_baseline": True}, "a baseline of schema True, not 1"),
        ({"extra": 1}, "field 'extra' is unknown in the baseline"),
        ({"memory": None}, "memory must be an object"),
        ({"memory": {"host_rss": "1"}}, "host_rss of the baseline must be seconds or bytes, 0 or more, got '1'"),
        ({"ranks": 0}, "run, ranks or unit of the baseline is not what it must be"),
        ({"step": []}, "the baseline has no step"),
        ({"step": [0.1, -1]}, "step of the baseline must be seconds or bytes, 0 or more, got -1"),
        ({"step": [0.1, float("nan")]}, "step of the baseline must be seconds or bytes, 0 or more, got nan"),
        ({"step": [0.1, 0.1]}, "the series of the baseline are not of the same length"),
        ({"phases": {"sleep": []}}, "phases of the baseline: 'sleep' is unknown"),
        ({"recordings": [20]}, "recordings of the baseline must be counts of steps that add up to all of them"),
        ({"recordings": "2"}, "recordings of the baseline must be counts of steps"),
        ({"throughput": {}}, "the baseline has no throughput in steps, or its steps took no time"),
    ],
)
def test_a_baseline_that_is_not_as_it_must_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], message: str
) -> None:
    """Each mistake in a saved baseline is one line that names it."""
    run, kept = write_run(tmp_path / "a", steps=40), tmp_path / "kept.json"
    assert main(["gate", "--candidate", str(run), "--save", str(kept)]) == 0
    capsys.readouterr()
    kept.write_text(json.dumps({**json.loads(kept.read_text()), **change}))
    assert error_of(capsys, "--baseline", kept, "--candidate", run).startswith(f"{kept}: {message}")


def test_a_truncated_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Wherever a baseline ends too early, one line says that it is not whole."""
    run, kept = write_run(tmp_path / "a", steps=40), tmp_path / "kept.json"
    assert main(["gate", "--candidate", str(run), "--save", str(kept)]) == 0
    capsys.readouterr()
    text = kept.read_text()
    for length in (64, len(text) // 2, len(text) - 3):
        kept.write_text(text[:length])
        line = error_of(capsys, "--baseline", kept, "--candidate", run)
        assert line.startswith(f"{kept}: the baseline is not whole (")


def test_recordings_that_can_not_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is missing, mixed or no recording is one line that names the file or the run, and what to do."""
    run = write_run(tmp_path / "a", steps=40)

    def of(candidate: str | Path, *more: str | Path) -> str:
        return error_of(capsys, "--baseline", run, "--candidate", candidate, *more)

    def folder(name: str, *files: list[str]) -> Path:
        (tmp_path / name).mkdir()
        for number, lines in enumerate(files):
            (tmp_path / name / f"{number}.jsonl").write_text("\n".join(lines))
        return tmp_path / name

    assert of(write_run(tmp_path / "four", ranks=4)).startswith("the baseline has 2 ranks, the candidate 4;")
    assert of(tmp_path / "none").startswith(f"{tmp_path}/none: no such file or folder")
    assert "no .jsonl file in the folder" in of(folder("empty"))
    assert of(folder("blank", [""])) == f"{tmp_path}/blank: no step in it"
    cut = folder("cut", [*lines_of(0, 5), lines_of(0, 6)[5][:90]])
    assert of(cut) == f"{cut}/0.jsonl, line 6: no JSON object"
    assert of(folder("gap", lines_of(0, 9), lines_of(2, 9))).endswith("has 2 of 3 ranks, rank 1 is missing")
    half = folder("half", lines_of(0, 9, world_size=4), lines_of(1, 9, world_size=4))
    assert of(half).endswith("has 2 of 4 ranks, rank 2 is missing")
    sizes = folder("sizes", lines_of(0, 9, world_size=4), lines_of(1, 9, world_size=2))
    assert of(sizes).endswith("has steps of 2 and 4 ranks; give one of them")
    runs = folder("runs", lines_of(0, 9), lines_of(1, 9, run="other"))
    assert of(runs).endswith("has runs other, recorded; a recording is of one run")
    warm = folder("warm", lines_of(0, 3), lines_of(1, 3))
    assert "no step is left that all 2 ranks have" in of(warm)
    odd = folder("odd", lines_of(0, 1, duration_ns=0))
    assert "line 1: durations must be numbers of nanoseconds" in of(odd)
    odd = folder("long", lines_of(0, 1, duration_ns=1))
    assert of(odd).endswith("line 1: the phases take longer than the step")
    odd = folder("memory", lines_of(0, 1, memory_peak_bytes={"host_rss": "1"}))
    assert "line 1: memory_peak_bytes of host_rss must be bytes, 0 or more, got '1'" in of(odd)
    (tmp_path / "binary").write_bytes(b"\xff\xfe{")
    assert of(tmp_path / "binary") == f"{tmp_path}/binary: no text"
    assert "--limit must be a percentage between 0 and 100, got 0" in of(run, "--limit", "0")
    refused = "Prometheus at http://127.0.0.1:1 cannot be reached: Connection refused"
    assert of("run:x", "--prometheus", "http://127.0.0.1:1") == refused
    assert error_of(capsys, "--candidate", run).startswith("--baseline is needed, or --save FILE")
    assert error_of(capsys, "--candidate", run, "--save", tmp_path / "x", "--junit", tmp_path / "y").startswith(
        "--junit"
    )
    assert not (tmp_path / "x").exists()
    assert of(run, "--junit", tmp_path / "none" / "x").endswith("No such file or directory")


def test_a_server_that_does_not_answer_or_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    """Down and unauthorized are one line each, without the password."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(401)
            self.end_headers()
            self.wfile.write(b"Unauthorized")

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    ask = ("--baseline", "run:a", "--candidate", "run:b", "--prometheus")
    assert error_of(capsys, *ask, "http://u:secret@127.0.0.1:1").startswith(
        "Prometheus at http://127.0.0.1:1 cannot be reached: "
    )
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        line = error_of(capsys, *ask, f"http://u:secret@127.0.0.1:{server.server_port}")
        server.shutdown()
    assert "HTTP 401" in line
    assert "secret" not in line
