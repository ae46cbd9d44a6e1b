"""Kinds of traces that people have: other loops, versions of torch, several marks, kernels of other libraries."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from laggard.shared.phases import Phase
from laggard_cli.kineto.kinds import Kind, kind_of
from laggard_cli.kineto.run import TracedRun, read_run
from laggard_cli.kineto.verdicts import judge
from laggard_cli.main import main
from laggard_cli.replay.steps import recording_of
from tests.support.kineto import Job, Work, write

Event = dict[str, Any]
MS = 1000.0


class Loop:
    """The events of a loop on the host, in the order of time."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.now = 0.0

    def add(self, name: str, milliseconds: float, *, category: str = "cpu_op", args: Event | None = None) -> None:
        """Add an event behind the last."""
        length = milliseconds * MS
        self.events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": 1,
                "tid": 1,
                "ts": self.now,
                "dur": length,
                "args": args or {},
            }
        )
        self.now += length

    def step(self, number: int, *parts: str) -> None:
        """Add a step; data takes 1 ms, the rest its usual time."""
        begin = self.now
        self.parts(*parts)
        mark = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "pid": 1, "tid": 1, "args": {}}
        self.events.append({**mark, "ts": begin, "dur": self.now - begin})

    def closure(self, *parts: str) -> None:
        """Add an update that calls a closure with these parts before its own work."""
        begin, before = self.now, len(self.events)
        self.parts(*parts, "optimizer")
        update = self.events.pop()
        self.events.insert(before, {**update, "ts": begin, "dur": self.now - begin})

    def parts(self, *parts: str) -> None:
        """Add parts of a step."""
        for part in parts:
            match part:
                case "data":
                    self.add("enumerate(DataLoader)#_Iter.__next__", 1, category="user_annotation")
                case "forward" | "inference":
                    recorded = {"Sequence number": 1, "Fwd thread id": 0} if part == "forward" else None
                    self.add("aten::linear", 10, args=recorded)
                    self.add("aten::linear", 10, args=recorded)
                case "zero":
                    self.add("Optimizer.zero_grad#SGD.zero_grad", 1, category="user_annotation")
                case "backward":
                    self.add("autograd::engine::evaluate_function: AddmmBackward0", 30, args={"Fwd thread id": 1})
                case "optimizer":
                    self.add("Optimizer.step#SGD.step", 4, category="user_annotation")
                case "pause":
                    self.now += 2 * MS
                case _:
                    self.closure(*part.split())

    def run(self, folder: Path) -> TracedRun:
        """Return what is read of it."""
        path = folder / "rank0.json"
        path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": self.events}))
        return read_run([path])


def milliseconds(run: TracedRun) -> dict[str, float]:
    """Return the phases of the mean step."""
    return {phase.label: round(1e3 * run.ranks[0].mean(phase), 3) for phase in run.ranks[0].steps.phases}


TRAINING = {"data": 1, "h2d": 0, "forward": 20, "backward": 30, "optimizer": 4, "communication": 0}


@pytest.mark.parametrize(
    ("parts", "optimizers"),
    [
        (("data", "zero", "forward", "backward", "optimizer"), 1),
        (("data", "forward", "zero", "backward", "optimizer"), 1),
        (("data", "forward", "backward", "optimizer", "zero"), 1),
        (("zero", "data", "forward", "backward", "optimizer"), 1),
        (("data", "forward", "backward", "optimizer", "optimizer", "zero"), 2),
    ],
)
def test_gradients_may_be_set_to_zero_anywhere(parts: tuple[str, ...], optimizers: int, tmp_path: Path) -> None:
    """Forward is forward in any order of the loop, and so is an update with several optimizers."""
    loop = Loop()
    for number in range(6):
        loop.step(number, *parts)
    run = loop.run(tmp_path)
    assert milliseconds(run) == {**TRAINING, "optimizer": 4 * optimizers, "other": 1}
    assert judge(run).diagnosis.verdicts == ()


