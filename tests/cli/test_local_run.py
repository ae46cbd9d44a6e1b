"""``laggard run --local``: the job is what it is without us, and nothing of ours outlives it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pty
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from laggard_cli.errors import CommandError
from laggard_cli.main import main
from laggard_cli.prometheus import Prometheus
from tests.cli.local_job import Local
from tests.cli.terminals import on_terminal, uncoloured
from tests.support.cases import usual
from tests.support.waiting import until

#: Prints what it got after the first signal, and ends with a code of its own.
COUNTS_SIGNALS = """
import signal, sys, time
got = []
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGRTMIN):
    signal.signal(number, lambda number, _: got.append(int(number)))
print("ready", flush=True)
while not got:
    time.sleep(0.01)
time.sleep(1)
print(got, flush=True)
sys.exit(7)
"""
#: Steps that are marked by hand, of two ranks; rank 1 needs longer for its data.
STEPS = """
import os, sys, time
import laggard
laggard.instrument()
for _ in range(int(sys.argv[1])):
    with laggard.step():
        with laggard.phase("data"):
            time.sleep(0.02)
print("trained")
"""


@pytest.fixture
def local(tmp_path: Path) -> Local:
    """Jobs in a folder of the test's own."""
    return Local(tmp_path)


def parts(process: subprocess.Popen[str]) -> tuple[psutil.Process, psutil.Process, dict[str, psutil.Process]]:
    """The job, the monitor and the servers, once they are there."""
    laggard = psutil.Process(process.pid)
    until(lambda: any(child.name().startswith("prometheus") for child in laggard.children(recursive=True)))
    job, monitor = sorted(laggard.children(), key=lambda child: child.pid)
    return job, monitor, {child.name().partition("-")[0]: child for child in monitor.children(recursive=True)}


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("import sys; sys.stdout.write(sys.stdin.read())", 0),
        ("import sys; sys.stdout.write(sys.stdin.read()); sys.exit(3)", 3),
        ("import os, sys; print(sys.stdin.read(), end='', flush=True); os.kill(os.getpid(), 15)", -15),
        ("import os, sys; print(sys.stdin.read(), end='', flush=True); os.kill(os.getpid(), 9)", -9),
        ("import os, sys; print(sys.stdin.read(), end='', flush=True); os.abort()", -6),
    ],
)
def test_output_and_end_are_the_jobs(program: str, code: int, local: Local) -> None:
    """Input arrives, stdout has not a byte more, the caller sees exit code or signal, and nothing is left."""
    with local.start("python", "-c", program) as process:
        output, errors = process.communicate("a\0b", timeout=60)
    assert (output, process.returncode) == ("a\0b", code)
    assert all(line.startswith("laggard: ") for line in errors.splitlines()), errors
    assert "healthy" not in errors
    assert "not judged: no training was seen" in errors
    assert local.left(process.pid) == ([], [], [])


#: Every way to send every signal that a scheduler sends; `usual()` has each kind of signal, and both ways.
SENT = tuple(
    itertools.product(
        (os.kill, os.killpg), (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGRTMIN)
    )
)


@pytest.mark.parametrize(
    ("send", "number"),
    usual(
        SENT,
        (os.kill, signal.SIGTERM),
        (os.kill, signal.SIGRTMIN),
        (os.killpg, signal.SIGINT),
        (os.killpg, signal.SIGUSR1),
    ),
)
def test_a_signal_reaches_the_job_once(send: Callable[[int, int], None], number: int, local: Local) -> None:
    """Whether it is sent to laggard alone, as by kill and Kubernetes, or to all of its group, as by Slurm."""
    with local.start("--quiet", "python", "-c", COUNTS_SIGNALS) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        send(process.pid, number)
        output, errors = process.communicate(timeout=60)
    assert (output, process.returncode, errors) == (f"[{int(number)}]\n", 7, "")
    assert local.left(process.pid) == ([], [], [])


