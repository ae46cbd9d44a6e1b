"""Which local run a command takes where no server is named: this user's, at work, the newest or that of a folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from laggard.shared import statefile
from laggard_cli.live import PREFIX, Announcement, LiveRun, abandoned, live_run, live_runs
from laggard_cli.main import main
from tests.cli.local_job import Local
from tests.support.fake_prometheus import Series, fake_prometheus, firing
from tests.support.waiting import until

KNOWN: dict[str, Series] = {"count by (cluster, training_run)": [({"training_run": "r"}, 1)]}


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of shared memory, in which no run of this machine is."""
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(statefile, "default_directory", lambda: folder / "laggard")
    monkeypatch.setattr("laggard_cli.live.PREFIX", PREFIX)
    for name in ("LAGGARD_PROMETHEUS", "LAGGARD_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return folder


def announce(shared: Path, name: str, began: float, prometheus: str = "http://127.0.0.1:1") -> Announcement:
    """A run at work, whose monitor is this process."""
    folder = shared / f"{PREFIX}{name}"
    folder.mkdir()
    announcement = Announcement(folder)
    place = shared.parent / "laggard-runs" / name
    announcement.say(LiveRun(name, str(place), str(folder), prometheus, "", began))
    return announcement


def test_the_newest_run_at_work_is_taken_and_named(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Or that of a folder; a named server goes first, and a run that is over is none."""
    with fake_prometheus(KNOWN, [firing("TrainingStraggler", "r", "2")]) as address:
        old, new = announce(shared, "old", 1.0, address), announce(shared, "new", 2.0, address)
        assert [run.run for run in live_runs()] == ["new", "old"]
        assert main(["diagnose"]) == 0
        said = capsys.readouterr()
        assert said.err == "laggard: asks the local run new (laggard-runs/new)\n"
        assert "TrainingStraggler" in said.out
        assert main(["diagnose", "--folder", "laggard-runs/old", "--json"]) == 0
        said = capsys.readouterr()
        assert said.err == "laggard: asks the local run old (laggard-runs/old)\n"
        assert json.loads(said.out)["runs"][0]["run"] == "r"
        assert live_run(Path("laggard-runs")) == live_runs()[0]
        assert main(["diagnose", "--prometheus", address]) == 0
        assert capsys.readouterr().err == ""
        assert main(["diagnose", "--prometheus", address, "--folder", "laggard-runs"]) == 2
        assert capsys.readouterr().err == (
            "laggard diagnose: error: --prometheus and --folder each name a server; give one of them\n"
        )
        new.end()
        assert [run.run for run in live_runs()] == ["old"]
        assert main(["diagnose", "--folder", "laggard-runs/new"]) == 2
        assert capsys.readouterr().err == (
            "laggard diagnose: error: --folder laggard-runs/new: no local run is at work there; "
            "at work are old (laggard-runs/old)\n"
        )
        old.end()
    assert main(["diagnose"]) == 2
    assert "Prometheus at http://localhost:9090 cannot be reached" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"run": 5}', "null", "link", "pipe", "none"])
def test_what_is_no_run_is_passed_over(content: str, shared: Path) -> None:
    """Whatever lies in shared memory under such a name, and is not locked, or not by this user, is no run."""
    with fake_prometheus(KNOWN, []) as address:
        good = announce(shared, "good", 1.0, address)
        odd = announce(shared, "odd", 2.0, address)
        file = shared / f"{PREFIX}odd" / "run.json"
        if content in ("link", "pipe", "none"):
            whole = file.rename(shared / "elsewhere")
            if content == "link":
                file.symlink_to(whole)
            if content == "pipe":
                os.mkfifo(file)
        else:
            file.write_text(content)
        (shared / f"{PREFIX}file").write_text("")
        (shared / f"{PREFIX}link").symlink_to(shared / f"{PREFIX}good")
        assert [run.run for run in live_runs()] == ["good"]
        good.end()
        odd.end()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder to another user")
def test_a_run_of_another_user_is_not_taken(shared: Path) -> None:
    """Who asks it would be told what somebody else wants."""
    run = announce(shared, "theirs", 1.0)
    os.chown(shared / f"{PREFIX}theirs", 4711, -1)
    assert live_runs() == []
    run.end()


def test_a_job_in_another_terminal_is_found(tmp_path: Path) -> None:
    """Its server by diagnose, and its ranks by stacks, without a flag; once it is over, nothing is found."""
    local = Local(tmp_path)
    (tmp_path / "rank.py").write_text(
        "import laggard, time\nlaggard.instrument()\nfor _ in range(1200):\n"
        "    with laggard.step(), laggard.phase('forward'):\n        time.sleep(.05)\n"
    )
    mine = {**local.environment, "LAGGARD_PROMETHEUS": ""}
    with local.start("--profile", "fast", "--run", "seen", "python", "rank.py") as process:

        def ask(*words: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-m", "laggard_cli.main", *words]
            return subprocess.run(command, cwd=tmp_path, env=mine, capture_output=True, text=True, check=False)

        def diagnosed() -> list[subprocess.CompletedProcess[str]]:
            found = ask("diagnose", "--folder", "runs")
            return [found] if not found.returncode and "seen" in found.stdout else []

        (found,) = until(diagnosed, seconds=40)
        stacks = ask("stacks", "--folder", "runs/seen")
        process.kill()
        process.communicate()
    assert found.stderr == "laggard: asks the local run seen (runs/seen)\n"
    assert stacks.stderr == "laggard: looks at the local run seen (runs/seen)\n"
    assert "rank.py:5" in stacks.stdout


def test_of_a_killed_run_only_its_own_folders_are_removed(shared: Path) -> None:
    """A record that names another folder, or that of a run at work, has nothing removed but itself."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    precious, at_work, servers = (shared.parent / name for name in ("home", "a/servers", "b/servers"))
    for number, named in enumerate((precious, at_work, servers)):
        named.mkdir(parents=True)
        folder = shared / f"{PREFIX}{gone.pid}-{number}"
        folder.mkdir()
        announcement = Announcement(folder)
        announcement.say(LiveRun("r", str(named.parent), str(folder), "http://127.0.0.1:1", str(named), 1.0))
        announcement.end()
        os.utime(folder, (0, 0))
    living = shared / f"{PREFIX}{os.getpid()}-living"
    living.mkdir()
    announcement = Announcement(living)
    announcement.say(LiveRun("s", str(at_work.parent), str(living), "http://127.0.0.1:1", str(at_work), 2.0))
    found = {folder.name.rpartition("-")[2]: removed for folder, removed in abandoned()}
    assert found == {"0": "", "1": "", "2": str(servers)}
    announcement.end()
