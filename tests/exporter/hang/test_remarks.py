"""Where nobody is named: what is said instead, once."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from laggard_exporter.hang.dump_file import parse
from laggard_exporter.hang.verdict import judge
from tests.exporter.hang.recorder import WORLD, Recorder, named, verdict


def test_one_remark_says_what_all_have_issued() -> None:
    """Not one for each group, and none beside a culprit."""
    groups = {str(number): (f"g{number}", (0, 1, 2, 3)) for number in range(1, 23)}
    recorder = Recorder({**groups, **WORLD})
    for group in groups:
        recorder.call(group, state="started")
    dumps = dict.fromkeys(range(4), recorder.dump())
    assert verdict(dumps).remarks == (
        (
            "all 4 members have issued all_reduce 1 of group 1 (g1), and of 21 more collectives: "
            "no rank is missing, look at the network"
        ),
    )
    recorder.call("0", state="started")
    missing = {**recorder.dump(), "entries": recorder.entries[:-1], "pg_status": {}}
    found = verdict({**dict.fromkeys(range(3), recorder.dump()), 3: missing})
    assert [remark for remark in found.remarks if "network" in remark] == []


def test_who_is_late_and_neither_waits_nor_is_idle_is_told_with_the_reason() -> None:
    """In a transfer of which both sides are issued, or in a collective of which all are: one line each."""
    groups = {"0": ("default_pg", tuple(range(5))), "7": ("pair", (2, 3))}
    dumps: dict[int, dict[str, Any]] = {}
    for rank in range(5):
        recorder = Recorder(groups)
        if rank < 2:
            recorder.transfer("0", "recv 1<-0" if rank else "send 0->1", state="scheduled")
        elif rank < 4:
            recorder.call("7", state="started")
        else:
            recorder.call("0", state="started")
        dumps[rank] = recorder.dump()
    found = verdict(dumps)
    assert (named(found), found.remarks) == (
        {},
        (
            "ranks 0-1 are in a send or receive that both sides have issued",
            "ranks 2-3 are in a collective of which no member is known to be missing",
        ),
    )


@pytest.mark.parametrize("skipped", [False, True])
def test_of_devices_that_hang_it_is_said_what_would_tell(skipped: bool) -> None:  # noqa: FBT001 - of pytest
    """As dumped by four ranks on a real GPU: the device of one hangs, or it left a call out, and its pair waits for it.

    Torch records no start of a device unless it is told to.
    """
    groups = {"0": ("default_pg", (0, 1, 2, 3)), "1": ("", (0, 1)), "2": ("", (2, 3))}
    dumps: dict[int, dict[str, Any]] = {}
    for rank in range(4):
        recorder = Recorder(groups)
        if rank < 2:
            recorder.call("0", state="scheduled")
            recorder.call("1", state="scheduled")
        else:
            if skipped and rank == 3:
                recorder.call("0", state="scheduled")
            recorder.call("2", state="scheduled")
        dumps[rank] = recorder.dump()
    found = verdict(dumps)
    said = (
        "in a collective of which no member is known to be missing; no device is known to have begun, which "
        "TORCH_NCCL_ENABLE_TIMING=1 records"
    )
    assert (named(found), found.remarks) == ({}, (f"{'rank 2 is' if skipped else 'ranks 2-3 are'} {said}",))


def test_of_a_subgroup_of_gloo_only_those_are_known_that_have_used_it() -> None:
    """So nobody says that no rank is missing."""
    dumps: dict[int, dict[str, Any]] = {}
    for rank in range(3):
        recorder = Recorder({"0": ("default_pg", (0, 1, 2)), "1": ("undefined", (0, 1, 2))}, backend="gloo")
        if rank < 2:
            recorder.call("1", state="scheduled")
        dumps[rank] = {**recorder.dump(), "pg_config": {"": {"name": "", "desc": "", "ranks": "[0, 1]"}}}
    found = verdict(dumps)
    assert (named(found), found.remarks) == (
        {},
        ("ranks 0-1 have issued all_reduce 1 of group 1: who else is in the group is not known",),
    )


def test_what_members_call_differently_is_all_that_is_said() -> None:
    """What else is open waits for that, and not for the network."""
    groups = {"0": ("default_pg", (0, 1, 2, 3)), "1": ("tp", (0, 1)), "2": ("tp", (2, 3))}
    dumps: dict[int, dict[str, Any]] = {}
    for rank in range(4):
        recorder = Recorder({name: group for name, group in groups.items() if rank in group[1]})
        recorder.call(
            "1" if rank < 2 else "2", state="started" if rank < 2 else "completed", size=64 + 64 * (rank == 1)
        )
        recorder.call("0", state="scheduled")
        dumps[rank] = recorder.dump()
    found = verdict(dumps)
    (remark,) = found.remarks
    assert (named(found), remark.partition(" rank ")[0]) == ({}, "in all_reduce 1 of group 1 (tp)")
    for rank in (0, 1):
        recorder = Recorder(groups)
        recorder.transfer("0", "recv 1<-0" if rank else "send 0->1", state="started")
        recorder.entries[-1]["input_sizes"] = recorder.entries[-1]["output_sizes"] = [[8 + rank]]
        recorder.call("0", state="scheduled")
        dumps[rank] = recorder.dump()
    found = verdict(dumps)
    (remark,) = found.remarks
    assert (named(found), remark.rpartition(": ")[2]) == ({}, "the sides of a transfer must agree")


def test_calls_that_gloo_does_not_record_are_said() -> None:
    """As of a monitored barrier, which is made of sends and receives: a live dump says by its name who is in a call."""
    recorder = Recorder(WORLD, backend="gloo")
    recorder.call("0")
    dump = parse(json.dumps(recorder.dump()).encode(), 0)
    dumps = {rank: replace(dump, rank=rank, calling=rank != 3) for rank in range(4)}
    remark = "ranks 0-2 are in a call of torch.distributed that their recorders do not show, and rank 3 is in none"
    assert judge(dumps).remarks == (remark,)
    assert judge({rank: replace(each, calling=False) for rank, each in dumps.items()}).remarks == (
        "no collective is waited in",
    )


@pytest.mark.parametrize(
    ("first", "why"),
    [
        ("tp", "waits for others in another call"),
        ("send", "waits for others in another call"),
        ("recv", "is in a send or receive"),
    ],
)
def test_what_makes_a_device_late_is_said_as_it_is(first: str, why: str) -> None:
    """Of one group nobody reads of another one."""
    groups = {**WORLD, **({"1": ("tp", (2, 3))} if first == "tp" else {})}
    dumps: dict[int, dict[str, Any]] = {}
    for rank in range(4):
        recorder = Recorder(groups if rank > 1 else WORLD)
        if first == "tp" and rank == 2:
            recorder.call("1", state="started")
        elif first == "send" and rank == 2:
            recorder.transfer("0", "send 2->3", state="started")
        elif first == "recv" and rank == 2:
            recorder.transfer("0", "recv 2<-?", state="started")
        recorder.call("0", state="scheduled" if rank == 2 else "started")
        dumps[rank] = recorder.dump()
    found = verdict(dumps)
    assert f"rank 2 {why}" in found.remarks
