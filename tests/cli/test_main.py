"""The command line: one clear line for bad input, exit code 2, and defaults that a user can override."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from laggard.version import PACK_VERSION, __version__
from laggard_cli.main import main
from laggard_cli.rules.render import rule_files
from laggard_cli.run import defaults


@pytest.fixture
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def not_prometheus() -> Iterator[str]:
    """A web server that is not Prometheus: it answers everything with a page."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(401 if "private" in self.path else 200)
            self.end_headers()
            self.wfile.write(b"<html></html>")

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://user:secret@127.0.0.1:{server.server_port}"
        server.shutdown()


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must fail with code 2 and one line, and return the line."""
    try:
        code = main(arguments)
    except SystemExit as exit_:
        code = exit_.code
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["diagnose", "--prometheus", "nowhere"],
            "laggard diagnose: error: --prometheus must be a URL, got 'nowhere'; try http://localhost:9090",
        ),
        (
            ["diagnose", "--prometheus", "http://u:secret@127.0.0.1:1"],
            "laggard diagnose: error: Prometheus at http://127.0.0.1:1 cannot be reached: Connection refused",
        ),
        (["run"], "laggard run: error: no command; example: laggard run torchrun --nproc-per-node 8 train.py"),
        (["run", "no-such-command"], "laggard run: error: command 'no-such-command' is not on PATH"),
        (
            ["rules", "render", "--profile", "slow", "--output", "x"],
            "laggard rules: error: no profile 'slow'; profiles.yaml has production, quick, local, fast, large",
        ),
        (
            ["rules", "render", "--output", "/proc/nowhere"],
            "laggard rules: error: --output /proc/nowhere: No such file or directory",
        ),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The line names the command, the thing, its value and what to do."""
    assert error_of(capsys, *arguments) == expected


