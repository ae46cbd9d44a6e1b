"""The evaluation in pieces: together they are the whole, and put together they count as one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lab.evaluation.__main__ import all_batches, options

_SMALL = ["--seeds", "1", "2", "--sizes", "2", "--scenarios", "healthy", "killed", "restart", "slow_forward"]


def test_pieces_are_the_whole() -> None:
    """Each batch is in one piece, and no piece is much longer than another."""
    whole = all_batches(options([*_SMALL, "--no-large"]))
    pieces = [all_batches(options([*_SMALL, "--no-large", "--part", f"{number}/3"])) for number in (1, 2, 3)]
    named = [sorted(case.job.run for batch, _ in each for case in batch) for each in (whole, *pieces)]
    assert sorted(run for piece in named[1:] for run in piece) == named[0]
    assert len(named[0]) == 8
    assert max(map(len, pieces)) - min(map(len, pieces)) <= 1


_PART = "is not K/N with K from 1 to N, as in 3/12"
_STEP = "is not a number of seconds from 0.01 to 60"


@pytest.mark.parametrize(
    ("option", "value", "meant"),
    [("--part", value, _PART) for value in ("0/3", "4/3", "3", "a/b")]
    + [("--step", value, _STEP) for value in ("0", "61", "nan", "long")],
)
def test_what_can_not_be_meant(option: str, value: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A piece that is none of so many, or a step that has no verdict, is refused, with what was meant to be given."""
    with pytest.raises(SystemExit) as ended:
        options([option, value])
    assert ended.value.code == 2
    assert f"argument {option}: {value!r} {meant}" in capsys.readouterr().err


def test_pieces_are_put_together(tmp_path: Path) -> None:
    """Results of pieces add up to one, in a file and in a document, without a rule engine and without new runs."""
    found = {
        "kind": "found",
        "alert": "TrainingStraggler",
        "rank": "0",
        "delay": 60.0,
        "phase_right": True,
        "info": False,
    }
    for seed in (1, 2):
        record = {
            "run": f"slow_forward-2-{seed}", "scenario": "slow_forward", "ranks": 2, "step": 0.1, "cv": 0.05,
            "facts": {"effect": 1.5}, "expected": ["TrainingStraggler"], "near": [], "others": [], "outcomes": [found],
        }  # fmt: skip
        piece = {"seeds": [seed], "failed_rules": {}, "records": [record]}
        (tmp_path / f"{seed}.json").write_text(json.dumps(piece), encoding="utf-8")
    document, whole = tmp_path / "document.md", tmp_path / "whole.json"
    document.write_text("<!-- figures: made by python -m lab.evaluation --document -->\n<!-- end of figures -->\n")
    command = ["--add", tmp_path / "1.json", tmp_path / "2.json", "--json", whole, "--document", document]
    done = subprocess.run(
        [sys.executable, "-m", "lab.evaluation", *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(whole.read_text(encoding="utf-8"))
    assert (result["seeds"], result["runs"], result["pooled"]["found"]) == ([1, 2], 2, 2)
    assert "Seeds 1 and 2: 2 runs of 1 scenarios." in document.read_text(encoding="utf-8")
