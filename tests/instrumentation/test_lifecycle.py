"""How ranks begin and end, and which processes stay silent."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from laggard.shared import statefile
from laggard.shared.phases import RankState
from laggard.shared.statefile import EndedBy, Ending
from tests.support.facts import FACTS
from tests.support.launch import PROGRAMS, Launcher
from tests.support.otlp import Receiver

LOOP = PROGRAMS / "loop.py"


def snapshot(launcher: Launcher) -> statefile.Snapshot:
    """The one state file of the launched process."""
    (path,) = launcher.state_directory.iterdir()
    return statefile.read(path)


def ended_as(receiver: Receiver) -> list[str]:
    """The rank's state in the newest export."""
    return [dict(labels)["training.state"] for labels, yes in receiver.series("training.rank.state").items() if yes]


@pytest.mark.parametrize(
    ("ending", "state", "code"),
    [
        ("finish", RankState.FINISHED, 0),
        ("raise", RankState.FAILED, 1),
        ("wait", RankState.FAILED, -signal.SIGTERM),
        ("stuck", RankState.FAILED, -signal.SIGTERM),
    ],
)
def test_every_ending_is_reported_with_all_steps(
    ending: str, state: RankState, code: int, launcher: Launcher, receiver: Receiver
) -> None:
    """A clean end, an exception and SIGTERM lose no step, and the exit code stays what it was without laggard.

    ``stuck`` is SIGTERM for a rank whose main thread never returns to the interpreter, as in a hung collective.
    """
    process = launcher.fork(LOOP, ending, **receiver.environment, OTEL_METRIC_EXPORT_INTERVAL="600000")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("trained")
    if code < 0:
        assert snapshot(launcher).alive
        process.terminate()
    began = time.monotonic()
    process.communicate(timeout=30)
    assert time.monotonic() - began < 5
    assert process.returncode == code
    final = snapshot(launcher)
    assert (final.state, final.steps, final.alive) == (state, 30, False)
    assert (final.facts.run, final.facts.rank, final.facts.workload) == ("test", 0, "loop")
    assert ended_as(receiver) == [state.label]
    assert receiver.value("training.steps") == 30


@pytest.mark.parametrize(
    ("ending", "code", "state", "said"),
    [
        ("finish", 0, RankState.FINISHED, Ending(EndedBy.EXIT, 0)),
        ("exit", 3, RankState.FAILED, Ending(EndedBy.EXIT, 3)),
        ("message", 1, RankState.FAILED, Ending(EndedBy.EXIT, 1)),
        ("raise", 1, RankState.FAILED, Ending(EndedBy.EXCEPTION, 1, "RuntimeError")),
        ("finally", 1, RankState.FAILED, Ending(EndedBy.EXCEPTION, 1, "KeyError")),
        ("prompt", 0, RankState.FINISHED, Ending(EndedBy.EXIT, 0)),
        ("at once", 4, RankState.RUNNING, Ending()),
        ("abort", 4, RankState.RUNNING, Ending(EndedBy.SIGNAL, signal.SIGTERM)),
        ("restarted", 4, RankState.RUNNING, Ending()),
        ("caught", 0, RankState.FAILED, Ending(EndedBy.EXCEPTION, 1, "KeyError")),
    ],
)
def test_ends_are_told_apart(ending: str, code: int, state: RankState, said: Ending, launcher: Launcher) -> None:
    """The state file keeps the exit code, or the exception; of ``os._exit`` it knows nothing but that nobody lives.

    What fails at a prompt, as in a cell of a notebook, ends no process.
    Where another thread destroys the process group of one that trains, the rank was asked to end (``abort``), unless it
    goes on (``restarted``). ``caught`` is Ray's way: the exception of the training stays, though the process goes on,
    its group is destroyed, and it exits with 0.
    """
    process = launcher.fork(LOOP, ending)
    process.communicate(timeout=60)
    final = snapshot(launcher)
    assert (process.returncode, final.state, final.ending, final.alive) == (code, state, said, False)


def test_a_rank_that_is_killed_after_its_training_has_finished(launcher: Launcher) -> None:
    """Ray kills its workers when they have taken their process group down: at once they have finished, and stay so."""
    process = launcher.fork(LOOP, "destroy")
    assert process.stdout is not None
    assert any(line.startswith("destroyed") for line in process.stdout)
    process.terminate()
    process.communicate(timeout=30)
    final = snapshot(launcher)
    assert (process.returncode, final.state, final.ending) == (
        -signal.SIGTERM,
        RankState.FINISHED,
        Ending(EndedBy.SIGNAL, signal.SIGTERM),
    )