@pytest.mark.usefixtures("in_a_folder")
@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("train.py", None, "is not executable; try laggard run python ./train.py"),
        ("train.sh", None, "is not executable"),
        ("old.sh", "#! /gone/bin/python -u\n", "is a script for '/gone/bin/python', which does not exist"),
        ("dos.sh", "#!/bin/sh\r\n", "is a script for '/bin/sh\\r', which does not exist"),
    ],
)
def test_a_script_that_cannot_be_started_is_one_line(
    file: str, content: str | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistake of every day is named before the launcher runs into it."""
    Path(file).write_text(content or "", newline="")
    Path(file).chmod(0o644 if content is None else 0o755)
    assert error_of(capsys, "run", f"./{file}") == f"laggard run: error: command './{file}' {said}"


@pytest.mark.parametrize("first_line", ["", "#!\n", "#! \t\n"])
def test_a_script_without_an_interpreter_is_one_of_sh(first_line: str, tmp_path: Path) -> None:
    """As for a shell, ``env`` and ``timeout``."""
    script = tmp_path / "train.sh"
    script.write_text(f"{first_line}exit $(($1 + 2))\n")
    script.chmod(0o755)
    command = [Path(sys.executable).with_name("laggard"), "run", script, "5"]
    assert subprocess.run(command, cwd=tmp_path, timeout=60, check=False).returncode == 7


@pytest.mark.parametrize(
    ("first_line", "lacks"), [("#!{other}\n", True), ("#!/usr/bin/env python7\n", True), ("#!/bin/sh\n", False)]
)
def test_a_python_without_laggard_is_named(first_line: str, lacks: bool, tmp_path: Path) -> None:  # noqa: FBT001 - a parameter
    """The job runs, and one line says why nothing of it is measured."""
    other, script = tmp_path / "python7", tmp_path / "train"
    other.write_text('#!/bin/sh\n[ "$1" != -c ] || exit 1\necho ran\n')
    script.write_text(first_line.format(other=other) + "echo ran\n")
    for file in (other, script):
        file.chmod(0o755)
    command = [Path(sys.executable).with_name("laggard"), "run", script]
    variables = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "ran\n")
    said = (
        f"laggard run: {other} has no laggard, so nothing of what it runs is measured; install it there: {other} -m "
        "pip install 'laggard[otel]'\n"
    )
    assert done.stderr == (said if lacks else "")


def test_a_job_runs_without_a_propagator_that_is_not_installed() -> None:
    """A platform sets one for all of its jobs. OpenTelemetry's launcher ends where it is missing."""
    show = "import os; print(os.environ['OTEL_PROPAGATORS'])"
    command = [Path(sys.executable).with_name("laggard"), "run", sys.executable, "-c", show]
    variables = {**os.environ, "OTEL_PROPAGATORS": "baggage, of_a_mesh"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "baggage\n")
    assert done.stderr == (
        "laggard run: OTEL_PROPAGATORS must name propagators that are installed, got of_a_mesh; the job runs without; "
        "to have them, install their packages beside laggard\n"
    )


def test_a_server_that_is_not_prometheus_is_said_without_the_password(
    not_prometheus: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A page instead of an answer is named as such, and credentials of the URL stay out of the message."""
    line = error_of(capsys, "diagnose", "--prometheus", not_prometheus)
    assert "does not answer as Prometheus: no JSON" in line
    assert "secret" not in line
    assert "HTTP 401" in error_of(capsys, "diagnose", "--prometheus", f"{not_prometheus}/private")


def test_a_missing_tool_for_the_demo_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without Prometheus on PATH the demo says what to install."""
    monkeypatch.setenv("PATH", "")
    assert "prometheus is not on PATH; on Debian: apt-get install" in error_of(capsys, "demo")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """``laggard --version`` says the version, and that of the rule pack."""
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"laggard {__version__} (rules {PACK_VERSION})\n"


def test_run_sets_defaults_and_leaves_what_is_set() -> None:
    """Without OTLP the ranks serve Prometheus; with it everything goes there; a user's value always wins."""
    plain = defaults({}, None, None)
    assert plain["OTEL_METRICS_EXPORTER"] == "laggard_prometheus"
    assert plain["OTEL_TRACES_EXPORTER"] == "none"
    assert "LAGGARD_RUN" not in plain
    otlp = defaults({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, "r", "w")
    assert otlp["OTEL_METRICS_EXPORTER"] == "otlp"
    assert "OTEL_TRACES_EXPORTER" not in otlp
    assert (otlp["LAGGARD_RUN"], otlp["LAGGARD_WORKLOAD"]) == ("r", "w")


def test_run_hands_over_to_the_launcher(tmp_path: Path) -> None:
    """The command runs instrumented, with its own arguments and exit code."""
    script = tmp_path / "script.py"
    script.write_text(
        "import json, os, sys\n"
        "from laggard import _process\n"
        "names = ('OTEL_METRICS_EXPORTER', 'LAGGARD_RUN')\n"
        "print(json.dumps([sys.argv[1:], _process.current() is not None, [os.environ[name] for name in names]]))\n"
        "sys.exit(7)\n"
    )
    command = [sys.executable, "-m", "laggard_cli.main", "run", "--run", "r1", "python", str(script), "--run", "x"]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("OTEL_")},
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 7
    assert json.loads(done.stdout) == [["--run", "x"], True, ["laggard_prometheus", "r1"]]


def test_rules_are_rendered_to_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All layers of a profile are written, with the links that were asked for."""
    folder = tmp_path / "rules"
    assert main(["rules", "render", "--profile", "fast", "--output", str(folder), "--runbook-base", "http://r/"]) == 0
    assert capsys.readouterr().out == f"{len(rule_files())} rule files of profile fast in {folder}\n"
    assert {file.name for file in folder.iterdir()} == set(rule_files())
    assert "runbook_url: http://r/TrainingStraggler.md" in (folder / "alert.yml").read_text()


def test_a_shell_completes_commands_options_and_folders(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The code for bash works in bash; there is some for zsh and fish; another shell is refused."""
    (tmp_path / "dumps").mkdir()
    (tmp_path / "file").touch()
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out + (
        'complete_as() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()\n'
        '_shtab_laggard laggard "${@: -1}" "${@: -2:1}"; echo "${COMPREPLY[@]}"; }\n'
        "complete_as laggard diag\ncomplete_as laggard diagnose --wat\ncomplete_as laggard trace --state-dir ''\n"
    )
    command = ["bash", "--norc", "-c", script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout.splitlines() == ["diagnose", "--watch", "dumps"]
    for shell, word in (("zsh", "#compdef laggard"), ("fish", "complete -c laggard")):
        assert main(["completion", shell]) == 0
        assert word in capsys.readouterr().out
    assert "invalid choice: 'csh'" in error_of(capsys, "completion", "csh")


@pytest.mark.parametrize("command", ["run", "trace", "stacks", "slurm", "completion", "version"])
def test_who_looks_at_ranks_needs_no_extra(command: str) -> None:
    """A host of ranks has laggard alone: what starts ranks or looks at them loads none of the packages of `cli`."""
    program = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in EXTRA:
            raise ModuleNotFoundError(name, name=name)

EXTRA = ("httpx", "rich", "numpy", "yaml", "markdown_it", "promql_parser", "psutil", "prometheus_client", "ruamel")
sys.meta_path.insert(0, Missing())
from laggard_cli.main import main
main([sys.argv[1], "--help"])
"""
    done = subprocess.run(
        [sys.executable, "-c", program, command], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: laggard {command}")
