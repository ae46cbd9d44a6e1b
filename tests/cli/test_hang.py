"""``laggard hang``: from a folder of dumps to the rank that does not join."""

from __future__ import annotations

import errno
import gzip
import json
import os
import pickle
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from laggard.shared import statefile
from laggard.shared.statefile import StateWriter, boottime_ns
from laggard_cli.errors import CommandError
from laggard_cli.hang.command import collect
from laggard_cli.main import main
from laggard_exporter.hang.dump_file import read
from tests.exporter.hang.recorder import SECOND, Recorder
from tests.exporter.hang.recorder import job as recorded
from tests.exporter.support import dead_file, fresh, live_rank
from tests.support.launch import PROGRAMS, Launcher
from tests.support.recorded_job import RecordedJob, mesh


def hang(folder: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, str, str]:
    """Exit code and both outputs."""
    code = main(["hang", str(folder), *flags])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_the_verdict_reads_as_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The culprit, the reason, the collective, and who waits for whom in it."""
    groups = {"0": (0, 1, 2, 3), "7": (2, 3)}
    program = [("0", "all_reduce"), ("7", "broadcast"), ("0", "all_gather")]
    RecordedJob(groups, program, stops={3: 1}).write(tmp_path, as_pickle=True)
    code, printed, _ = hang(tmp_path, capsys)
    assert code == 0
    because = "ranks 0-1 wait in all_gather 2 of group 0 (default_pg), the newest that it issued there is 1"
    assert printed.splitlines() == [
        "4 dumps of 4 ranks",
        "",
        "Culprit: rank 3",
        f"  rank 3 is in no collective: {because}",
        "",
        "Who waits for whom:",
        "  all_gather 2 of group 0 (default_pg): ranks 0-1 wait for ranks 2-3",
        "  broadcast 1 of group 7 (mesh_7): rank 2 waits for rank 3",
    ]


def test_json_has_the_same_facts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For a program: culprits, waits, remarks, and what was left out."""
    RecordedJob({"0": (0, 1, 2)}, [("0", "all_reduce")] * 2, stops={1: 1}).write(tmp_path, as_pickle=False)
    (tmp_path / "notes.txt").write_text("not a dump")
    code, printed, _ = hang(tmp_path, capsys, "--json")
    assert code == 0
    assert json.loads(printed) == {
        "ranks": 3,
        "dumps": 3,
        "culprits": [
            {
                "rank": 1,
                "reason": "outside",
                "group": "0 (default_pg)",
                "sequence": 2,
                "newest": 1,
                "waiting": [0, 2],
            }
        ],
        "waits": [
            {
                "group": "0 (default_pg)",
                "sequence": 2,
                "operations": {"all_reduce": 2},
                "waiting": [0, 2],
                "missing": [1],
            }
        ],
        "remarks": [],
        "left_out": {"notes.txt": "the name does not say of which rank it is"},
    }


def test_without_a_verdict_the_exit_code_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A healthy job: code 1, and no rank in the text."""
    RecordedJob(*mesh(4, 2, steps=2)).write(tmp_path, as_pickle=True)
    assert hang(tmp_path, capsys)[:2] == (
        1,
        "4 dumps of 4 ranks\n\nNo verdict: the dumps do not tell who is to blame.\n  no collective is waited in\n",
    )


def test_damaged_and_hostile_files_are_left_out_and_the_rest_is_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line each with the reason; a pickle that asks for 100 GB of memo is stopped by its reader's limit."""
    RecordedJob({"0": tuple(range(8))}, [("0", "all_reduce")] * 2, stops={5: 1}).write(
        tmp_path, as_pickle=True, left_out={6, 7}
    )
    (tmp_path / "nccl_trace_rank_6").write_bytes(b"\x80\x02Nr\xff\xff\xff\xff.")
    (tmp_path / "nccl_trace_rank_7").write_bytes(pickle.dumps(os.getcwd))
    code, printed, _ = hang(tmp_path, capsys)
    lines = printed.splitlines()
    assert code == 0
    assert lines[:3] == [
        "6 dumps of 8 ranks",
        "  left out nccl_trace_rank_6: it needs more memory than a dump does",
        "  left out nccl_trace_rank_7: the pickle names posix.getcwd, a dump has only text, numbers and containers",
    ]
    assert "Culprit: rank 5" in lines