def test_a_rank_that_took_its_process_group_down_has_finished(launcher: Launcher) -> None:
    """What it does afterwards, and for how long, is no training: the state file says so while the process lives."""
    process = launcher.fork(LOOP, "destroy")
    assert process.stdout is not None
    # Older versions of gloo print a line of their own.
    assert any(line.startswith("trained") for line in process.stdout)
    deadline = time.monotonic() + 10
    while snapshot(launcher).state is not RankState.FINISHED:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert snapshot(launcher).alive


@pytest.mark.skipif(statefile.boottime_ns() < statefile.OLD_NS, reason="nothing is old so soon after the boot")
def test_a_rank_removes_what_the_dead_left(launcher: Launcher) -> None:
    """A state file that a rank of this user left long ago is gone when the next rank trains."""
    left = statefile.StateWriter(launcher.state_directory, replace(FACTS, start_boottime_ns=1))
    left.words[statefile.PHASE] = statefile.pack(0, 1)
    left.close()
    launcher.run_forked(LOOP, "finish")
    assert snapshot(launcher).state is RankState.FINISHED
    assert not left.path.exists()


@pytest.mark.parametrize("arguments", [("finish", "fork"), ("finish", "spawn"), ("fork",)])
def test_children_of_a_rank_export_nothing(arguments: tuple[str, ...], launcher: Launcher, receiver: Receiver) -> None:
    """Data workers of later epochs, forked with all that the parent measured, and other children stay silent."""
    launcher.run_forked(LOOP, *arguments, **receiver.environment, OTEL_METRIC_EXPORT_INTERVAL="200")
    instances = {instance for instance, _, _ in receiver.points}
    assert len(instances) == 1
    assert receiver.value("training.steps") == 30
    assert len(list(launcher.state_directory.iterdir())) == 1


def test_first_batch_of_an_epoch_is_kept_apart(launcher: Launcher, receiver: Receiver) -> None:
    """Of three epochs the first is warm-up; the step with the first batch of the others is counted and excluded."""
    launcher.run_forked(LOOP, "finish", **receiver.environment)
    assert receiver.value("training.steps.excluded", training__reason="first_batch") == 2
    assert receiver.value("training.steps.excluded", training__reason="warmup") == 3
    # The epoch's last fetch, which only finds the end, closed the last step.
    assert receiver.value("training.steps.excluded", training__reason="incomplete") == 0
    assert receiver.value("training.step.duration").count == 25


def test_a_process_that_does_not_train_opens_nothing(launcher: Launcher) -> None:
    """Inference under the same environment binds no port, writes no state file and starts no thread of ours."""
    script = (
        "import threading, torch, sys; model = torch.nn.Linear(2, 2); print(model(torch.ones(2)).shape);"
        "print(sorted(t.name for t in threading.enumerate()), 'laggard.prometheus' in sys.modules)"
    )
    output = launcher.run("python", "-c", script, OTEL_METRICS_EXPORTER="laggard_prometheus")
    assert output.splitlines()[-1] == "['MainThread'] True"
    assert not launcher.state_directory.exists()


def test_without_torch_nothing_is_imported(launcher: Launcher) -> None:
    """A launcher or a tool under the same environment does not pay for torch."""
    assert launcher.run("python", "-c", "import sys; print('torch' in sys.modules)") == "False\n"


@pytest.mark.parametrize("body", ["counted = 1", "import no_such_module", "1 / 0"])
def test_the_sitecustomize_of_a_site_does_what_it_does_without_us(
    body: str, launcher: Launcher, tmp_path: Path
) -> None:
    """It runs once, in the name that it has, and what fails in it is printed by Python and stops nothing."""
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.runs = getattr(sys, 'runs', 0) + 1\n{body}\n")
    program = "import sys, sitecustomize\nprint(sys.runs, vars(sitecustomize).get('counted'))"
    command = (sys.executable, "-c", program if body == "counted = 1" else "import sys; print(sys.runs)")
    environment = {"PYTHONPATH": str(tmp_path)}
    plain = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    process = launcher.start(sys.executable, "-c", f"{command[-1]}\nprint('laggard' in sys.modules)", **environment)
    output, errors = process.communicate(timeout=60)
    assert (output, errors[-len(plain.stderr) :]) == (f"{plain.stdout}True\n", plain.stderr)
    assert plain.stdout == ("1 1\n" if body == "counted = 1" else "1\n")


