"""The comparison of who names what is fair: what the other tool says is read, waited for, and never made up."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from lab.benchmarks.diagnosis import __main__ as diagnosis

#: Stands for traceml-ai, which is no dependency of the tests: it writes a summary, as the real one does at the end.
_TRACEML = """#!{python}
import json, pathlib, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
given = sys.argv
folder = pathlib.Path(given[given.index("--logs-dir") + 1], given[given.index("--run-name") + 1])
folder.mkdir(parents=True)
(folder / "given.json").write_text(json.dumps(given[1:]))
{body}
"""


@pytest.fixture
def traceml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where a program of that name is looked for first."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    return folder / "traceml"


def _says(program: Path, body: str) -> None:
    program.write_text(_TRACEML.format(python=sys.executable, body=body), encoding="utf-8")
    program.chmod(0o755)


def _summary(section: str, kind: str, status: str, ranks: list[int] | None) -> str:
    told = {
        "primary_diagnosis": {"section": section, "kind": kind, "status": status},
        "step_time": {"diagnosis": {"ranks": ranks}},
    }
    return f"(folder / 'final_summary.json').write_text({json.dumps(json.dumps(told))})"


@pytest.mark.parametrize(
    ("told", "verdict"),
    [
        (("step_time", "INPUT_STRAGGLER", "INPUT STRAGGLER", [2]), "INPUT STRAGGLER rank 2"),
        (("step_time", "COMPUTE_STRAGGLER", "COMPUTE STRAGGLER", [1, 2]), "COMPUTE STRAGGLER rank 1, 2"),
        (("step_time", "BALANCED", "BALANCED", [2]), "BALANCED"),
        (("step_memory", "STRAGGLER", "MEMORY", [2]), "MEMORY"),
        (("step_time", "INPUT_STRAGGLER", "INPUT STRAGGLER", None), "INPUT STRAGGLER"),
    ],
)
def test_its_summary_is_its_verdict(
    traceml: Path, tmp_path: Path, told: tuple[str, str, str, list[int] | None], verdict: str
) -> None:
    """The status that it leads with, and the ranks where it names stragglers."""
    _says(traceml, _summary(*told))
    assert diagnosis.traceml("data", tmp_path / "logs") == [verdict]
    given = json.loads((tmp_path / "logs" / "data" / "given.json").read_text())
    assert given[:5] == ["run", "--mode", "summary", "--nproc-per-node", str(diagnosis.RANKS)]
    assert given[-5:] == [str(diagnosis.PROGRAM), "--args", "data", str(diagnosis.SLOW_RANK), str(diagnosis.STEPS)]


def test_without_a_summary_it_has_said_nothing(traceml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that hangs is interrupted as a person would, so that a summary can still be written; else it is silence."""
    monkeypatch.setattr(diagnosis, "SECONDS", 0.5)
    monkeypatch.setattr(diagnosis, "PATIENCE", 1.0)
    _says(traceml, "time.sleep(60)")
    began = time.monotonic()
    assert diagnosis.traceml("hang", tmp_path / "silent") == []
    assert time.monotonic() - began < 20
    # The other program has to be up before it can be interrupted.
    monkeypatch.setattr(diagnosis, "PATIENCE", 8)
    late = f"try:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    {_summary('system', 'HANG', 'STALLED', None)}"
    _says(traceml, late)
    assert diagnosis.traceml("hang", tmp_path / "late") == ["STALLED"]


def test_the_table_has_both_in_the_order_of_the_faults() -> None:
    """Who says nothing has a dash."""
    found = {
        "hang": {"laggard": ["Stalled rank 2 (9 s)", "RankFrozen rank 2 (9 s)"], "traceml": []},
        "none": {"laggard": [], "traceml": ["BALANCED"]},
    }
    assert diagnosis.table(found).splitlines()[2:] == [
        "| nothing | - | BALANCED |",
        "| rank 2 stands still | Stalled rank 2 (9 s); RankFrozen rank 2 (9 s) | - |",
    ]


def test_faults_are_added_to_those_of_before(
    traceml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is played again replaces its figures, and the others stay; the document gets the table."""
    _says(traceml, "")
    monkeypatch.setattr(diagnosis, "laggard", lambda fault, _: [f"{fault} anew"])
    monkeypatch.setattr(diagnosis, "traceml", lambda *_: [])
    before, document = tmp_path / "before.json", tmp_path / "page.md"
    before.write_text(json.dumps({name: {"laggard": ["old"], "traceml": ["old"]} for name in ("none", "data")}))
    document.write_text(f"# Page\n\n{diagnosis.BEGIN}\n\n{diagnosis.END}\n")
    given = ["--faults", "data", "--add", before, "--json", tmp_path / "now.json", "--document", document]
    monkeypatch.setattr("sys.argv", ["diagnosis", *map(str, given)])
    assert diagnosis.main() == 0
    rows = ["| nothing | old | old |", "| rank 2 slow in data loading | data anew | - |"]
    assert capsys.readouterr().out.splitlines()[2:] == rows
    assert [line for line in document.read_text().splitlines() if line in rows] == rows
    assert json.loads((tmp_path / "now.json").read_text())["data"] == {"laggard": ["data anew"], "traceml": []}


def test_without_the_other_tool_it_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, and nothing is played."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["diagnosis"])
    assert diagnosis.main() == 2
    expected = "benchmarks.diagnosis: traceml is not on PATH; pip install 'laggard[bench]'\n"
    assert capsys.readouterr().err == expected