def test_of_two_dumps_of_a_rank_the_newer_counts(tmp_path: Path) -> None:
    """An older one, of a hang before, is left out by name."""
    RecordedJob({"0": (0, 1)}, [("0", "all_reduce")] * 2).write(tmp_path, as_pickle=True)
    old = tmp_path / "old_rank_1"
    old.write_bytes((tmp_path / "nccl_trace_rank_1").read_bytes())
    os.utime(old, (1, 1))
    dumps, left_out = collect(tmp_path)
    assert sorted(dumps) == [0, 1]
    assert left_out == {"old_rank_1": "rank 1 has a newer dump"}


@pytest.mark.parametrize(
    "name",
    [
        "nccl_trace_rank_{}",
        "dump.{}",
        "rank_{}.host1.json",
        "host_rank0_{}",
        "node1_local_rank_0_rank_{}.pickle",
        "RANK{}_of_4.pkl",
        "nccl_trace_rank_{}_2026-03-01T13-06-53",
        "node-{}/nccl_trace_rank_{}",
        "rank_{}.json.gz",
    ],
)
def test_a_name_says_the_rank_as_people_write_it(tmp_path: Path, name: str) -> None:
    """Behind the word rank, else at the end; in a folder for each host too, and compressed by gzip."""
    RecordedJob({"0": tuple(range(4))}, [("0", "all_reduce")]).write(tmp_path, as_pickle=True)
    for rank in range(4):
        path = tmp_path / name.replace("{}", f"{rank}")
        path.parent.mkdir(exist_ok=True)
        content = (tmp_path / f"nccl_trace_rank_{rank}").read_bytes()
        (tmp_path / f"nccl_trace_rank_{rank}").unlink()
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    dumps, left_out = collect(tmp_path)
    assert (sorted(dumps), left_out) == ([0, 1, 2, 3], {})
    assert all(dump.rank == rank for rank, dump in dumps.items())


def test_names_in_which_a_hosts_number_joins_that_of_the_rank_are_not_believed(tmp_path: Path) -> None:
    """Of two ranks on each of two hosts, `node0` and `node1` before them say ranks 0, 1, 12 and 13."""
    RecordedJob({"0": tuple(range(4))}, [("0", "all_reduce")]).write(tmp_path, as_pickle=True)
    for rank in range(4):
        (tmp_path / f"nccl_trace_rank_{rank}").rename(tmp_path / f"trace_node{rank // 2}{rank}")
    with pytest.raises(CommandError, match="trace_node13 reads as rank 13, but its job has ranks 0-3; let names end"):
        collect(tmp_path)


def test_a_dump_under_the_name_of_a_rank_that_its_job_lacks_is_left_out(tmp_path: Path) -> None:
    """The names of the others say the word rank, and are right."""
    RecordedJob({"0": tuple(range(4))}, [("0", "all_reduce")]).write(tmp_path, as_pickle=True)
    (tmp_path / "nccl_trace_rank_3").rename(tmp_path / "nccl_trace_rank_9")
    dumps, left_out = collect(tmp_path)
    assert (sorted(dumps), list(left_out)) == ([0, 1, 2], ["nccl_trace_rank_9"])


def test_unpacking_takes_the_memory_of_what_is_in_a_dump(tmp_path: Path) -> None:
    """Not that of the largest one, which many readers at once do not have."""
    RecordedJob({"0": (0,)}, [("0", "all_reduce")]).write(tmp_path, as_pickle=True)
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(gzip.compress(path.read_bytes()))
    tracemalloc.start()
    try:
        read(path, 0)
        assert tracemalloc.get_traced_memory()[1] < 2**23
    finally:
        tracemalloc.stop()


