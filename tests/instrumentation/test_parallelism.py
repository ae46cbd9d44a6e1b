"""Collectives of every kind, peer groups, and waits that cannot be seen."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import _object_to_tensor
from torch.nn.parallel import DistributedDataParallel

import laggard
from laggard import _process
from laggard._hooks.collectives import CollectivesHook
from laggard._hooks.exposure import Exposure
from laggard._hooks.groups import Groups
from laggard._recorder import Recorder
from laggard.shared import statefile
from laggard.shared.peers import PeerGroup
from laggard.shared.phases import Phase
from tests.instrumentation.programs.collectives import OBJECT, STEPS
from tests.support.launch import PROGRAMS, Launcher
from tests.support.otlp import Receiver

PROGRAM = PROGRAMS / "collectives.py"
#: Waits in a step, by operation. An exchange of objects gathers their sizes and then the objects.
WAITS = {
    "all_reduce": 3,
    "all_gather": 2 + 2,
    "reduce_scatter": 1,
    "broadcast": 1,
    "barrier": 1,
    "point_to_point": 1 + 2,
}
#: Bytes in a step, by operation: four floats each, and the object with its size.
BYTES = {"all_reduce": 48, "all_gather": 16 + 16, "reduce_scatter": 16, "broadcast": 16}


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_process.Process]:
    """This process, instrumented, with a process group of its own; its drain never starts."""
    monkeypatch.setenv("LAGGARD_STATE_DIR", str(tmp_path / "state"))
    _process.instrument()
    current = _process.current()
    assert current is not None
    current._settled = True
    store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage] - torch documents it
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield current
    _process.uninstrument()
    dist.destroy_process_group()


def collectives_of(process: _process.Process) -> CollectivesHook:
    """The hook that watches collectives."""
    (hook,) = [hook for hook in process._parts if isinstance(hook, CollectivesHook)]
    return hook


def codes(process: _process.Process) -> list[int]:
    """Codes of the events so far."""
    return [code for code, _, _ in process.recorder.drain()]


@pytest.mark.parametrize("hooks", ["with", "without"])
def test_collectives_are_counted_exactly(hooks: str, launcher: Launcher, receiver: Receiver) -> None:
    """Each operation's waits and bytes, objects too, with torch's pre-hooks and with the methods of older versions.

    Point to point is waiting too, and stays out of the sequence of collectives.
    """
    environment = {**receiver.environment, "LAGGARD_WARMUP_STEPS": "0"}
    command: list[str | Path] = [PROGRAM]
    if hooks == "without":
        command.insert(0, PROGRAMS / "without_pre_hooks.py")
        environment["OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"] = "laggard"
    launcher.run_ranks(2, *command, **environment)
    data, size = _object_to_tensor(OBJECT, torch.device("cpu"), group=None)
    expected = {**BYTES, "all_gather": BYTES["all_gather"] + data.nbytes + size.nbytes}
    for rank in ("0", "1"):
        waits = receiver.series("training.collective.duration", training__rank=rank)
        counts = {dict(labels)["training.collective.operation"]: histogram.count for labels, histogram in waits.items()}
        assert counts == {operation: STEPS * count for operation, count in WAITS.items()}
        sent = receiver.series("training.collective.io", training__rank=rank)
        sizes = {dict(labels)["training.collective.operation"]: value for labels, value in sent.items()}
        assert sizes == {operation: STEPS * size for operation, size in expected.items()}
    files = [statefile.read(path) for path in launcher.state_directory.iterdir()]
    collectives = STEPS * (sum(WAITS.values()) - WAITS["point_to_point"])
    for file in files:
        # One all-reduce of each step is the other group's.
        assert [group.started for group in file.groups] == [collectives - STEPS, STEPS]
    assert files[0].groups == files[1].groups


def test_a_monitored_barrier_is_a_wait(process: _process.Process) -> None:
    """Gloo makes it of sends and receives that no hook sees: whoever waits in one would look idle."""
    dist.monitored_barrier()
    assert codes(process) == [Phase.COMMUNICATION]


def test_a_functional_collective_is_waited_for_where_it_is_used(process: _process.Process) -> None:
    """Issuing is not waiting: the event comes with the first use of the tensor, in eager and in compiled code."""
    group = dist.group.WORLD
    assert group is not None

    def train(x: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(x * 2, "sum", group) + 1

    result = functional.all_reduce(torch.ones(4), "sum", group)
    assert codes(process) == []
    assert torch.equal(result + 1, torch.full((4,), 2.0))
    assert codes(process) == [Phase.COMMUNICATION]
    compiled = torch.compile(train, backend="aot_eager", fullgraph=True)
    compiled(torch.ones(4))
    process.recorder.drain()
    assert torch.equal(compiled(torch.ones(4)), torch.full((4,), 3.0))
    assert codes(process).count(Phase.COMMUNICATION) == 1


@pytest.mark.skipif(
    not hasattr(dist.ProcessGroup, "register_pre_hook"),
    reason="this version of torch does not tell what native code issues",
)
def test_waits_out_of_reach_make_communication_unavailable(process: _process.Process) -> None:
    """Collectives that native code waits for are no communication of nothing: the signal goes, and comes back."""
    hook = collectives_of(process)
    group = dist.group.WORLD
    assert group is not None
    parameter = torch.ones(4, requires_grad=True)
    operators = torch.ops._c10d_functional
    # What a graph compiled to native code does, without the compiler's minute.
    native = torch._C._get_operation_overload("_c10d_functional::wait_tensor", "")[0]

    def step(wait: Any) -> None:
        parameter.sum().backward()
        wait(operators.all_reduce(torch.ones(4), "sum", group.group_name))

    for wait, available in ((operators.wait_tensor, True), (native, False), (operators.wait_tensor, True)):
        for _ in range(2):
            step(wait)
        process.exposure.steps_ended(2)
        assert hook.available is available


def test_what_a_reducer_issues_is_explained_by_its_statistics() -> None:
    """In backward a reducer's numbers stand for the collectives; outside of it they explain nothing."""
    exposure = Exposure()
    exposure.in_backward = 4
    exposure.reduced = 2
    exposure.steps_ended(1)
    assert not exposure.hidden
    exposure.issued = 2
    exposure.steps_ended(1)
    assert exposure.hidden
    exposure.in_backward = 8  # and no reducer any more
    exposure.waited = 1
    exposure.steps_ended(2)
    assert not exposure.hidden
    exposure.in_backward = 12
    exposure.steps_ended(2)
    assert exposure.hidden


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"find_unused_parameters": True},
        {"static_graph": True},
        {"gradient_as_bucket_view": True},
        {"bucket_cap_mb": 1},
    ],
    ids=str,
)
def test_a_replicated_model_has_the_signal_from_its_first_step(
    process: _process.Process, options: dict[str, Any]
) -> None:
    """What DDP's constructor and its new buckets issue is waited for in native code and is held against nobody."""
    model = nn.Sequential(nn.Linear(256, 256), nn.BatchNorm1d(256), nn.Linear(256, 1024))
    replica = DistributedDataParallel(model, **options)
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.1)
    hook = collectives_of(process)
    for _ in range(4):
        process.exposure.steps_ended(2)  # whenever a drain looks
        assert hook.available
        replica(torch.ones(2, 256)).sum().backward()
        optimizer.step()
    assert process.exposure.reduced == 4
    process.exposure.steps_ended(2)
    assert (hook.available, process.exposure.issued) == (True, 0)


