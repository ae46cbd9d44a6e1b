"""Run and rank: from the launcher, else from torch itself, the same on all ranks."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from laggard import _identity
from laggard.shared import statefile
from tests.support.cases import usual
from tests.support.launch import PROGRAMS, Launcher
from tests.support.otlp import Receiver

PROGRAM = PROGRAMS / "name_run.py"
VARIABLES = (
    "LAGGARD_RUN",
    "LAGGARD_WORKLOAD",
    "LAGGARD_PEER_GROUP",
    "SLURM_JOB_ID",
    "SLURM_ARRAY_JOB_ID",
    "SLURM_ARRAY_TASK_ID",
    "SLURM_STEP_ID",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_LOCALID",
    "KUBERNETES_JOB_UID",
    "TORCHELASTIC_RUN_ID",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
)


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("file", "workload"),
    [
        ("/jobs/train.py", "train"),
        ("/site/pretrain/__main__.py", "pretrain"),  # python -m pretrain
        ("app.pyz/__main__.py", "app"),
        (None, "argument"),
    ],
)
def test_the_workload_is_called_as_what_runs(file: str | None, workload: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of a package or of an archive has the same name in all of them, which would be one workload."""
    monkeypatch.setattr("sys.argv", ["argument.py"])
    monkeypatch.setattr("__main__.__file__", file, raising=False)
    assert _identity.from_environment().workload == workload