def test_what_else_ranks_leave_beside_their_dumps_takes_no_dumps_place(tmp_path: Path) -> None:
    """Newer logs, copies and archives are left out with the reason."""
    RecordedJob({"0": (0, 1)}, [("0", "all_reduce")]).write(tmp_path, as_pickle=True)
    for name in ("rank_0.log", "dumps.tar.gz"):
        (tmp_path / name).write_text("step 1")
    for name in ("nccl_trace_rank_1~", ".nccl_trace_rank_1.swp"):
        (tmp_path / name).write_bytes((tmp_path / "nccl_trace_rank_0").read_bytes())
    (tmp_path / "fr_rank_1.zst").write_bytes(b"\x28\xb5\x2f\xfd\x04")
    dumps, left_out = collect(tmp_path)
    assert sorted(dumps) == [0, 1]
    assert left_out == {
        ".nccl_trace_rank_1.swp": "the name does not say of which rank it is",
        "dumps.tar.gz": "an archive: unpack it here",
        "fr_rank_1.zst": "compressed by zstd: unpack it",
        "nccl_trace_rank_1~": "the name does not say of which rank it is",
        "rank_0.log": "neither JSON nor a pickle that can be read (JSONDecodeError)",
    }


def test_a_hosts_folder_that_cannot_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the ranks of the other hosts left is judged."""
    for host in ("a", "b"):
        (tmp_path / host).mkdir()
    RecordedJob({"0": (0, 1)}, [("0", "all_reduce")]).write(tmp_path / "a", as_pickle=True)
    entries = Path.iterdir

    def iterdir(folder: Path) -> Iterator[Path]:
        if folder == tmp_path / "b":
            raise PermissionError(errno.EACCES, "Permission denied")
        return entries(folder)

    # Root may read any folder.
    monkeypatch.setattr(Path, "iterdir", iterdir)
    dumps, left_out = collect(tmp_path)
    assert (sorted(dumps), left_out) == ([0, 1], {"b": "Permission denied"})


def test_attempts_in_folders_of_their_own_are_not_mixed(tmp_path: Path) -> None:
    """The newer one is judged, without what only the older one has."""
    for attempt in range(2):
        folder = tmp_path / f"attempt_{attempt}"
        folder.mkdir()
        RecordedJob({"0": (0, 1, 2)}, [("0", "all_reduce")]).write(folder, as_pickle=True)
        for file in folder.iterdir():
            os.utime(file, (1000 + attempt, 1000 + attempt))
    (tmp_path / "attempt_1" / "nccl_trace_rank_2").unlink()
    dumps, left_out = collect(tmp_path)
    assert sorted(dumps) == [0, 1]
    assert (
        left_out["attempt_0/nccl_trace_rank_2"] == "rank 2 is of another job, and 'attempt_1/nccl_trace_rank_' is newer"
    )


def test_of_two_jobs_the_newer_is_judged_and_never_a_mixture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Groups have equal names in both; the names of the files tell them apart."""
    calls = [("0", "all_reduce")] * 3
    for job, stops in (("old", {0: 1}), ("new", {2: 2})):
        folder = tmp_path / job
        folder.mkdir()
        RecordedJob({"0": (0, 1, 2)}, calls, stops=stops).write(folder, as_pickle=True)
        for file in list(folder.iterdir()):
            if not (job == "new" and file.name.endswith("1")):
                moved = file.rename(tmp_path / f"{job}_{file.name}")
                os.utime(moved, (1000 + (job == "new"), 1000 + (job == "new")))
    code, printed, _ = hang(tmp_path, capsys, "--json")
    found = json.loads(printed)
    assert (code, [culprit["rank"] for culprit in found["culprits"]], found["dumps"]) == (0, [2], 2)
    assert found["left_out"] == {
        "old_nccl_trace_rank_0": "rank 0 has a newer dump",
        "old_nccl_trace_rank_1": "rank 1 is of another job, and 'new_nccl_trace_rank_' is newer",
        "old_nccl_trace_rank_2": "rank 2 has a newer dump",
    }


