"""``laggard.summary()``: the last steps in figures, without a server, and nothing that was not measured."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest
from rich.console import Console

import laggard
from laggard import _identity, _process
from laggard._steps import Step
from laggard._summary import Summary, summarize
from laggard.shared.phases import Phase
from tests.support.launch import PROGRAMS, Launcher

MS = 1_000_000
IDENTITY = _identity.Identity("<b>llama</b>", 3, 1, 8, 0, "", "gpt", "node-1")
SIGNALS = {"data": True, "forward": True, "backward": False, "optimizer": True, "communication": False}


def a_step(number: int, data: int = 2, excluded: str = "") -> Step:
    """A step of 10 ms, and of data beyond 2 ms: forward 5, communication 1, the rest other."""
    phases = [0] * len(Phase)
    phases[Phase.DATA], phases[Phase.FORWARD], phases[Phase.COMMUNICATION] = data * MS, 5 * MS, MS
    phases[Phase.OTHER] = 2 * MS
    begin = number * 100 * MS
    return Step(number, begin, begin + (8 + data) * MS, tuple(phases), (), excluded)


def test_what_is_counted_up() -> None:
    """Means, tails and shares of the steps that count; what cannot be told is absent and named."""
    steps = [a_step(1, 90, "warmup"), *(a_step(number) for number in range(2, 21)), a_step(21, 22)]
    summary = summarize(steps, IDENTITY, 21, SIGNALS)
    assert summary.as_dict() == {
        "run": "<b>llama</b>",
        "rank": 3,
        "world_size": 8,
        "steps": 21,
        "measured_steps": 20,
        "excluded_steps": {"warmup": 1},
        "not_measured": ["backward", "communication"],
        "step": {"mean_seconds": pytest.approx(0.011), "p95_seconds": pytest.approx(0.03)},
        "own": {"mean_seconds": pytest.approx(0.010), "p95_seconds": pytest.approx(0.029)},
        "phases": {
            "data": {
                "mean_seconds": pytest.approx(0.003),
                "p95_seconds": pytest.approx(0.022),
                "share": pytest.approx(3 / 11),
            },
            "forward": {
                "mean_seconds": pytest.approx(0.005),
                "p95_seconds": pytest.approx(0.005),
                "share": pytest.approx(5 / 11),
            },
            "other": {
                "mean_seconds": pytest.approx(0.002),
                "p95_seconds": pytest.approx(0.002),
                "share": pytest.approx(2 / 11),
            },
        },
    }
    assert str(summary).splitlines() == [
        "run <b>llama</b>, rank 3 of 8: the last 20 of 21 steps; excluded: 1 warmup",
        "             mean  share    p95",
        "  step      11 ms   100%  30 ms",
        "  own time  10 ms    91%  29 ms",
        "  data       3 ms    27%  22 ms  ███████",
        "  forward    5 ms    45%   5 ms  ███████████",
        "  other      2 ms    18%   2 ms  ████",
        "not measured here: backward, communication",
        "this rank alone; laggard diagnose compares it with the others",
    ]
    assert repr(summary) == str(summary)


def test_the_same_as_html_and_for_rich() -> None:
    """Both have every figure; the name of a run is text, whatever it is, and nothing is loaded from elsewhere."""
    summary = summarize([a_step(number) for number in range(3)], IDENTITY, 3, SIGNALS)
    html = summary._repr_html_()
    assert "<b>run &lt;b&gt;llama&lt;/b&gt;, rank 3 of 8: the last 3 of 3 steps</b>" in html
    assert html.count("<tr>") == html.count("</tr>") == 6
    assert html.count("<div") == html.count("</div>")
    assert ">5 ms<" in html
    assert ">50%<" in html
    assert "http" not in html
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(summary)
    drawn = console.export_text()
    assert "run <b>llama</b>, rank 3 of 8" in drawn
    assert "5 ms" in drawn
    assert "not measured here: backward, communication" in drawn


def test_few_steps_have_no_tail() -> None:
    """Of 19 steps the 95th percentile would be the longest."""
    summary = summarize([a_step(number) for number in range(19)], IDENTITY, 19, SIGNALS)
    assert summary.as_dict()["step"] == {"mean_seconds": pytest.approx(0.010)}
    assert "p95" in str(summary)


def test_no_figures_without_steps() -> None:
    """No step, and none that counts, are said in one line; there are no figures then, and all forms work."""
    none = summarize([], IDENTITY, 0, SIGNALS)
    assert str(none) == "laggard: no step has ended yet"
    warm = summarize([a_step(1, excluded="warmup"), a_step(2, excluded="compile")], IDENTITY, 2, SIGNALS)
    assert str(warm) == "laggard: none of the last 2 steps counts: 1 warmup, 1 compile"
    for each in (none, warm):
        assert not {"step", "own", "phases"} & each.as_dict().keys()
        assert each._repr_html_() == f"<div><b>{each}</b></div>"
        Console(file=io.StringIO()).print(each)


def test_a_short_cell_is_seen_at_once(launcher: Launcher) -> None:
    """Before, in, after and again: a summary has the last steps, and outlives uninstrument()."""
    printed = launcher.run_forked(PROGRAMS / "summary.py", OTEL_METRICS_EXPORTER="none")
    before, begun, during, after, again = json.loads(printed.splitlines()[-1])
    assert before["note"] in (
        "this process is not instrumented; call laggard.instrument() first",
        "no step has ended yet",
    )
    assert begun["note"] == "no step has ended yet"
    assert (during["steps"], during["measured_steps"], during["excluded_steps"]) == (40, 37, {"warmup": 3})
    assert during["step"]["mean_seconds"] == pytest.approx(0.0105, abs=0.002)
    assert during["phases"].keys() == {"data", "other"}
    assert during["phases"]["data"]["share"] == pytest.approx(0.4, abs=0.08)
    assert sum(phase["mean_seconds"] for phase in during["phases"].values()) == pytest.approx(
        during["step"]["mean_seconds"]
    )
    assert after == during
    assert again["note"] == "no step has ended yet"


def test_it_never_raises(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A mistake of ours is one line in the log, and a summary that says so."""

    def fail() -> Summary:
        raise RuntimeError("broken")

    monkeypatch.setattr(_process, "summary", fail)
    assert str(laggard.summary()) == "laggard: no summary could be made; the log has the reason"
    assert "broken" in caplog.text


def test_it_needs_neither_rich_nor_a_server() -> None:
    """What a training process imports stays as small as it is."""
    program = "import sys, laggard; laggard.instrument(); print(laggard.summary(), 'rich' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "laggard: no step has ended yet False\n"