def test_ctrl_c_on_a_terminal_reaches_the_job_once_and_the_card_follows(local: Local) -> None:
    """As without us; the card stands before the shell's next prompt."""
    laggard, terminal = pty.fork()
    if not laggard:
        command = local.command("python", "-c", COUNTS_SIGNALS)
        os.chdir(local.folder)
        os.execve(command[0], command, local.environment)
    text = b""

    def read(*wanted: bytes) -> bool:
        nonlocal text
        try:
            text += os.read(terminal, 4096)
        except OSError:  # all have closed it
            return True
        return all(word in text for word in wanted)

    until(lambda: read(b"ready"))
    os.write(terminal, b"\x03")
    until(lambda: read(b"[2]", b"exit code 7", b"of processor time"))
    _, status = os.waitpid(laggard, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 7
    assert local.left(laggard) == ([], [], [])


def test_of_a_killed_laggard_nothing_is_left(local: Local) -> None:
    """The job gets SIGTERM from the kernel, once; what watched it ends with it."""
    process = local.start("python", "-c", COUNTS_SIGNALS)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    parts(process)
    process.kill()
    output, errors = process.communicate(timeout=60)
    assert (output, process.returncode) == (f"[{int(signal.SIGTERM)}]\n", -signal.SIGKILL)
    assert "exit code unknown, as laggard was killed, after" in errors
    until(lambda: local.left(process.pid) == ([], [], []))


def test_what_was_killed_as_a_whole_is_removed_by_the_next_run(local: Local) -> None:
    """Nobody is there to remove the files of a group that gets SIGKILL; no process of it is left."""
    process = local.start("--run", "killed", "python", "-c", COUNTS_SIGNALS)
    assert process.stderr is not None
    assert "verdicts come here" in process.stderr.readline()
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    until(lambda: not local.left(process.pid)[0])
    _, files, (shared,) = local.left(process.pid)
    assert files == ["runs"]
    # One that is so young may be of a run that begins.
    with local.start("true") as following:
        following.communicate(timeout=60)
    assert local.left(process.pid) == ([], ["runs"], [shared])
    os.utime(shared, (0, 0))
    with local.start("true") as following:
        following.communicate(timeout=60)
    assert local.left(process.pid) == local.left(following.pid) == ([], [], [])


def test_another_ctrl_c_leaves_the_card_out(local: Local) -> None:
    """Who is in a hurry does not wait for the end of the servers."""
    process = local.start("python", "-c", "print('ready', flush=True); import time; time.sleep(60)")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    parts(process)
    process.terminate()
    until(lambda: len(psutil.Process(process.pid).children()) == 1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM
    assert errors.splitlines()[-1] == "laggard: no card: another SIGINT"
    until(lambda: local.left(process.pid) == ([], [], []))


def test_a_killed_monitor_leaves_the_job_alone(local: Local) -> None:
    """Its servers end with it, its folders are removed, and the job ends as it would."""
    process = local.start("python", "-c", COUNTS_SIGNALS)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    _, monitor, servers = parts(process)
    monitor.kill()
    until(lambda: not any(server.is_running() for server in servers.values()))
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=60)
    assert (output, process.returncode) == (f"[{int(signal.SIGTERM)}]\n", 7)
    assert errors.endswith("laggard: no card: the monitor ended by SIGKILL\n")
    assert local.left(process.pid) == ([], [], [])


def test_timers_of_the_servers_fall_together_and_not_those_of_the_job(local: Local) -> None:
    """The kernel may wake servers and monitor a twentieth of a second late; the job has what it has without us."""
    mine = Path("/proc/self/timerslack_ns").read_text()
    with local.start("--quiet", "python", "-c", COUNTS_SIGNALS) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        job, monitor, servers = parts(process)
        assert servers.keys() >= {"prometheus"}
        for late in (monitor, *servers.values()):
            assert Path(f"/proc/{late.pid}/timerslack_ns").read_text() == "50000000\n"
        assert Path(f"/proc/{job.pid}/timerslack_ns").read_text() == mine
        process.terminate()
        process.communicate(timeout=60)


def test_a_killed_server_is_restarted(local: Local) -> None:
    """One line says so, and the job does not notice."""
    process = local.start("--profile", "fast", "python", "-c", COUNTS_SIGNALS)
    _, _, servers = parts(process)
    servers["prometheus"].kill()
    assert process.stderr is not None
    said = [process.stderr.readline(), process.stderr.readline()]
    assert "verdicts come here" in said[0]
    assert re.fullmatch(r"laggard: prometheus ended by SIGKILL: .*; restarted at http://127\.0\.0\.1:\d+\n", said[1])
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 7
    assert local.left(process.pid) == ([], [], [])


def test_a_server_that_cannot_run_is_given_up_once(local: Local) -> None:
    """As on a port that is taken each time: one line, with the last words of its log, and the job goes on."""
    (local.folder / "bin").mkdir()
    broken = local.folder / "bin" / "prometheus"
    broken.write_text("#!/bin/sh\necho 'listen tcp 127.0.0.1:1: bind: address already in use'\nexit 1\n")
    broken.chmod(0o755)
    local.environment["PATH"] = f"{broken.parent}{os.pathsep}{local.environment['PATH']}"
    process = local.start("--profile", "fast", "python", "-c", COUNTS_SIGNALS)
    assert process.stderr is not None
    process.stderr.readline()
    assert process.stderr.readline() == (
        "laggard: prometheus ended with exit code 1: listen tcp 127.0.0.1:1: bind: address already in use; "
        "given up: the job goes on without verdicts\n"
    )
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=60)
    assert (output, process.returncode) == (f"ready\n[{int(signal.SIGTERM)}]\n", 7)
    assert "given up" not in errors
    assert local.left(process.pid) == ([], ["bin"], [])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes."""
    folder = tmp_path / "runs"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system needs root")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk_is_said_once_and_the_job_goes_on(small_disk: Path, local: Local) -> None:
    """Prometheus answers on, and records nothing: the card does not call that healthy. What was written is removed."""
    process = local.start("--profile", "fast", "python", "-c", COUNTS_SIGNALS)
    assert process.stderr is not None
    assert "verdicts come here" in process.stderr.readline()
    parts(process)
    with contextlib.suppress(OSError), (small_disk / "other").open("wb") as other:
        other.write(bytes(4 << 20))
    said = process.stderr.readline()
    assert re.fullmatch(rf"laggard: .*: no space is left in {small_disk}/local-[\d-]+/servers.*\n", said), said
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=60)
    assert (output, process.returncode) == (f"ready\n[{int(signal.SIGTERM)}]\n", 7)
    assert "laggard: not judged: " in errors
    assert "healthy" not in errors
    assert [path.name for path in small_disk.iterdir()] == ["other"]


def test_of_a_short_run_nothing_is_judged(local: Local) -> None:
    """Its steps are counted, under the name that its ranks report; that it is healthy is not said, in JSON neither."""
    (local.folder / "steps.py").write_text(STEPS)
    local.environment["LAGGARD_RUN"] = " short\nrun "
    with local.start("--json", "card.json", "python", "steps.py", "40") as process:
        output, errors = process.communicate(timeout=60)
    assert (output, process.returncode) == ("trained\n", 0)
    assert re.search(r"laggard: run short run: exit code 0 after \d+ s, 1 rank, 40 steps\n", errors), errors
    assert "not judged: too short to compare" in errors
    assert "healthy" not in errors
    card = json.loads((local.folder / "card.json").read_text())
    assert (card["run"], card["ended"], card["ranks_seen"], card["steps"]) == ("short run", "exit code 0", 1, 40)
    assert (card["verdicts"], card["report"]) == ([], None)
    assert card["judgement"].startswith("not judged: too short to compare")
    assert local.left(process.pid) == ([], ["card.json", "steps.py"], [])


def test_top_shows_a_local_run_at_work_until_q(local: Local) -> None:
    """It is found by its folder, in another terminal, which is then as it was; the run goes on."""
    (local.folder / "steps.py").write_text(STEPS)
    with local.start("--profile", "fast", "--run", "at work", "python", "steps.py", "100000") as process:
        assert process.stderr is not None
        first = re.search(r"http://[\d.:]+", process.stderr.readline())
        assert first is not None
        until(lambda: _live_ranks(first[0]) == 1)
        folder = str(local.folder / "runs")
        shown = on_terminal(100, "top", "--every", "60s", "--folder", folder, keys=[("q quit", "q")])
        assert process.poll() is None
        process.terminate()
        process.communicate(timeout=60)
    assert shown.startswith(f"laggard: asks the local run at work ({folder}/at-work)\n")
    assert "\x1b[?1049h" in shown
    assert shown.endswith("\x1b[?25h\x1b[?1049l")
    assert "run at work  1 of 1 ranks" in uncoloured(shown)
    processes, _, shared = local.left(process.pid)
    assert (processes, shared) == ([], [])


def _live_ranks(address: str) -> float:
    with contextlib.closing(Prometheus(address)) as prometheus, contextlib.suppress(CommandError):
        return sum(sample.value for sample in prometheus.query("run:training_ranks_live:count"))
    return 0.0


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ["--json", "missing/card.json", "true"],
            r"--json missing/card\.json: /.*/missing is not a folder; make it first",
        ),
        (["--folder", "file", "true"], r"--folder file: file: File exists; name a folder to write to"),
        (["true-ish"], r"command 'true-ish' is not on PATH"),
    ],
)
def test_what_cannot_be_is_one_line_before_the_job_starts(
    flags: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With exit code 2, and no file is left."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert main(["run", "--local", *flags]) == 2
    assert re.fullmatch(rf"laggard run: error: {said}\n", capsys.readouterr().err)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_without_a_prometheus_it_is_said_where_to_get_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is started."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr("shutil.which", lambda name: None if name == "prometheus" else f"/bin/{name}")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "laggard_prometheus" else object())
    assert main(["run", "--local", "true"]) == 2
    assert "prometheus is not on PATH" in capsys.readouterr().err


def test_flags_of_a_local_run_need_it(capsys: pytest.CaptureFixture[str]) -> None:
    """They would do nothing."""
    assert main(["run", "--keep", "true"]) == 2
    assert capsys.readouterr().err == "laggard run: error: --keep needs --local\n"
