"""``laggard hang`` with answers of NCCL's RAS service beside the dumps: evidence, and no verdict."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.test_hang import hang
from tests.support.fake_ras import answer, communicator, member, world
from tests.support.recorded_job import RecordedJob

TITLE = "NCCL 2.29.2, 2026-03-01 13:06:53):"


def dumps(folder: Path, *, stops: int = 3) -> None:
    """Write the dumps of four ranks that wait for one in the second all_reduce."""
    RecordedJob({"0": (0, 1, 2, 3)}, [("0", "all_reduce")] * 2, stops={stops: 1}).write(folder, as_pickle=True)


def evidence(printed: str) -> list[str]:
    """Return the lines of RAS."""
    return printed.splitlines()[
        printed.splitlines().index(next(x for x in printed.splitlines() if "NCCL RAS (" in x)) :
    ]


def test_an_answer_confirms_whom_the_dumps_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Beside the verdict, with how far the rank has come; the exit code is that of the dumps."""
    dumps(tmp_path)
    (tmp_path / "ras.json").write_bytes(answer(world([2, 2, 2, 1])))
    code, printed, _ = hang(tmp_path, capsys)
    assert code == 0
    assert printed.splitlines()[2] == "Culprit: rank 3"
    assert evidence(printed) == [
        f"NCCL RAS (ras.json, {TITLE}",
        "  rank 3: at collective 1 of communicator 0xf00d, another member at 2",
    ]
    _, printed, _ = hang(tmp_path, capsys, "--json")
    name = "0xf00d 0xb7e7187447156001:0xb8242ed28a71381e"
    assert json.loads(printed)["ras"] == {
        "file": "ras.json",
        "nccl_version": "2.29.2",
        "time": "2026-03-01 13:06:53",
        "missing": [],
        "behind": [{"rank": 3, "communicator": name, "issued": 1, "most": 2}],
        "unnamed": 0,
        "partial": 0,
    }
    assert json.loads(printed)["left_out"] == {}


def test_an_answer_alone_is_no_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says who does not answer; the largest communicator is that of the job."""
    small = communicator(7, [member(0, 0, 3), member(1, 1, 4)])
    saved = b"SERVER PROTOCOL 2\nOK\n" + answer(small, world([2] * 8, {2: True, 5: False, 6: False}))
    (tmp_path / "answer_of_rank_3").write_bytes(saved)
    code, printed, _ = hang(tmp_path, capsys)
    assert code == 1
    assert printed.splitlines() == [
        "0 dumps of 0 ranks",
        "",
        "No verdict: there is no dump, and NCCL RAS alone proves nothing.",
        "",
        f"NCCL RAS (answer_of_rank_3, {TITLE}",
        "  ranks 5-6: not answering",
        "  rank 2: given up after a minute without an answer",
        "  not compared, for lack of answers or common calls: 1 of 2 communicators",
    ]


def test_where_ranks_have_no_communicator_over_all_nobody_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A number in a communicator is no rank of the job."""
    (tmp_path / "ras.json").write_bytes(answer(world([2, 2, 1])))
    dumps(tmp_path)
    _, printed, _ = hang(tmp_path, capsys)
    assert evidence(printed)[1:] == ["  1 more behind, of unknown rank: no communicator is over all 4 ranks"]


def test_equal_counts_prove_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And it says so."""
    (tmp_path / "ras.json").write_bytes(answer(world([2] * 4)))
    assert evidence(hang(tmp_path, capsys)[1])[1:] == ["  no rank stands out; equal counts prove nothing"]


def test_the_newest_answer_that_can_be_read_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Others are left out, each with the reason; without any that can be read, nothing of RAS is said."""
    dumps(tmp_path)
    said = {
        "ras_1.json": answer(world([2] * 4)),
        "ras_2.json": answer(world([2, 2, 2, 1])),
        "ras_3.json": answer(world([2] * 4, {3: False}), version="2.28.9", comma=False),
    }
    for age, (name, data) in enumerate(reversed(said.items())):
        (tmp_path / name).write_bytes(data)
        os.utime(tmp_path / name, (1_700_000_000 - age, 1_700_000_000 - age))
    code, printed, _ = hang(tmp_path, capsys)
    malformed = "malformed JSON, as NCCL 2.28 writes it where a rank is missing; NCCL 2.29 does not"
    assert code == 0
    assert printed.splitlines()[1:3] == [
        f"  left out ras_3.json: {malformed}",
        "  left out ras_1.json: there is a newer answer of NCCL RAS",
    ]
    assert evidence(printed)[0] == f"NCCL RAS (ras_2.json, {TITLE}"
    for name in ("ras_1.json", "ras_2.json"):
        (tmp_path / name).unlink()
    assert "NCCL RAS (" not in hang(tmp_path, capsys)[1]


def test_no_dump_and_no_answer_that_can_be_read_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, with the reason."""
    (tmp_path / "ras.json").write_bytes(answer(world([2] * 4))[:-20])
    code, printed, error = hang(tmp_path, capsys)
    assert (code, printed) == (2, "")
    assert error.startswith(
        f"laggard hang: error: {tmp_path}: no dump of a flight recorder in it: ras.json: malformed JSON: "
    )
    assert error.count("\n") == 1
