"""``laggard profile`` against ranks that really train, and what it says where it cannot work."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path

import pytest

from laggard.shared import control, statefile
from laggard_cli.main import main
from tests.support.facts import FACTS
from tests.support.launch import PROGRAMS, Launcher


def test_the_asked_ranks_write_profiles_and_train_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rank 0 of two is asked, writes exactly the asked steps, and has the losses of the one that was not asked."""
    end, output = tmp_path / "end", tmp_path / "out"
    output.mkdir()
    with Launcher(tmp_path) as launcher:
        ranks = {rank: launcher.fork(PROGRAMS / "on_request.py", end, RANK=str(rank)) for rank in (0, 3)}
        folder = launcher.state_directory

        def steps() -> list[int]:
            files = list(folder.glob("*.state")) if folder.exists() else []
            return [statefile.read(file).steps for file in files]

        deadline = time.monotonic() + 40
        while len(counts := steps()) < 2 or min(counts) < 10:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        place = ["--state-dir", str(folder), "--output", str(output)]
        assert main(["profile", "--run", "test", "--ranks", "0", "--steps", "3", *place]) == 0
        first, accepted, done = capsys.readouterr().out.splitlines()
        assert first == "asked rank 0 of test for 3 steps"
        assert accepted == "rank 0: profiles its next steps"
        (file,) = output.iterdir()
        assert done == f"rank 0: {file}"
        events = json.loads(file.read_text())["traceEvents"]
        counts = Counter(event["name"] for event in events if event.get("cat") == "cpu_op")
        assert counts["aten::square"] == 3
        assert [path.suffix for path in folder.iterdir()] == [".state"] * 2

        assert main(["profile", "--ranks", "1", *place]) == 2
        assert capsys.readouterr().err == (
            "laggard profile: error: rank 1 of test is not on this host; here are 0, 3\n"
        )
        end.touch()
        outputs = {process.communicate(timeout=60)[0] for process in ranks.values()}
        assert [process.returncode for process in ranks.values()] == [0, 0]
        assert len({output.split()[0] for output in outputs}) == 1


def test_a_rank_that_does_not_answer_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A rank whose laggard is gone, one that dies and one that refuses each get a line, and the exit code is 1."""
    code = (
        "import os, sys, time; from pathlib import Path; from dataclasses import replace;"
        "from laggard.shared import control, statefile; from tests.support.facts import FACTS;"
        "folder = Path(sys.argv[1]);"
        "writers = [statefile.StateWriter(folder, replace(FACTS, run='r', rank=rank)) for rank in (1, 2, 3)];"
        "print('ready', flush=True);"
        "path = folder / 'r-2.control'\n"
        "while not path.exists(): time.sleep(0.05)\n"
        "writers[0].close()\n"
        "asked = control.read_request(path)\n"
        "control.write(folder / 'r-2.reply', control.Reply(asked.id, 'failed', 'profile refused: busy'))\n"
        "time.sleep(30)\n"
    )
    with Launcher(tmp_path) as launcher:
        process = launcher.start("python", "-c", code, tmp_path / "s", PYTHONPATH=str(Path.cwd()))
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert main(["profile", "--run", "r", "--state-dir", str(tmp_path / "s"), "--timeout", "1.5"]) == 1
    assert sorted(capsys.readouterr().out.splitlines()) == [
        "asked ranks 1-3 of r for 5 steps",
        "rank 1: ended before its profile was there",
        "rank 2: profile refused: busy",
        "rank 3: does not answer",
    ]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state folder with the file of a rank that is dead: this process does not see its own lock."""
    writer = statefile.StateWriter(tmp_path / "state", FACTS)
    writer.close()
    return tmp_path / "state"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--steps", "0"], "--steps 0 is not 1 to 1000"),
        (["--steps", "many"], "argument --steps: invalid int value: 'many'"),
        (
            ["--state-dir", "/nowhere"],
            "--output is missing: the state folder /nowhere, its default, is not on this host",
        ),
        (["--output", "/nowhere"], "--output must be a folder, got /nowhere"),
        ([], "--run is needed: no run is alive in {state}"),
        (["--run", "r"], "--run 'r' is not on this host: no run is alive in {state}"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], expected: str, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line names the thing, its value and what there is instead."""
    try:
        code = main(["profile", "--state-dir", str(state), *arguments])
    except SystemExit as exit_:
        code = exit_.code
    captured = capsys.readouterr()
    assert (code, captured.out) == (2, "")
    assert captured.err == f"laggard profile: error: {expected.format(state=state)}\n"
    assert not list(state.glob(f"*{control.REQUEST_SUFFIX}"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file to another user")
def test_a_rank_of_another_user_is_not_asked(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line says whose the rank is; nothing is written."""
    snapshot = statefile.read

    def alive(path: Path) -> statefile.Snapshot:
        return __import__("dataclasses").replace(snapshot(path), alive=True)

    monkeypatch.setattr(statefile, "read", alive)
    (file,) = state.iterdir()
    os.chown(file, 4711, -1)
    monkeypatch.setattr(os, "geteuid", lambda: 4712)
    assert main(["profile", "--state-dir", str(state)]) == 2
    assert capsys.readouterr().err == (
        "laggard profile: error: rank 3 belongs to user 4711; ask as that user or as root\n"
    )
    assert list(state.iterdir()) == [file]