def test_what_is_printed_without_standard_files_reaches_nothing_of_ours(launcher: Launcher, tmp_path: Path) -> None:
    """Where 0, 1 and 2 are closed, as in a daemon, native code prints into whatever has these numbers now."""
    program = tmp_path / "train.py"
    program.write_text(
        "import contextlib, os, torch\n"
        "model = torch.nn.Linear(2, 2)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(5):\n"
        "    model(torch.ones(2)).sum().backward()\n"
        "    optimizer.step()\n"
        "    for descriptor in range(3):\n"
        "        with contextlib.suppress(OSError):\n"
        "            os.write(descriptor, b'a warning of a library')\n"
    )
    process = launcher.start("sh", "-c", '"$@" <&- >&- 2>&-', "sh", sys.executable, str(program))
    process.communicate(timeout=60)
    assert process.returncode == 0
    final = snapshot(launcher)
    assert (final.state, final.steps) == (RankState.FINISHED, 5)


def test_a_state_folder_that_can_not_be_used_costs_one_line(launcher: Launcher, tmp_path: Path) -> None:
    """Training goes on without a state file, and one warning names the folder, the reason and the variable."""
    obstacle = tmp_path / "file"
    obstacle.write_text("")
    process = launcher.fork(LOOP, "finish", LAGGARD_STATE_DIR=str(obstacle / "state"))
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert output.startswith("trained")
    (line,) = [line for line in errors.splitlines() if "state" in line]
    assert str(obstacle) in line
    assert "Not a directory" in line
    assert "LAGGARD_STATE_DIR" in line


def test_a_taken_port_is_passed_over_and_the_state_file_says_which(launcher: Launcher) -> None:
    """The next free port serves the metrics, a warning says so, and discovery finds it in the state file."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = launcher.fork(
            LOOP,
            "finish",
            OTEL_METRICS_EXPORTER="laggard_prometheus",
            OTEL_EXPORTER_PROMETHEUS_HOST="127.0.0.1",
            OTEL_EXPORTER_PROMETHEUS_PORT=str(port),
        )
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert f"laggard: port {port} is taken; the metrics of local rank 0 are on {port + 1}\n" in errors
    assert snapshot(launcher).facts.metrics_port == port + 1


def test_a_notebook_is_instrumented_when_it_asks(launcher: Launcher, receiver: Receiver) -> None:
    """With torch, a model and an event loop there already, the steps after instrument() count, and only those."""
    # A job without a launcher's instrumentation, as a kernel is; providers come from the environment.
    variables = {**receiver.environment, "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "laggard"}
    process = launcher.fork(PROGRAMS / "notebook.py", **variables)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert output == '{"trained": 120}\n'
    # Three epochs before uninstrument() and one after the second instrument().
    assert receiver.value("training.steps") == 80
    assert receiver.value("training.samples") == 320
    # Less three steps of warm-up each, and the first batches of the second and the third epoch.
    assert receiver.value("training.phase.duration", training__phase="forward").count == 72
    assert "laggard: " not in errors


def test_an_elastic_restart_is_another_life_of_the_same_rank(launcher: Launcher, receiver: Receiver) -> None:
    """Each life has its own state file with the number of restarts; the first failed, the second finished."""
    launcher.run(
        "torchrun",
        "--nproc-per-node",
        "1",
        "--max-restarts",
        "1",
        "--monitor-interval",
        "0.1",
        PROGRAMS / "elastic.py",
        **receiver.environment,
    )
    lives = [statefile.read(path) for path in launcher.state_directory.iterdir()]
    assert sorted((life.facts.restarts, life.state, life.steps) for life in lives) == [
        (0, RankState.FAILED, 10),
        (1, RankState.FINISHED, 10),
    ]
    assert receiver.value("training.restarts") == 1


def test_overload_is_dropped_and_counted(launcher: Launcher, receiver: Receiver) -> None:
    """More events than the drain takes never grow the buffer; the drops are counted, and so is a step they spoil."""
    longest = int(launcher.run_forked(PROGRAMS / "overload.py", **receiver.environment))
    assert longest == 100
    assert receiver.value("training.telemetry.dropped", training__reason="buffer_full") > 30_000
    # The step whose end was dropped reaches over a pause of a second to the next end that was kept.
    assert receiver.value("training.steps.excluded", training__reason="incomplete") > 0
    assert receiver.value("training.step.duration").sum < 1
