"""Dumps of several attempts, jobs and moments, and calls that were given up: what they do not prove."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard_exporter.hang.dump_file import parse
from laggard_exporter.hang.verdict import Reason, Verdict, judge
from tests.exporter.hang.recorder import SECOND, WORLD, Recorder, job, named, verdict


@settings(max_examples=100, deadline=None)
@given(st.integers(3, 12), st.integers(0, 11), st.integers(1, 60), st.integers(1, 10**6))
def test_a_dump_of_an_earlier_attempt_is_never_the_culprit(ranks: int, old: int, calls: int, seconds: int) -> None:
    """It stopped earlier, by number and by time: nothing is known of this attempt there."""
    old %= ranks
    members = {"0": ("default_pg", tuple(range(ranks)))}
    dumps: dict[int, dict[str, Any]] = {}
    for rank in range(ranks):
        recorder = Recorder(members, start=0 if rank == old else (seconds + calls + 2) * SECOND)
        for _ in range(calls + (rank != old)):
            recorder.call("0")
        if rank != old:
            recorder.call("0", state="started")
        dumps[rank] = recorder.dump()
    found = verdict(dumps)
    assert named(found) == {}
    remark = f"the dump of rank {old} is of an earlier attempt, so nothing is known there of this one"
    assert found.remarks[0] == remark


def test_a_group_that_numbers_its_members_otherwise_says_nothing_of_ranks() -> None:
    """Replicas of a fault-tolerant job have their own numbers in groups across the job."""
    dumps: dict[int, dict[str, Any]] = {}
    for rank in (4, 5):
        recorder = Recorder({"0": ("torchft_quorum_3", (0, 1))})
        recorder.call("0", state="started")
        dumps[rank] = recorder.dump()
    assert named(verdict(dumps)) == {}


def test_what_was_given_up_is_not_done() -> None:
    """After an abort torch retires what had not ended; or the abort itself ends it, later than its timeout."""

    def program(recorder: Recorder, rank: int) -> None:
        recorder.call("0")
        if rank != 2:
            recorder.call("0", state="started")

    for change in (
        {"retired": True},
        {"retired": True, "state": "completed", "time_discovered_completed_ns": 1_700_000_700 * SECOND},
    ):
        dumps = job(program)
        for rank, dump in dumps.items():
            if rank != 2:
                dump["entries"][-1] |= change
        assert named(verdict(dumps)) == {2: Reason.OUTSIDE}


def test_what_is_over_before_all_have_issued_it_is_told() -> None:
    """Gloo retires what it gives up, and does not say how it ended."""

    def program(recorder: Recorder, rank: int) -> None:
        for _ in range(2 if rank == 1 else 3):
            recorder.call("0")

    found = verdict(job(program, 3))
    assert (named(found), found.remarks) == (
        {},
        (
            (
                "collective 3 of group 0 (default_pg) is over on some members, and rank 1 has not issued it: "
                "it was aborted, or the dumps are of different moments"
            ),
        ),
    )


def test_a_dump_that_was_written_before_others_went_on_blames_nobody() -> None:
    """Nobody ends a collective that a member has not issued: that member has issued it since."""

    def program(recorder: Recorder, rank: int) -> None:
        for _ in range(2 if rank == 1 else 4):
            recorder.call("0")
        if rank == 3:
            recorder.call("0", state="started")

    found = verdict(job(program))
    assert named(found) == {0: Reason.OUTSIDE, 2: Reason.OUTSIDE}
    assert found.remarks == ("rank 1 wrote its dump before others ended collectives of group 0 (default_pg)",)


@pytest.mark.parametrize("fresh", [(), (3,), (0, 3)])
@pytest.mark.parametrize("keep", [3, 2000])
def test_groups_that_a_process_made_again_count_from_their_beginning(fresh: tuple[int, ...], keep: int) -> None:
    """After a restart in place they have their old names and new numbers, and only fresh processes lack old entries."""
    dumps: dict[int, dict[str, Any]] = {}
    for rank in range(4):
        recorder = Recorder(WORLD, start=50 * SECOND if rank in fresh else 0)
        if rank not in fresh:
            for _ in range(50):
                recorder.call("0")
            recorder.restart()
        recorder.call("0")
        if rank != 1:
            recorder.call("0", state="started")
        dumps[rank] = recorder.dump(keep=keep)
        if rank not in fresh:
            dumps[rank]["pg_status"]["0"] = {"last_enqueued_collective": 50}
    assert named(verdict(dumps)) == {1: Reason.OUTSIDE}


EARLY = "the dump of rank 2 is of a moment before others went on, so what is open there now is not known"


@pytest.mark.parametrize("waits_for", [1, None])
def test_what_was_open_before_others_went_on_blames_nobody(waits_for: int | None) -> None:
    """In a collective, or in a receive from a rank that has long sent: the others are done with later collectives."""
    dumps: dict[int, dict[str, Any]] = {}
    for rank in range(4):
        recorder = Recorder(WORLD)
        recorder.call("0")
        if rank == 2 and waits_for is not None:
            recorder.transfer("0", "recv 2<-1", state="started")
        else:
            recorder.call("0", state="started" if rank == 2 else "completed")
        for _ in range(2 * (rank != 2)):
            recorder.call("0")
        if rank not in (2, 3):
            recorder.call("0", state="started")
        dumps[rank] = recorder.dump()
    found = verdict(dumps)
    assert (named(found), found.remarks[0]) == ({3: Reason.OUTSIDE}, EARLY)


def test_a_file_that_was_written_before_others_made_calls_blames_nobody() -> None:
    """Its rank may have gone on, as those of a watchdog that gives up one rank after the other."""

    def program(recorder: Recorder, rank: int) -> None:
        recorder.call("0")
        if rank != 2:
            recorder.now += 60 * SECOND
            recorder.call("0", state="started")

    dumps = {rank: parse(json.dumps(dump).encode(), rank) for rank, dump in job(program).items()}
    written = dumps[2].span[1] + 10 * SECOND
    assert named(judge(dumps)) == {2: Reason.OUTSIDE}
    found = judge({**dumps, 2: replace(dumps[2], written=written)})
    assert (named(found), found.remarks[0]) == ({}, EARLY)
    assert named(judge({**dumps, 2: replace(dumps[2], written=written + 600 * SECOND)})) == {2: Reason.OUTSIDE}


def written(dumps: dict[int, dict[str, Any]], seconds: float) -> Verdict:
    """Judge dumps whose files are younger by these seconds than the newest call of all."""
    parsed = {rank: parse(json.dumps(dump).encode(), rank) for rank, dump in dumps.items()}
    at = max(dump.span[1] for dump in parsed.values()) + round(seconds * SECOND)
    return judge({rank: replace(dump, written=at) for rank, dump in parsed.items()})


def late(recorder: Recorder, rank: int) -> None:
    """Rank 2 has not made the call in which the others wait; calls pause for a second."""
    for _ in range(3):
        recorder.call("0")
    if rank != 2:
        recorder.call("0", state="started")


def test_nobody_is_named_for_being_late_in_a_job_that_goes_on() -> None:
    """Calls had paused for longer than nobody has called anything when the dumps were written."""
    found = written(job(late), 0.25)
    assert (named(found), found.remarks[-1]) == (
        {},
        (
            "the newest call is from 0.25 s before the dumps were written, and calls paused for 1 s before: "
            "the job may have been going on, so nobody is named for being late"
        ),
    )
    assert named(written(job(late), 1.5)) == {2: Reason.OUTSIDE}


def test_a_pause_beyond_half_of_the_timeout_keeps_nobody_from_being_named() -> None:
    """As that of a compilation: a watchdog dumps after the timeout, and then the job stands still."""

    def program(recorder: Recorder, rank: int) -> None:
        recorder.call("0")
        recorder.now += 1200 * SECOND
        late(recorder, rank)

    assert named(written(job(program), 250)) == {}
    assert named(written(job(program), 590)) == {2: Reason.OUTSIDE}


def test_who_calls_something_else_is_named_at_any_moment() -> None:
    """That is no matter of being late."""

    def program(recorder: Recorder, rank: int) -> None:
        recorder.call("0")
        recorder.call("0", "broadcast" if rank == 2 else "all_reduce", state="started")

    assert named(written(job(program), 0.25)) == {2: Reason.MISMATCH}


def test_a_file_that_is_older_than_its_own_calls_says_nothing_of_moments() -> None:
    """An archive may keep times of another time zone."""
    assert named(written(job(late), -8 * 3600)) == {2: Reason.OUTSIDE}


def test_a_host_whose_clock_is_ahead_makes_no_other_dump_an_earlier_one() -> None:
    """Its file has the time of the folder that all dumps lie in."""

    def program(recorder: Recorder, rank: int) -> None:
        recorder.now += 3600 * SECOND * (rank == 0)
        late(recorder, rank)

    parsed = {rank: parse(json.dumps(dump).encode(), rank) for rank, dump in job(program).items()}
    at = parsed[1].span[1] + 700 * SECOND
    assert named(judge({rank: replace(dump, written=at) for rank, dump in parsed.items()})) == {2: Reason.OUTSIDE}