@pytest.mark.parametrize(
    ("environment", "run"),
    [
        ({"LAGGARD_RUN": " mine ", "SLURM_JOB_ID": "1"}, "mine"),
        ({"SLURM_JOB_ID": "17", "SLURM_STEP_ID": "0", "TORCHELASTIC_RUN_ID": "x"}, "slurm-17.0"),
        ({"SLURM_JOB_ID": "17", "SLURM_STEP_ID": "4294967290"}, "slurm-17"),  # the shell of salloc
        ({"SLURM_JOB_ID": "17", "SLURM_ARRAY_JOB_ID": "15", "SLURM_ARRAY_TASK_ID": "2"}, "slurm-15_2"),
        ({"KUBERNETES_JOB_UID": "uid-1", "TORCHELASTIC_RUN_ID": "x"}, "uid-1"),
        ({"TORCHELASTIC_RUN_ID": "job-9"}, "job-9"),
        ({"TORCHELASTIC_RUN_ID": "none"}, ""),
        ({"TORCHELASTIC_RUN_ID": ""}, ""),
        ({}, ""),
    ],
)
def test_the_run_is_the_first_that_the_launcher_names(
    environment: dict[str, str], run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our variable, then Slurm, Kubernetes and the elastic launcher; "none" is what every torchrun job is called."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert _identity.from_environment().run == run


def test_rank_and_world_size_come_from_the_script_then_torchrun_then_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Explicit arguments win, and a value that is no number is ignored."""
    monkeypatch.setenv("SLURM_PROCID", "5")
    monkeypatch.setenv("SLURM_NTASKS", "16")
    assert _identity.from_environment().world_size == 1, (
        "a batch script is one process, however many tasks it may start"
    )
    monkeypatch.setenv("SLURM_STEP_ID", "4294967290")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    assert _identity.from_environment().world_size == 1, "nor does the shell of salloc start any itself"
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "16")
    monkeypatch.setenv("RANK", "many")
    identity = _identity.from_environment()
    assert (identity.rank, identity.world_size, identity.local_rank) == (5, 16, 5)
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("LOCAL_RANK", "1")
    identity = _identity.from_environment(world_size=4)
    assert (identity.rank, identity.world_size, identity.local_rank) == (3, 4, 1)
    assert _identity.from_environment(rank=2).rank == 2


def test_minus_one_is_no_rank(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Scripts and launchers set -1 for "not distributed": it is ignored. Any other invalid value logs a warning."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, "-1")
    identity = _identity.from_environment()
    assert (identity.rank, identity.world_size, identity.local_rank, identity.placed) == (0, 1, 0, False)
    assert caplog.text == ""
    monkeypatch.setenv("RANK", "1.5")
    assert _identity.from_environment().rank == 0
    assert "RANK must be a whole number of at least 0, got '1.5'; it is ignored" in caplog.text


def test_every_data_point_carries_run_rank_and_peer_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peer group is there only where one is known."""
    monkeypatch.setenv("LAGGARD_RUN", "r")
    assert _identity.from_environment().attributes() == {"training.run": "r", "training.rank": "0"}
    monkeypatch.setenv("LAGGARD_PEER_GROUP", "stage-1")
    assert _identity.from_environment(7).attributes() == {
        "training.run": "r",
        "training.rank": "7",
        "training.peer_group": "stage-1",
    }


# Ranks that are spawned and ranks that are forked have the same of torch: a store, and no variable.
@pytest.mark.parametrize("start", usual(["torchrun", "spawn", "fork"], "torchrun", "fork"))
def test_ranks_without_a_name_agree_on_one(start: str, launcher: Launcher, receiver: Receiver, tmp_path: Path) -> None:
    """Rank 0 leaves a fresh name in torch's own store; under torchrun and for ranks made by multiprocessing."""
    environment = {**receiver.environment, "LAGGARD_RUN": ""}
    if start == "torchrun":
        launcher.run("torchrun", "--nproc-per-node", "2", PROGRAM, **environment)
    else:
        launcher.run_forked(PROGRAM, tmp_path / "store", start, **environment)
    steps = {dict(labels)["training.rank"]: count for labels, count in receiver.series("training.steps").items()}
    assert set(steps) == {"0", "1"}
    assert min(steps.values()) > 10
    runs = {dict(labels)["training.run"] for labels in receiver.series("training.steps")}
    assert len(runs) == 1
    files = [statefile.read(path) for path in launcher.state_directory.iterdir()]
    assert {file.facts.run for file in files} == runs
    assert sorted((file.facts.rank, file.facts.local_rank, file.state.label) for file in files) == [
        (0, 0, "finished"),
        (1, 1, "finished"),
    ]
    assert {file.facts.world_size for file in files} == {2}
    # Each step's all-reduce, and the barrier at the end.
    (first, second) = [file.groups[0] for file in files]
    assert first == second
    assert first.started == first.finished > 10
    waits = receiver.series("training.collective.duration", training__collective__operation="all_reduce")
    assert {histogram.count for histogram in waits.values()} == {first.started - 1}
    sent = receiver.series("training.collective.io", training__collective__operation="all_reduce")
    assert set(sent.values()) == {4.0 * (first.started - 1)}


def test_processes_without_a_group_have_a_run_each(launcher: Launcher, receiver: Receiver) -> None:
    """Those of a sweep, of k folds or of hogwild are rank 0 of 1 under one name; no two of them share a series."""
    started = [launcher.fork(PROGRAMS / "loop.py", "finish", **receiver.environment) for _ in range(3)]
    for process in started:
        process.communicate(timeout=60)
    names = {"test", "test.2", "test.3"}
    assert {statefile.read(path).facts.run for path in launcher.state_directory.iterdir()} == names
    steps = {dict(labels)["training.run"]: count for labels, count in receiver.series("training.steps").items()}
    assert steps == dict.fromkeys(names, 30)
    launcher.run_forked(PROGRAMS / "loop.py", "finish", **receiver.environment)
    assert sorted(statefile.read(path).facts.run for path in launcher.state_directory.iterdir())[:2] == ["test", "test"]


@pytest.mark.parametrize(("kind", "ranks"), [("saves", 1), ("trains", 2), ("peer", 2), ("engine", 0)])
def test_a_group_is_no_proof_where_it_is_a_helpers_or_an_engines(
    kind: str, ranks: int, launcher: Launcher, tmp_path: Path
) -> None:
    """What a rank starts is a rank if it trains or is its peer: torch's asynchronous checkpoints have a group too."""
    launcher.run_forked(PROGRAMS / "helped.py", kind, tmp_path)
    assert len(list(launcher.state_directory.glob("*"))) == ranks


def test_two_jobs_under_one_name_are_two_runs(launcher: Launcher, tmp_path: Path) -> None:
    """On one host the second job's rank 0 chooses another name, and its other ranks hear of it."""
    jobs = [launcher.fork(PROGRAM, tmp_path / f"store-{number}", "fork") for number in range(2)]
    for process in jobs:
        process.communicate(timeout=60)
    files = [statefile.read(path).facts for path in launcher.state_directory.iterdir()]
    assert sorted((facts.run, facts.rank) for facts in files) == [
        ("test", 0),
        ("test", 1),
        ("test.2", 0),
        ("test.2", 1),
    ]


def test_the_local_rank_is_counted_where_no_launcher_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks right below on the same host are counted, through torch's store, once all of them have said where."""
    store = torch.distributed.HashStore()  # pyright: ignore[reportPrivateImportUsage] - torch documents it
    identities = [replace(_identity.from_environment(rank, 5), host=host) for rank, host in enumerate("aaabb")]
    assert not identities[0].placed
    count = _identity._local_rank
    assert count(store, identities[4]) is None
    assert [count(store, identity) for identity in identities] == [0, 1, 2, 0, 1]
    assert count(store, identities[4]) == 1
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert (_identity.from_environment(7).local_rank, _identity.from_environment(7).placed) == (3, True)


def test_ranks_of_one_task_are_not_all_its_local_rank(launcher: Launcher, receiver: Receiver, tmp_path: Path) -> None:
    """Variables of srun's only task, or of a pod, are of the process that starts the ranks: they are counted."""
    task = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "1"}
    launcher.run_forked(PROGRAM, tmp_path / "store", "fork", **receiver.environment, **task)
    files = [statefile.read(path) for path in launcher.state_directory.iterdir()]
    assert sorted((file.facts.rank, file.facts.local_rank) for file in files) == [(0, 0), (1, 1)]


def test_the_start_of_the_process_is_reckoned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Facts are written more than once; a clock stepped between them leaves the start where it was."""
    identity = _identity.from_environment()
    before = identity.facts(0)
    assert abs(before.start_unix_ns - before.start_boottime_ns - (time.time_ns() - statefile.boottime_ns())) < 10**9
    stepped = time.time_ns() + 3600 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: stepped)
    assert identity.facts(0) == before