@pytest.mark.parametrize("calls", [1, 2])
def test_what_an_update_calls_keeps_its_phase(calls: int, tmp_path: Path) -> None:
    """Lightning's closure has all of forward and backward in it, LBFGS calls one several times."""
    loop = Loop()
    for number in range(6):
        loop.step(number, "data", " ".join(["forward zero backward"] * calls))
    expected = {**TRAINING, "forward": 20 * calls, "backward": 30 * calls, "other": calls}
    assert milliseconds(loop.run(tmp_path)) == expected


def test_a_loop_without_backward_is_forward_and_not_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says so, and not that all is within the limits."""
    loop = Loop()
    for number in range(6):
        loop.step(number, "data", "inference", "pause")
    run = loop.run(tmp_path)
    assert milliseconds(run) == {**TRAINING, "backward": 0, "optimizer": 0, "other": 2}
    assert (judge(run).judged, judge(run).diagnosis.verdicts) == (False, ())
    assert main(["replay", str(tmp_path / "rank0.json")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "nothing is judged: no step has a backward pass or an update: it is evaluation or inference" in printed
    assert "within the limits" not in printed


def test_steps_of_validation_are_left_out_of_training(tmp_path: Path) -> None:
    """They are marked alike."""
    loop = Loop()
    for number in range(12):
        training = number % 3 > 0
        loop.step(number, "data", *(("forward", "backward", "optimizer") if training else ("inference", "pause")))
    run = loop.run(tmp_path)
    assert run.ranks[0].steps.numbers == (1, 2, 4, 5, 7, 8, 10, 11)
    assert milliseconds(run) == {**TRAINING, "other": 0}


def test_an_evaluation_inside_a_step_is_no_serialization(tmp_path: Path) -> None:
    """No backward follows, and the operators are a module's; what logs has none of them and is other."""
    loop = Loop()
    for number in range(8):
        loop.step(number, "data", "forward", "backward", "optimizer", "pause", *["inference"] * (number % 2), "pause")
    run = loop.run(tmp_path)
    assert milliseconds(run) == {**TRAINING, "forward": 30, "other": 4}
    assert judge(run).diagnosis.verdicts == ()


@pytest.mark.parametrize("name", ["_c10d_functional::wait_tensor", "aten::mm"])
def test_an_operator_that_waits_for_a_collective_does_no_work(name: str, tmp_path: Path) -> None:
    """As tensor parallelism does, in forward and inside the autograd engine."""
    loop = Loop()
    for number in range(6):
        loop.step(number, "data", "forward", "backward", "optimizer")
        update = loop.events[-2]["ts"]
        for begin in (update - 40 * MS, update - 10 * MS):
            wait = {"ph": "X", "pid": 1, "tid": 1, "ts": begin, "dur": 5 * MS, "args": {}}
            loop.events.append({**wait, "cat": "cpu_op", "name": name})
            loop.events.append({**wait, "cat": "user_annotation", "name": "gloo:all_reduce", "tid": 9})
    waits = 10 * ("wait" in name)
    expected = {**TRAINING, "forward": 20 - waits / 2, "backward": 30 - waits / 2, "communication": waits, "other": 0}
    assert milliseconds(loop.run(tmp_path)) == expected


def test_a_hook_of_backward_that_waits_for_a_collective_does_no_work(tmp_path: Path) -> None:
    """FSDP gathers parameters in hooks, which run in the engine's node and in no operator."""
    loop = Loop()
    for number in range(6):
        loop.step(number, "data", "forward", "backward", "optimizer")
        begin = loop.events[-2]["ts"] - 20 * MS
        wait = {"ph": "X", "cat": "user_annotation", "pid": 1, "ts": begin, "dur": 12 * MS, "args": {}}
        loop.events.append({**wait, "name": "FSDP::all_gather (layers.0)", "tid": 1})
        loop.events.append({**wait, "name": "gloo:all_gather", "tid": 9})
    assert milliseconds(loop.run(tmp_path)) == {**TRAINING, "backward": 18, "communication": 12, "other": 0}