def test_what_is_issued_before_training_is_held_against_nobody(process: _process.Process) -> None:
    """A rank may set up its model with collectives that nobody waits for; in a step they count."""
    hook = collectives_of(process)
    dist.all_reduce(torch.ones(4), async_op=True)
    process.exposure.steps_ended(2)
    assert hook.available
    torch.ones(1, requires_grad=True).sum().backward()
    dist.all_reduce(torch.ones(4), async_op=True)
    process.exposure.steps_ended(2)
    assert not hook.available


def test_the_wait_of_each_replicated_model_is_read_once(process: _process.Process) -> None:
    """Two models give a wait each where each has its backward, one where they share it, none without a reduction."""
    first, second = (DistributedDataParallel(nn.Linear(4, 4)) for _ in range(2))
    x = torch.ones(2, 4)

    def backward(*losses: torch.Tensor) -> list[int]:
        sum(losses, torch.zeros(())).backward()
        return [code for code in codes(process) if code != Phase.FORWARD]

    for _ in range(3):
        losses = [first(x).sum(), second(x).sum()]
        assert backward(losses[0]) == [Phase.BACKWARD, Phase.COMMUNICATION]
        assert backward(losses[1]) == [Phase.BACKWARD, Phase.COMMUNICATION]
        assert backward(first(x).sum(), second(x).sum()) == [Phase.BACKWARD, Phase.COMMUNICATION]
        with first.no_sync():
            assert backward(first(x).sum()) == [Phase.BACKWARD]
        assert backward(first(x).sum()) == [Phase.BACKWARD, Phase.COMMUNICATION]


