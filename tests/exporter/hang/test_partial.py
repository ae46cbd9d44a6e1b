"""Dumps that lack something: keys, entries, a recorder of several."""

from __future__ import annotations

import json
from typing import Any

import pytest

from laggard_exporter.hang.dump_file import DumpError, parse
from laggard_exporter.hang.verdict import Reason
from tests.exporter.hang.recorder import WORLD, Recorder, job, named, verdict

KEYS = ["record_id", "pg_id", "p2p_seq_id", "time_created_ns", "input_sizes", "input_dtypes", "output_sizes"]
KEYS += ["output_dtypes", "retired", "timeout_ms", "is_p2p"]


@pytest.mark.parametrize("key", [*KEYS, "pg_status", "pg_config", "version"])
@pytest.mark.parametrize("everywhere", [True, False])
def test_a_missing_key_loses_no_dump(key: str, *, everywhere: bool) -> None:
    """What else is there is enough to name the rank that is missing."""

    def program(recorder: Recorder, rank: int) -> None:
        recorder.call("0")
        if rank != 2:
            recorder.call("0", state="started")

    dumps = job(program)
    for rank, dump in dumps.items():
        if everywhere or rank == 2:
            for each in [dump, *dump["entries"]]:
                each.pop(key, None)
    assert named(verdict(dumps)) == {2: Reason.OUTSIDE}


@pytest.mark.parametrize("key", ["input_dtypes", "input_sizes", "output_sizes"])
def test_a_size_that_one_dump_does_not_have_is_no_difference(key: str) -> None:
    """Nobody is blamed for what torch has not written."""
    dumps = job(lambda each, _: each.call("0", "barrier", state="started"))
    dumps[1]["entries"][-1].pop(key)
    dumps[1]["entries"][-1].pop(key.replace("input", "output"), None)
    assert named(verdict(dumps)) == {}


@pytest.mark.parametrize("bad", [7, None, {}, {"process_group": 1}, {"collective_seq_id": "x"}])
def test_entries_that_cannot_be_read_blame_nobody(bad: Any) -> None:
    """The rest of the dump counts, but not what it does not have."""

    def program(recorder: Recorder, rank: int) -> None:
        recorder.call("0")
        if rank != 2:
            recorder.call("0", state="started")

    dumps = job(program)
    last = dumps[2]["entries"][-1]
    dumps[2]["entries"].append({**last, **bad} if isinstance(bad, dict) and bad else bad)
    found = verdict(dumps)
    assert (named(found), found.remarks) == ({}, ("rank 2 has a dump of which not all entries can be read",))


def test_a_recorder_without_entries_says_that_nothing_was_issued() -> None:
    """As JSON it leaves the key out: a rank before its first collective is named all the same."""
    dumps = job(lambda each, rank: each.call("0", state="started") if rank != 2 else None)
    assert "entries" not in dumps[2]
    found = verdict(dumps)
    assert named(found) == {2: Reason.OUTSIDE}
    assert found.culprits[0].newest == 0


def test_a_recorder_that_is_switched_off_blames_nobody() -> None:
    """Its counters say that there were collectives of which it has no entry."""
    dumps = job(lambda each, _: each.call("0", state="started"))
    del dumps[2]["entries"]
    dumps[2]["pg_status"]["0"]["last_enqueued_collective"] = "45264"
    found = verdict(dumps)
    assert (named(found), found.remarks) == (
        {},
        ("all 4 members have issued all_reduce 1 of group 0 (default_pg): no rank is missing, look at the network",),
    )


def test_recorders_of_one_process_are_read_apart() -> None:
    """One has no entries; two that both record a call do not make two calls of it."""
    waiting, empty = Recorder(WORLD), Recorder(WORLD)
    waiting.call("0", state="started")
    for parts in ([empty.dump(), waiting.dump()], [waiting.dump(), waiting.dump()], [{}, 7, waiting.dump()]):
        dump = parse(json.dumps({"dumps": parts}).encode(), 0)
        assert [(each.sequence, each.name) for each in dump.pending] == [(1, "all_reduce")]
        assert not dump.truncated
    with pytest.raises(DumpError, match="no dump of a flight recorder"):
        parse(b'{"dumps": [{}, 7]}', 0)
