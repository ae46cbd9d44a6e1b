"""What commands print: at 80 and 120 columns, piped, without colours, and where an encoding lacks a character."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from rich.cells import cell_len

from tests.cli.terminals import is_as_it_was, on_terminal, piped, uncoloured
from tests.support.fake_prometheus import fake_prometheus

RUNBOOK = "https://github.com/laggard-project/laggard/blob/main/rules/runbooks/TrainingStraggler.md"


def series() -> dict[str, Any]:
    """Four ranks, of which the third is slow; the name of the run is Japanese."""
    run = {"training_run": "夜-7b"}

    def ranks(*values: float) -> list[tuple[dict[str, str], float]]:
        return [({**run, "training_rank": str(rank)}, value) for rank, value in enumerate(values)]

    return {
        "count by (cluster, training_run)": [(run, 4.0)],
        "run:training_ranks_live:count": [(run, 4.0)],
        "run:training_ranks_expected:max": [(run, 4.0)],
        "run:training_step_seconds:mean": [(run, 0.175)],
        "run:training_slowdown:ratio": [(run, 1.4)],
        "run:training_data_share:ratio": [(run, 0.06)],
        "run_rank:training_step_own_seconds:compared": ranks(0.1, 0.1, 0.15, 0.1),
        "run_rank_phase:training_wait_seconds:mean": ranks(0.075, 0.075, 0.025, 0.075),
    }


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A server with one run and the verdict on its slow rank, three minutes old."""
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 190))
    labels = {
        "alertname": "TrainingStraggler", "severity": "warning", "training_run": "夜-7b", "training_rank": "2",
        "training_phase": "data", "host_name": "node-1",
    }  # fmt: skip
    said = {
        "description": "Rank 2 of run 夜-7b on host node-1 takes 1.50 times as long as its peers for its own work "
        "in a step, 150ms against 100ms, and they wait for it. Most of the difference is in phase data.",
        "recommendation": "Compare the DataLoader of this rank with that of its peers: its workers, the CPU share and "
        "the storage of its host, the size of its shard.",
        "runbook_url": RUNBOOK,
    }
    alert = {"labels": labels, "annotations": said, "state": "firing", "activeAt": since, "value": "1.5"}
    with fake_prometheus(series(), [alert]) as found:
        yield found


@pytest.mark.parametrize("columns", [80, 120])
def test_diagnose_on_a_terminal(columns: int, address: str) -> None:
    """Lines fit, but for an address, which is never broken; the culprit has the colour of its verdict."""
    shown = on_terminal(columns, "diagnose", "--prometheus", address)
    plain = uncoloured(shown)
    is_as_it_was(f"diagnose-{columns}.txt", plain)
    assert all(len(line) <= columns or RUNBOOK in line for line in plain.splitlines())
    (row,) = [line for line in shown.splitlines() if "█████████████████████░░░" in line]
    assert "\x1b[1;33m" in row
    assert shown.count("\x1b[1;33m") == 3


def test_diagnose_into_a_pipe(address: str) -> None:
    """No line is wrapped or padded, and nothing is coloured; watch, which reads a pipe, says how wide it is."""
    watched = piped("diagnose", "--prometheus", address, COLUMNS="80")
    is_as_it_was("diagnose-80.txt", watched)
    text = piped("diagnose", "--prometheus", address)
    is_as_it_was("diagnose-piped.txt", text)
    assert [line for line in text.splitlines() if line != line.rstrip()] == []
    assert "\x1b" not in text


@pytest.mark.parametrize("columns", [20, 40])
def test_an_address_is_whole_on_a_narrow_terminal(columns: int, address: str) -> None:
    """A terminal goes on in its next line by itself, and knows that it is one."""
    assert f" {RUNBOOK}\n" in uncoloured(on_terminal(columns, "diagnose", "--prometheus", address))


@pytest.mark.parametrize("settings", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["NO_COLOR", "dumb"])
def test_no_colour_where_none_is_wanted(settings: dict[str, str], address: str) -> None:
    """NO_COLOR and TERM=dumb mean what they mean elsewhere."""
    shown = on_terminal(80, "diagnose", "--prometheus", address, settings=settings)
    assert "\x1b[1;33m" not in shown
    assert "█ own time, ░ waits for peers" in shown


@pytest.mark.parametrize(
    "settings",
    [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}],
    ids=["ascii", "C"],
)
def test_an_encoding_without_the_characters_is_no_error(settings: dict[str, str], address: str) -> None:
    """Bars and marks have a stand-in, and what somebody else named has a question mark."""
    text = piped("diagnose", "--prometheus", address, **settings)
    is_as_it_was("diagnose-ascii.txt", text)
    assert "R,R..." in piped("stacks", "--help", **settings)


@pytest.mark.parametrize("command", [["top", "--every", "60s"], ["diagnose", "--watch", "60"]], ids=["top", "watch"])
@pytest.mark.parametrize("columns", [80, 120])
def test_the_live_view_of_a_terminal(columns: int, command: list[str], address: str) -> None:
    """On its alternate screen and no larger; keys sort and open a rank, and the terminal is then as it was."""
    keys = [("q quit", "w"), ("q quit", "n"), ("q quit", "2"), ("rank 2_", "\r"), ("the median of 4", "q")]
    shown = on_terminal(columns, *command, "--prometheus", address, lines=24, keys=keys)
    assert shown.startswith("\x1b[?1049h")
    assert shown.endswith("\x1b[?25h\x1b[?1049l")
    screens = [uncoloured(each).replace("\r", "").splitlines() for each in shown.split("\x1b[H")[2:]]
    assert len(screens) == 5
    for screen in screens:
        assert len(screen) == 24
        assert max(map(cell_len, screen)) <= columns
    orders = [[line.split()[0] for line in screen if "█" in line and "own time" not in line] for screen in screens]
    assert orders[0][:1] == ["2"]
    assert orders[1][:1] in (["0"], ["1"], ["3"])
    assert orders[2][:1] == ["0"]
    assert orders[4] == ["2"]
    text = "\n".join(line.rstrip() for line in screens[0])
    is_as_it_was(f"top-{columns}.txt", re.sub(r"as of [\d:]+", "as of 22:43:10", text) + "\n")


def test_watching_into_a_pipe_prints_no_copies(address: str) -> None:
    """A block with its time, and no other while nothing changes."""
    with subprocess.Popen(
        [sys.executable, "-m", "laggard_cli.main", "diagnose", "--watch", "0.05", "--prometheus", address],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(1.5)
        process.terminate()
        rest = process.stdout.read()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\n", first)
    assert rest.count("run 夜-7b  4 of 4 ranks") == 1
    assert rest.count("TrainingStraggler  warning") == 1
