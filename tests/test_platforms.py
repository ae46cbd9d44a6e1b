"""Windows and macOS: what the standard library lacks there is taken away, and everything that can work does."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

from laggard import _api, _nowhere
from laggard_cli.commands import _OF_RANKS, COMMANDS
from tests.test_packaging import ROOT

PLATFORMS = ("windows", "macos")
_PACKAGES = (
    "httpx", "numpy", "opentelemetry.exporter.prometheus", "opentelemetry.metrics", "opentelemetry.sdk.metrics",
    "promql_parser", "rich.console", "rich.live", "rich.table", "yaml",
)  # fmt: skip
_BEGIN = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.support.elsewhere import become
become(sys.argv[1], {_PACKAGES!r})
"""
_LIBRARY = """
import json, time
import laggard
laggard.instrument()
for _ in range(10):
    with laggard.step(), laggard.phase("data"):
        time.sleep(0.002)
laggard.log(loss=1.0)
laggard.set_peer_group("a")
laggard.dump_trace()
laggard.profile()
print(json.dumps(laggard.summary().as_dict()))
laggard.uninstrument()
"""
_COMMAND = """
from laggard_cli.main import main
sys.exit(main(sys.argv[2:]))
"""


def on(platform: str, program: str, *arguments: str, at: Path) -> subprocess.CompletedProcess[str]:
    """Run a program where the standard library is that of a platform."""
    command = [sys.executable, "-c", _BEGIN + program, platform, *arguments]
    environment = {"LAGGARD_STATE_DIR": str(at / "state"), "LAGGARD_RUN": "r", "OTEL_METRICS_EXPORTER": "none"}
    return subprocess.run(
        command, cwd=at, env={"PATH": "", **environment}, capture_output=True, text=True, timeout=60, check=False
    )


def test_macos_measures(tmp_path: Path) -> None:
    """Without /proc and the clock that counts sleep, steps and phases are what they are elsewhere."""
    done = on("macos", _LIBRARY, at=tmp_path)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["run"], summary["steps"], summary["measured_steps"]) == ("r", 10, 7)
    assert summary["phases"]["data"]["share"] > 0.9
    assert "failed" not in done.stderr


def test_windows_trains_on(tmp_path: Path) -> None:
    """Every call is there and does nothing; one line says why."""
    done = on("windows", _LIBRARY, at=tmp_path)
    assert done.returncode == 0, done.stderr
    said = f"nothing is measured on {sys.platform}: laggard needs Linux or macOS"
    assert json.loads(done.stdout)["note"] == said
    assert done.stderr == f"{said}; training goes on\n"


def test_what_does_nothing_has_the_form_of_what_does() -> None:
    """A script that runs on one platform runs on the other."""
    from laggard import __all__ as names  # noqa: PLC0415 - what is public

    for name in set(names) - {"__version__"}:
        assert inspect.signature(getattr(_nowhere, name)) == inspect.signature(getattr(_api, name)), name


@pytest.mark.parametrize("platform", PLATFORMS)
def test_commands(platform: str, tmp_path: Path) -> None:
    """Each command can say what it does, or that it cannot work here, in one line."""
    program = """
import contextlib, io, json
from laggard_cli.commands import COMMANDS
from laggard_cli.main import main
found = {}
for command in COMMANDS:
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            code = main([command, "--help"])
        except SystemExit as ended:
            code = ended.code
    found[command] = code, errors.getvalue()
print(json.dumps(found))
"""
    done = on(platform, program, at=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.keys() == COMMANDS.keys()
    refused = {command: errors for command, (code, errors) in found.items() if code}
    expected = {
        each: f"laggard {each}: error: {each} needs ranks on this host, so Linux or macOS, and this is {sys.platform}\n"
        for each in _OF_RANKS
    }
    assert refused == (expected if platform == "windows" else {})


@pytest.mark.parametrize("platform", PLATFORMS)
def test_files_are_judged(platform: str, tmp_path: Path) -> None:
    """Gate and hang read files, a server is asked, a site is written: with the exit codes of any platform."""
    step = {"run": "a", "rank": 0, "world_size": 1, "excluded": "", "intervals": [], "duration_ns": 10_000_000}
    steps = [
        {**step, "step": number, "started_unix_ns": number * 10_000_000, "phases_ns": {"data": 10_000_000}}
        for number in range(200)
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(each) + "\n" for each in steps))
    entry = {
        "record_id": 0, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": 1, "p2p_seq_id": 0,
        "op_id": 1, "profiling_name": "nccl:all_reduce", "time_created_ns": 1, "input_sizes": [[1]],
        "input_dtypes": ["Float"], "output_sizes": [[1]], "output_dtypes": ["Float"], "state": "started",
        "time_discovered_started_ns": 1, "time_discovered_completed_ns": None, "retired": False, "timeout_ms": 1,
        "is_p2p": False,
    }  # fmt: skip
    for rank, entries in enumerate(([entry], [])):
        ranks = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
        dump = {"version": "2.10", "pg_config": ranks, "pg_status": {}, "entries": entries, "rank": rank}
        (tmp_path / "dumps").mkdir(exist_ok=True)
        (tmp_path / "dumps" / f"dump_{rank}").write_text(json.dumps(dump))

    def code(*arguments: str) -> int:
        done = on(platform, _COMMAND, *arguments, at=tmp_path)
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode

    assert code("gate", "--baseline", "a.jsonl", "--candidate", "a.jsonl") == 0
    assert code("hang", "dumps") == 0
    assert code("diagnose", "--prometheus", "http://127.0.0.1:1") == 2
    assert code("report", "--prometheus", "http://127.0.0.1:1", "-o", "x.html") == 2
    assert code("replay", "a.jsonl") == 2  # no Prometheus is on PATH
    assert code("init", "site") == 0
