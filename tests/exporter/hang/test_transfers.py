"""Sends and receives: a stage that does not post its side, and sides that do not agree."""

from __future__ import annotations

from typing import Any

import pytest

from laggard_exporter.hang.verdict import Reason
from tests.exporter.hang.recorder import WORLD, Recorder, named, verdict


def pipeline(form: str, stops: int, place: int) -> dict[int, dict[str, Any]]:
    """Dumps of four stages of which one stops before a transfer of the third micro-batch: `recv` or `send`."""
    dumps: dict[int, dict[str, Any]] = {}
    for rank in range(4):
        recorder = Recorder(WORLD)
        calls = [f"recv {rank}<-{rank - 1}"] * (rank > 0) + [f"send {rank}->{rank + 1}"] * (rank < 3)
        for name in calls * 2:
            recorder.transfer("0", name, batched=form == "batched")
        # What is upstream waits to send its next one; what is downstream waits to receive.
        open_call = calls[-1] if rank < stops else calls[0]
        if rank == stops:
            for name in calls[:place]:
                recorder.transfer("0", name, batched=form == "batched")
        elif rank == stops - 1 and place:
            recorder.transfer("0", open_call, batched=form == "batched")
            recorder.call("0", state="scheduled")
        else:
            recorder.transfer("0", open_call, batched=form == "batched", state="scheduled")
        dumps[rank] = recorder.dump(keep=4)
    return dumps


@pytest.mark.parametrize("form", ["plain", "batched"])
@pytest.mark.parametrize(("stops", "place"), [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0)])
def test_a_stage_that_does_not_post_its_side_is_named(form: str, stops: int, place: int) -> None:
    """Its neighbours wait for it in a send or a receive, and the stages behind them for these."""
    found = verdict(pipeline(form, stops, place))
    assert named(found) == {stops: Reason.OUTSIDE}
    assert found.remarks == ()


def test_a_send_and_its_receive_are_told_with_the_ranks_of_the_job() -> None:
    """A recorder names members of a group by their places in it."""
    groups = {"0": ("default_pg", (0, 1, 2, 3)), "7": ("pp", (1, 3))}
    waiting, idle = Recorder(groups), Recorder(groups)
    waiting.transfer("7", "recv 1<-0", state="scheduled")
    found = verdict({3: waiting.dump(), 1: idle.dump()}, 4)
    assert named(found) == {1: Reason.OUTSIDE}
    assert (str(found.culprits[0].wait), found.culprits[0].newest) == ("recv 3<-1 of group 7 (pp)", None)


def test_both_sides_of_a_transfer_blame_nobody() -> None:
    """The transfer itself does not end."""
    dumps: dict[int, dict[str, Any]] = {}
    for rank, name in enumerate(["send 0->1", "recv 1<-0"]):
        recorder = Recorder({"0": ("default_pg", (0, 1))})
        recorder.transfer("0", name, state="started")
        dumps[rank] = recorder.dump()
    found = verdict(dumps)
    assert named(found) == {}
    assert found.remarks == (
        "both sides have issued recv 1<-0 of group 0 (default_pg): no rank is missing, look at the network",
    )


def test_sides_of_a_transfer_that_differ_in_size_are_told() -> None:
    """Neither is wrong by itself, so nobody is named."""
    dumps: dict[int, dict[str, Any]] = {}
    for rank, name in enumerate(["send 0->1", "recv 1<-0"]):
        recorder = Recorder({"0": ("default_pg", (0, 1))})
        recorder.transfer("0", name, state="started")
        dumps[rank] = recorder.dump()
    dumps[1]["entries"][-1]["input_sizes"] = [[9]]
    found = verdict(dumps)
    assert (named(found), found.remarks) == (
        {},
        (
            (
                "recv 1<-0 of group 0 (default_pg) is of Float[9], and send 0->1 of Float[8]: "
                "the sides of a transfer must agree"
            ),
        ),
    )