@pytest.mark.parametrize(
    ("name", "works"),
    [
        ("RegisterPostBackwardFunctionBackward", False),  # FSDP2
        ("_SeqAllToAllBackward", False),
        ("PythonSubclass", False),
        ("torch::autograd::AccumulateGrad", False),  # a hook behind it
        ("CompiledFunctionBackward", True),
        ("Torch-Compiled Region: 0/0", True),
        ("my_kernels::fused", True),
    ],
)
def test_a_function_that_waits_for_a_collective_does_no_work(name: str, *, works: bool, tmp_path: Path) -> None:
    """One of Python's works in the operators that it calls; what is compiled calls none."""
    loop = Loop()
    for number in range(6):
        loop.step(number, "data", "forward", "backward", "optimizer")
        begin = loop.events[-2]["ts"] - 20 * MS
        frame = {"ph": "X", "cat": "cpu_op", "pid": 1, "ts": begin, "dur": 12 * MS, "args": {}}
        loop.events.append({**frame, "name": name, "tid": 1})
        loop.events.append({**frame, "name": "aten::mul", "tid": 1, "dur": 2 * MS})
        loop.events.append({**frame, "name": "gloo:all_reduce", "cat": "user_annotation", "tid": 9})
    waits = 0 if works else 10
    assert milliseconds(loop.run(tmp_path)) == {**TRAINING, "backward": 30 - waits, "communication": waits, "other": 0}