def test_a_hook_that_fails_inside_a_collective_is_off_and_the_collective_is_done(
    process: _process.Process, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The group is calling the hook while the hook is taken out: nothing crashes, and nothing is noted any more."""

    def fail(*_args: Any, **_kwargs: Any) -> None:
        raise ValueError("on purpose")

    monkeypatch.setattr(Groups, "issue", fail)
    tensor = torch.ones(4)
    for _ in range(3):
        dist.all_reduce(tensor)
    assert torch.equal(tensor, torch.ones(4))
    assert not collectives_of(process).available
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [
        "hook collectives failed and is off, training goes on: ValueError('on purpose')"
    ]


@pytest.mark.usefixtures("process")
def test_the_compiler_leaves_the_hooks_alone() -> None:
    """Below a graph break a compiler compiles every frame that it meets, but none of ours."""
    model = DistributedDataParallel(nn.Linear(4, 4))
    compiled = torch.compile(model, backend="eager")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    for _ in range(3):
        compiled(torch.ones(2, 4)).sum().backward()
    package = str(Path(laggard.__file__).parent)
    seen = [code() for code in torch._dynamo.convert_frame.input_codes.seen]
    frames = [code.co_filename for code in seen if code is not None]
    assert frames
    assert not [name for name in frames if name.startswith(package)]


@pytest.mark.parametrize(
    ("layouts", "group"),
    [
        ([], ""),
        ([{"dp": (1, 4)}], ""),
        ([{"tp": (1, 4)}], ""),  # each slice is alone: then all are peers
        ([{"dp": (0, 2), "tp": (1, 4)}], "tp-1"),
        ([{"pp": (1, 2)}], "pp-1"),
        ([{"pp": (1, 2), "tp": (0, 2)}], "pp-1"),
        ([{"PP": (1, 2), "dp_shard": (3, 4), "tp": (0, 2)}], "pp-1.tp-0"),
        ([{"dp": (0, 1), "pp": (0, 1), "tp": (0, 2)}], ""),
        ([{"dp": (0, 2), "model": (1, 2)}, {"pp": (1, 2)}], "pp-1.tp-1"),
        ([{"dp": (0, 2), "tp": (0, 2)}, {"tp": (1, 2)}], "tp-0"),
    ],
)
def test_a_peer_group_is_the_place_along_the_dimensions_that_split_the_model(
    layouts: list[dict[str, tuple[int, int]]], group: str
) -> None:
    """Stages always; slices of a layer where each keeps a peer."""
    peers = PeerGroup()
    for layout in layouts:
        peers.learn(layout)
    assert peers.name("") == group
    assert peers.name("given") == "given"
    peers.named = "said"
    assert peers.name("given") == "said"


def test_a_device_mesh_and_the_script_name_the_peer_group(process: _process.Process) -> None:
    """What is seen of a mesh are its names and this rank's place; the script's own word wins."""
    mesh = DeviceMesh("cpu", [[0]], mesh_dim_names=("dp", "tp"))
    assert process.peers._seen == {"dp": (0, 1), "tp": (0, 1)}
    assert mesh["tp"].size() == 1
    laggard.set_peer_group(" stage-0 ")
    assert process.peers.name("") == "stage-0"


def test_a_peer_group_that_comes_late_changes_the_state_file_only(launcher: Launcher, receiver: Receiver) -> None:
    """Series keep their labels; the state file follows, and one warning says so."""
    process = launcher.fork_ranks(2, PROGRAMS / "late_group.py", **receiver.environment)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    files = [statefile.read(path).facts for path in launcher.state_directory.iterdir()]
    assert {(facts.rank, facts.peer_group) for facts in files} == {(0, "early"), (1, "late")}
    groups = {
        (dict(labels)["training.rank"], dict(labels).get("training.peer_group", ""))
        for labels in receiver.series("training.step.duration")
    }
    assert groups == {("0", "early"), ("1", "")}
    assert errors.count("became known after reporting began") == 1


@pytest.mark.timed
def test_a_collective_costs_a_few_microseconds(process: _process.Process) -> None:
    """Self time of one all-reduce, issue and wait, in the median of batches."""
    recorder = process.recorder
    tensor = torch.ones(4)
    costs: list[float] = []
    for _ in range(20):
        before = recorder.self_time_ns
        for _ in range(50):
            dist.all_reduce(tensor)
        costs.append((recorder.self_time_ns - before) / 50)
        recorder.drain()
    assert sorted(costs)[len(costs) // 2] < 25_000


def test_a_tensor_of_zeros_is_counted_before_the_first_backward() -> None:
    """Without a training thread known every thread's collectives count, and none is held against exposure."""
    exposure = Exposure()
    recorder = Recorder()
    groups = Groups(recorder, exposure)
    watched = groups.add(object())
    assert watched is not None
    groups.issue(watched, ("all_reduce", 3), [torch.zeros(3)], blocking=True)
    assert groups.bytes["all_reduce"] == 12
    assert groups.pop_blocking() == "all_reduce"
    recorder.thread = -1  # some other thread trains
    groups.issue(watched, ("all_reduce", 3), [torch.zeros(3)], blocking=True)
    assert groups.pop_blocking() == "asynchronous"
    assert (watched.started, exposure.in_backward) == (2, 0)


@pytest.mark.skipif(hasattr(dist.ProcessGroup, "register_pre_hook"), reason="this version of torch has pre-hooks")
def test_without_pre_hooks_a_reducer_s_parameters_are_known(process: _process.Process) -> None:
    """In the reducer's order, and nothing of ours stays on its class."""
    hook: Any = next(hook for hook in process._parts if hook.name == "ddp")
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    model(torch.ones(1, 4)).sum().backward()
    clock = hook._clocks[-1]
    assert [parameter() for parameter in clock.parameters] == list(model.parameters())
    times = model.reducer.get_backward_stats()
    assert clock.last == times.index(max(times))
    kind = type(model.reducer)
    wrapped = vars(kind)["__init__"]
    hook.uninstall()
    assert vars(kind)["__init__"] is not wrapped