def test_names_with_hosts_are_of_one_job_where_a_host_was_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The dumps of the host that is no longer in the job are left out, and those of no host that is."""
    calls = [("0", "all_reduce")] * 3
    for attempt, stops, hosts in ((1, {0: 1}, "ac"), (2, {1: 2}, "ab")):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        RecordedJob({"0": (0, 1, 2, 3)}, calls, stops=stops).write(folder, as_pickle=True)
        for file in list(folder.iterdir()):
            rank = int(file.name[-1])
            moved = file.rename(tmp_path / f"trace_node-{hosts[rank // 2]}_{rank}")
            os.utime(moved, (1000 * attempt + rank, 1000 * attempt + rank))
    code, printed, _ = hang(tmp_path, capsys, "--json")
    found = json.loads(printed)
    assert (code, [culprit["rank"] for culprit in found["culprits"]], found["dumps"]) == (0, [1], 4)
    assert found["left_out"] == {f"trace_node-c_{rank}": f"rank {rank} has a newer dump" for rank in (2, 3)}


def test_the_state_files_beside_the_dumps_say_how_many_ranks_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without them a rank that left no dump is not missed where groups do not say their members."""
    job = RecordedJob({"0": (0, 1, 2, 3)}, [("0", "all_reduce")], stops={3: 0})
    for rank in range(3):
        dump = job.dump(rank)
        del dump["pg_config"]
        (tmp_path / f"hang-1-2-{rank}-my-run-{rank}.json").write_text(json.dumps(dump))
    assert hang(tmp_path, capsys)[0] == 1
    writer = StateWriter(tmp_path, replace(fresh(), world_size=4))
    try:
        code, printed, _ = hang(tmp_path, capsys, "--json")
    finally:
        writer.close()
    found = json.loads(printed)
    assert (code, found["ranks"], found["left_out"]) == (0, 4, {})
    assert [(culprit["rank"], culprit["reason"]) for culprit in found["culprits"]] == [(3, "no_dump")]


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        ({}, [(3, "gone")]),
        # The process of another run, and one that ended before those began that live.
        ({"run": "another"}, []),
        ({"start_boottime_ns": 1}, []),
    ],
)
def test_a_rank_whose_process_has_ended_is_named_with_two_dumps_lost(
    edit: dict[str, Any], named: list[tuple[int, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its state file says so, while others of the run live on this host; without it two are not told apart."""
    job = RecordedJob({"0": (0, 1, 2, 3)}, [("0", "all_reduce")] * 2, stops={3: 1})
    job.write(tmp_path, as_pickle=False, left_out={1, 3})
    code, printed, _ = hang(tmp_path, capsys)
    assert (code, "not told apart: ranks 1, 3 left no dump" in printed) == (1, True)
    with live_rank(tmp_path, fresh(run="my-run", rank=0, world_size=4)):
        ended = 0 if "start_boottime_ns" in edit else boottime_ns()
        dead_file(tmp_path, fresh(**{"run": "my-run", "rank": 3, "world_size": 4, **edit}), {statefile.ENDED: ended})
        _, printed, _ = hang(tmp_path, capsys, "--json")
    assert [(culprit["rank"], culprit["reason"]) for culprit in json.loads(printed)["culprits"]] == named


def test_a_live_dump_of_an_older_process_is_left_out(tmp_path: Path) -> None:
    """The state file of its rank beside it says when the rank's present process started."""
    dump = RecordedJob({"0": (0, 1)}, [("0", "all_reduce")]).dump(0)
    facts = replace(fresh(), run="my-run", rank=0, start_boottime_ns=0x20)
    names = ["hang-10-2-3-my-run-0.json", "hang-20-2-3-my-run-0.json", "hang-10-2-3-my-run-1.json"]
    for name in names:
        (tmp_path / name).write_text(json.dumps(dump))
    os.utime(tmp_path / names[1], (1, 1))
    (tmp_path / "run.json").write_text("{}")  # a local run's own
    writer = StateWriter(tmp_path, facts)
    try:
        found, left_out = collect(tmp_path)
    finally:
        writer.close()
    assert sorted(found) == [0, 1]
    assert left_out == {names[0]: "rank 0 has a newer process"}


@pytest.mark.parametrize(
    ("files", "flags", "message"),
    [
        ({}, [], "no dump of a flight recorder in it"),
        ({"rank_0": b"nothing"}, [], "rank_0: neither JSON nor a pickle that can be read (JSONDecodeError)"),
        ({"rank_5": b'{"entries": []}'}, ["--ranks", "2"], "--ranks 2: there is a dump of rank 5"),
        ({}, ["--ranks", "0"], "--ranks 0: a job has 1 to 1048576 ranks"),
    ],
)
def test_bad_input_is_one_line(
    files: dict[str, bytes], flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What, which value, exit code 2."""
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    code, printed, error = hang(tmp_path, capsys, *flags)
    assert (code, printed) == (2, "")
    assert error.count("\n") == 1
    assert message in error


def test_a_folder_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The path and the reason."""
    assert hang(tmp_path / "gone", capsys) == (
        2,
        "",
        f"laggard hang: error: {tmp_path}/gone: No such file or directory\n",
    )


def test_dumps_of_a_real_hang_name_the_real_culprit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Four gloo ranks, of which one never comes to the second all-reduce of its subgroup, by their pickles.

    As JSON they are read in tests/exporter/hang/test_live.py.
    """
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    with Launcher(tmp_path) as launcher:
        launcher.run_ranks(4, PROGRAMS / "hanging.py", dumps, "2")
    code, printed, _ = hang(dumps, capsys, "--json")
    found: dict[str, Any] = json.loads(printed)
    assert code == 0
    assert [(culprit["rank"], culprit["reason"]) for culprit in found["culprits"]] == [(2, "outside")]
    assert found["dumps"] == 4


def test_ranks_that_no_job_has_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a flag, in the name of a file, in a group of a dump: one line each, and the rest is judged."""
    RecordedJob({"0": (0, 1, 2)}, [("0", "all_reduce")] * 2, stops={1: 1}).write(tmp_path, as_pickle=False)
    (tmp_path / "rank_4294967295").write_text("{}")
    hostile = {"entries": [], "pg_config": {"0": {"ranks": "[0, 4294967295]"}}}
    (tmp_path / "rank_3").write_text(json.dumps(hostile))
    code, printed, _ = hang(tmp_path, capsys, "--json")
    found = json.loads(printed)
    assert (code, found["ranks"], [culprit["rank"] for culprit in found["culprits"]]) == (0, 3, [1])
    assert found["left_out"] == {
        "rank_4294967295": "rank 4294967295 is beyond the 1048576 that a job may have",
        "rank_3": "no dump of a flight recorder (ValueError: ranks of a group must be 0 to 1048575)",
    }
    assert hang(tmp_path, capsys, "--ranks", "4294967295")[::2] == (
        2,
        "laggard hang: error: --ranks 4294967295: a job has 1 to 1048576 ranks\n",
    )


def test_a_file_that_is_older_than_calls_of_others_blames_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its rank may have gone on since; one that was copied later looks as old as the others, and counts."""

    def program(recorder: Recorder, rank: int) -> None:
        recorder.call("0")
        if rank != 2:
            recorder.now += 60 * SECOND
            recorder.call("0", state="started")

    dumps = recorded(program)
    for rank, dump in dumps.items():
        (tmp_path / f"rank_{rank}").write_text(json.dumps(dump))
    assert hang(tmp_path, capsys)[0] == 0
    written = dumps[2]["entries"][-1]["time_created_ns"] + 10 * SECOND
    os.utime(tmp_path / "rank_2", ns=(written, written))
    code, printed, _ = hang(tmp_path, capsys)
    assert code == 1
    assert "the dump of rank 2 is of a moment before others went on" in printed