@pytest.mark.parametrize(
    ("name", "compared"), [("nccl:all_reduce", True), ("nccl:send 0->1", False), ("gloo:recv", False)]
)
def test_ranks_that_send_to_one_another_are_compared_by_a_mesh_alone(
    name: str, *, compared: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The longest stage of a pipeline is no straggler, and its bubble no transfer."""
    paths = write(Job([Work(), Work(), Work(backward=80), Work()], transfer=100), tmp_path)
    for path in paths:
        path.write_text(path.read_text().replace("nccl:all_reduce", name))
    assert main(["replay", *map(str, paths), "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    verdicts = {(each["alert"], each["rank"]) for each in run["verdicts"]}
    both = {("TrainingStraggler", "2"), ("TrainingCommunicationBound", "")}
    assert verdicts == (both if compared else set())
    why = (
        "ranks send to one another, as pipeline stages do, and no mesh in the traces says which ranks do the same work"
    )
    unsaid = {"what": "stragglers, data imbalance, communication-bound", "why": why}
    assert (unsaid in run["not_judged"]) is not compared


def test_each_of_several_batches_before_one_backward_is_forward(tmp_path: Path) -> None:
    """As of a loss that is summed up."""
    loop = Loop()
    for number in range(6):
        loop.step(number, "data", "forward", "data", "forward", "backward", "optimizer")
    assert milliseconds(loop.run(tmp_path)) == {**TRAINING, "data": 2, "forward": 40, "other": 0}


def test_too_few_steps_are_said_to_be_not_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One step shows nothing, so nothing is within limits."""
    loop = Loop()
    loop.step(1, "data", "forward", "backward", "optimizer")
    loop.run(tmp_path)
    assert main(["replay", str(tmp_path / "rank0.json")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "nothing is judged: 1 whole steps; trace at least 3" in printed


OLD = {"cpu_op": "Operator", "user_annotation": "Operator", "kernel": "Kernel", "gpu_memcpy": "Memcpy"}
OLD |= {"gpu_memset": "Memset", "cuda_runtime": "Runtime"}


def _edited(folder: Path, change: Callable[[int, list[Event]], Any], job: Job | None = None) -> TracedRun:
    """Return the run of a job whose third rank is slow in backward, with its traces changed."""
    work = Work()
    paths = write(job or Job([work, work, Work(backward=64), work]), folder)
    for rank, path in enumerate(paths):
        document = json.loads(path.read_bytes())
        changed = change(rank, document["traceEvents"])
        path.write_text(json.dumps(document if changed is None else changed))
    return read_run(paths)


def _marks(events: list[Event]) -> list[Event]:
    return [event for event in events if event["name"].startswith("ProfilerStep#") and event["ph"] == "X"]


def _old(_: int, events: list[Event]) -> None:
    for event in events:
        event["cat"] = OLD.get(event.get("cat", ""), event.get("cat", ""))


def _same_number(rank: int, events: list[Event]) -> None:
    if rank == 0:
        marks = _marks(events)
        marks[1]["name"] = marks[2]["name"]


def _shifted(_: int, events: list[Event]) -> None:
    events += [{**event, "ts": event["ts"] + 100, "dur": event["dur"] - 90} for event in _marks(events)]


def _around(_: int, events: list[Event]) -> None:
    marks = _marks(events)
    events.append({**marks[0], "dur": marks[-1]["ts"] + marks[-1]["dur"] - marks[0]["ts"]})


def _not_numbered(_: int, events: list[Event]) -> None:
    for event in _marks(events):
        event["name"] = "ProfilerStep#*"


def _missing(rank: int, events: list[Event]) -> None:
    if rank == 1:
        for event in _marks(events)[2:5]:
            events.remove(event)


def _overlong(rank: int, events: list[Event]) -> None:
    if rank == 0:
        kernels = [event for event in events if event.get("cat") == "kernel"]
        kernels[len(kernels) // 2]["dur"] = 1_600_000.0


def _null(_: int, events: list[Event]) -> None:
    events.insert(0, None)  # type: ignore[arg-type] - as some tools write it


@pytest.mark.parametrize(
    "change",
    [_old, _same_number, _shifted, _around, _not_numbered, _missing, _overlong, _null],
    ids=lambda each: each.__name__,
)
def test_a_straggler_is_named_whatever_the_marks_and_the_version(
    change: Callable[[int, list[Event]], Any], tmp_path: Path
) -> None:
    """Never a traceback, and nobody else."""
    run = _edited(tmp_path, change)
    found = judge(run).diagnosis.verdicts
    assert [(verdict.alert, verdict.rank, verdict.phase) for verdict in found] == [
        ("TrainingStraggler", "2", "backward")
    ]


_OF_PYTHON = (
    '{"ph": "X", "cat": "python_function", "name": "NAME", "pid": 1, "tid": 1, "ts": 1, "dur": 1\n, "args": {ARGS}}'
)


@pytest.mark.parametrize(
    "event",
    [
        _OF_PYTHON.replace("NAME", '{"device": "cpu"}(12): run'),
        _OF_PYTHON.replace("ARGS", '"CallFrom": "{"device": "cpu"}:2", "Python id": 41'),
        _OF_PYTHON.replace("NAME", r"C:\Users\users\train.py(3): step"),
        _OF_PYTHON.replace("python_function", "cpu_op").replace("NAME", r"C:\Users\users\train.py(3): step"),
        _OF_PYTHON.replace("ARGS", '"memory bandwidth (GB/s)": inf, "occupancy %": -nan'),
        _OF_PYTHON.replace("ARGS", '"Process Group Description": , "Process Group Ranks": "[]"'),
        _OF_PYTHON.replace("NAME", "a\x01\n"),
    ],
    ids=["quotes", "quotes of a caller", "Windows", "Windows' operator", "no number", "no value", "control"],
)
@pytest.mark.parametrize("place", ["first", "last"])
def test_what_torch_writes_beside_json_is_read(event: str, place: str, tmp_path: Path) -> None:
    """Torch escapes neither quotes in the names of generated code nor the paths of Windows."""
    paths = write(Job([Work(), Work(), Work(backward=64), Work()]), tmp_path)
    for path in paths:
        document = json.loads(path.read_text())
        document["traceEvents"].insert(0 if place == "first" else len(document["traceEvents"]), "HERE")
        path.write_text(json.dumps(document).replace('"HERE"', event.replace("ARGS", "")))
    found = judge(read_run(paths)).diagnosis.verdicts
    assert [(verdict.alert, verdict.rank) for verdict in found] == [("TrainingStraggler", "2")]


@pytest.mark.parametrize("form", ["array", "mark of byte order"])
def test_other_forms_of_the_file_are_read(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The format permits the array alone; editors of Windows write a mark of the byte order."""
    paths = write(Job([Work(), Work()]), tmp_path)
    for path in paths:
        text = path.read_text()
        events = json.dumps(json.loads(text)["traceEvents"])
        path.write_bytes(events.encode() if form == "array" else b"\xef\xbb\xbf" + text.encode())
    assert main(["replay", *map(str, paths)]) == 0
    assert "no verdict: what 12 steps can show" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "name",
    [
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "void deep_ep::internode::dispatch<false, 8, false>(int4*, float*)",
        "void deep_ep::intranode::combine<__nv_bfloat16, 8, 768>(int4*)",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(RankData*)",
        "two_shot_all_reduce_kernel",
        "multimem_all_gather_kernel",
        "userbuffers_fp16_sum_inplace_gpu_rr",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<__nv_bfloat16, 8>",
        "void sglang::all_reduce_one_shot_kernel<__hip_bfloat16>",
        "mori::moe::EpDispatchInterNodeKernel<__hip_bfloat16>",
        "all_to_all_vdev_2d_kernel",
        "void (anonymous namespace)::reduceScatter<float>",
    ],
)
def test_kernels_that_communicate_are_no_compute(name: str) -> None:
    """By any library, in categories old and new."""
    assert kind_of("kernel", name) is kind_of("Kernel", name) is Kind.COLLECTIVE_KERNEL


@pytest.mark.parametrize(
    "name",
    [
        "gemm_fwd",
        "void at::native::reduce_kernel<512, 1>",
        "multi_tensor_apply",
        "void vectorized_gather_kernel<16, long>",
        "void BlockAllReduce<float, 128>",
        "warp_all_reduce_softmax",
        "rnn_step_dispatch",
        "triton_poi_fused_all_gather_into_tensor_cat_3",
    ],
)
def test_kernels_that_compute_are_compute(name: str) -> None:
    """A reduction within a device is none of a job; nor is what Inductor calls by the operators around it."""
    assert kind_of("kernel", name) is Kind.KERNEL


@pytest.mark.parametrize(
    "name",
    [
        "Memcpy HtoD (Pageable -> Device)",
        "CopyHostToDevice",
        "Memcpy H2D (HOST -> DEVICE)",
        "Memcpy M2D (MEMORY(Unknown) -> DEVICE)",
    ],
)
def test_copies_to_a_device_are_of_any_vendor(name: str) -> None:
    """NVIDIA's, AMD's and Intel's; the way back is none."""
    assert kind_of("gpu_memcpy", name) is Kind.COPY_IN
    for back in ("Memcpy DtoH (Device -> Pinned)", "CopyDeviceToHost", "Memcpy D2M (DEVICE -> MEMORY(Unknown))"):
        assert kind_of("gpu_memcpy", back) is Kind.COPY


def test_the_peer_group_of_json_lines_reaches_the_rules() -> None:
    """Ranks of a pipeline's stages are compared within their stage."""
    step = {"started_unix_ns": 0, "duration_ns": 10**9, "phases_ns": {Phase.FORWARD.label: 10**9}}
    made = recording_of({("r", 0): [{**step, "peer_group": "stage0"}], ("r", 1): [step]})
    groups = {
        (dict(series.labels)["training_rank"], dict(series.labels).get("training_peer_group")) for series in made.series
    }
    assert groups == {("0", "stage0"), ("1", None)}
