"""The state file of a rank whose folder does not answer."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from laggard import _rank_file
from laggard._recorder import Recorder
from laggard.shared import statefile
from laggard.shared.environment import LAGGARD_STATE_DIR
from tests.support.facts import FACTS
from tests.support.waiting import until


def test_training_goes_on_where_the_folder_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Storage that does not answer holds training up for a moment alone; a file that comes too late is removed."""
    answers, file = threading.Event(), statefile.StateWriter

    def made_late(*arguments: object) -> statefile.StateWriter:
        assert answers.wait(10)
        return file(*arguments)  # pyright: ignore[reportArgumentType] - passed on

    monkeypatch.setenv(LAGGARD_STATE_DIR, str(tmp_path))
    monkeypatch.setattr(_rank_file, "_PATIENCE", 0.05)
    monkeypatch.setattr(statefile, "StateWriter", made_late)
    recorder = Recorder()
    rank = _rank_file.RankFile(recorder, [], FACTS)
    assert (rank.writer, recorder.words) == (None, None)
    assert f"state folder {tmp_path}: no answer within 0.05 s; training goes on" in caplog.text
    answers.set()
    until(
        lambda: not any(each.name == "laggard-state-file" for each in threading.enumerate()), "it still makes the file"
    )
    assert list(tmp_path.iterdir()) == []
