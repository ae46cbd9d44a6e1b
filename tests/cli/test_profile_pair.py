"""``laggard profile`` of a culprit and a healthy peer: who is chosen, how they are asked, what differs between them."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from laggard.shared import statefile
from laggard_cli.clusters import Run
from laggard_cli.errors import CommandError
from laggard_cli.main import main
from laggard_cli.profile.choice import Choice, choose_pair
from laggard_cli.prometheus import Prometheus
from tests.exporter.support import exporter
from tests.exporter.web.certificates import Authority
from tests.exporter.web.support import SECRET_HASH
from tests.support.fake_prometheus import Series, fake_prometheus, firing
from tests.support.launch import PROGRAMS, Launcher

#: One process for all of them: their fixture is dear.
pytestmark = pytest.mark.xdist_group("profile_pair")


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The state folder of two ranks that train, the second of which is slow in backward."""
    folder = tmp_path_factory.mktemp("training")
    with Launcher(folder) as launcher:
        ranks = [launcher.fork(PROGRAMS / "slow_rank.py", folder / "end", folder / "store", RANK=rank) for rank in "01"]
        deadline = time.monotonic() + 60
        while len(steps := _steps(launcher.state_directory)) < 2 or min(steps) < 5:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield launcher.state_directory
        assert [rank.poll() for rank in ranks] == [None, None]


def _steps(folder: Path) -> list[int]:
    return [statefile.read(file).steps for file in folder.glob("*.state")] if folder.exists() else []


def _assert_differs_in_backward(said: str) -> None:
    """The table says that rank 1 needs 150 ms more in backward, and in which operator."""
    assert "mean step of rank 1 (4 traced) and of rank 0 (4)" in said
    phases = {line.split()[-1]: line for line in said.splitlines()}
    for name in ("backward", "WorkBackward"):
        more = re.search(r"\+(\d+\.?\d*) ms", phases[name])
        assert more is not None
        # A busy machine adds or takes tens of milliseconds.
        assert 100 < float(more[1]) < 250
    # The others wait for it by as much.
    assert re.search(r"-\d+\.?\d* ms", phases["communication"])


def test_two_ranks_of_this_host_are_compared(state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a verdict the slower of two ranks is compared with the other, and training goes on."""
    before = min(_steps(state))
    assert main(["profile", "--steps", "4", "--state-dir", str(state), "--output", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert len(list(tmp_path.iterdir())) == 2
    _assert_differs_in_backward(said)
    assert min(_steps(state)) > before


def test_an_interrupt_stops_the_profiles(state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The ranks drop what was asked for and write nothing, and the next one who asks is served."""
    place = ["--state-dir", str(state), "--output", str(tmp_path)]
    command = [sys.executable, "-m", "laggard_cli.main", "profile", "--steps", "1000", *place]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(3)]
        assert said[0] == "asked ranks 0, 1 of test for 1000 steps\n"
        assert sorted(said[1:]) == [f"rank {rank}: profiles its next steps\n" for rank in (0, 1)]
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=20)
    assert rest == ("interrupted: ranks 0, 1 of test drop their profiles with the next step\n", "")
    assert process.returncode == 130
    assert list(tmp_path.iterdir()) == []
    assert {file.suffix for file in state.iterdir()} == {".state"}
    time.sleep(1.5)  # ranks look once a second
    assert main(["profile", "--steps", "1", "--ranks", "0", *place]) == 0
    assert f"rank 0: {tmp_path}/" in capsys.readouterr().out


def test_functions_show_a_fault_between_the_phases(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the verdict is on other, no operator is to blame: stacks are recorded, and the function is named."""
    output = tmp_path / "output"
    output.mkdir()
    alert = firing("TrainingStraggler", "test", "1")
    alert["labels"]["training_phase"] = "other"
    with Launcher(tmp_path) as launcher, fake_prometheus(known("test", {0: 0.01, 1: 0.2}), [alert]) as address:
        arguments = [PROGRAMS / "slow_rank.py", tmp_path / "end", tmp_path / "store", "other"]
        _ = [launcher.fork(*arguments, RANK=rank) for rank in "01"]
        deadline = time.monotonic() + 60
        while len(steps := _steps(launcher.state_directory)) < 2 or min(steps) < 5:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        place = ["--state-dir", str(launcher.state_directory), "--output", str(output)]
        assert main(["profile", "--prometheus", address, "--steps", "4", *place]) == 0
        said = capsys.readouterr().out
        assert main(["profile", "--prometheus", address, "--steps", "2", "--no-stacks", *place]) == 0
        without = capsys.readouterr().out
    assert said.startswith("TrainingStraggler names rank 1 of test, phase other; rank 0 is a healthy peer\n")
    (function,) = (line for line in said.splitlines() if line.endswith(": write_a_log"))
    assert "slow_rank.py(" in function
    more = re.search(r"\+(\d+\.?\d*) ms", function)
    assert more is not None
    assert 100 < float(more[1]) < 250
    assert "write_a_log" not in without


def _guarded(folder: Path) -> tuple[Authority, Path, Path]:
    """Write a web configuration with TLS and a password; return who signed it, its file, and one with the password."""
    authority = Authority(folder, "authority")
    pair = authority.issue("localhost", file="server")
    web = folder / "web.yml"
    web.write_text(
        f"tls_server_config: {{cert_file: {pair.certificate}, key_file: {pair.key}}}\n"
        f"basic_auth_users: {{me: {SECRET_HASH}}}\n"
    )
    credentials = folder / "credentials"
    credentials.write_text("me:secret\n")
    return authority, web, credentials


def test_ranks_of_another_host_are_asked_through_their_exporter(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The culprit of a verdict and its peer, over TLS with a password, and the files come here."""
    authority, web, credentials = _guarded(tmp_path)
    output, nothing = tmp_path / "output", tmp_path / "nothing"
    output.mkdir()
    flags = [f"--web.config.file={web}", f"--state.directory={state}", "--collector.disable-defaults"]
    with exporter(*flags, "--web.enable-profiling") as node:
        instance = node.url.removeprefix("https://").removesuffix("/metrics")
        series = {
            **known("test", {0: 0.01, 1: 0.04}),
            "training_process_up": [(labels("test", rank, instance=instance), 1) for rank in (0, 1)],
        }
        with fake_prometheus(series, [firing("TrainingStraggler", "test", "1")]) as address:
            ask = ["profile", "--prometheus", address, "--steps", "4", "--state-dir", str(nothing)]
            ask += ["--output", str(output), "--exporter-ca", str(authority.certificate)]
            assert main([*ask, "--exporter-credentials", str(credentials)]) == 0
            said = capsys.readouterr().out
            credentials.write_text("me:wrong")
            assert main([*ask, "--exporter-credentials", str(credentials)]) == 1
            refused = capsys.readouterr().out
            assert main(ask) == 2
            nobody = capsys.readouterr().err
    assert said.startswith("TrainingStraggler names rank 1 of test; rank 0 is a healthy peer\n")
    assert f"asked rank 1 of test for 4 steps, at https://{instance}\n" in said
    assert "rank 1: profiles its next steps\n" in said
    assert {file.name.partition(".")[0] for file in output.iterdir()} == {"test-0", "test-1"}
    assert all(f"rank {file.name[5]}: {file}\n" in said for file in output.iterdir())
    _assert_differs_in_backward(said)
    assert f"rank 1: https://{instance}: the user or the password is wrong\n" in refused
    assert "--exporter-credentials or --exporter-certificate is needed" in nobody
    # Nothing is left behind but what the ranks wrote.
    assert not list(state.glob("*.control"))


def labels(run: str, rank: int, **more: str) -> dict[str, str]:
    """Labels of a rank's series."""
    return {"training_run": run, "training_rank": str(rank), **more}


def known(run: str, own: dict[int, float], groups: Sequence[str] = ()) -> dict[str, Series]:
    """What Prometheus knows of a run: own times by rank, and their peer groups by rank."""
    group = dict(enumerate(groups))
    return {
        "count by (cluster, training_run)": [({"training_run": run}, 1)],
        "own_seconds:compared": [
            (labels(run, rank, training_peer_group=group.get(rank, "")), value) for rank, value in own.items()
        ],
    }


def chosen(series: dict[str, Series], alerts: list[dict[str, Any]]) -> Choice | str:
    """The choice, or why there is none."""
    with fake_prometheus(series, alerts) as address, contextlib.closing(Prometheus(address)) as client:
        try:
            return choose_pair(client, None)
        except CommandError as error:
            return str(error)


def test_the_peer_is_the_usual_one_of_the_culprits_group() -> None:
    """The median own time among those of the same peer group whom no verdict names."""
    own = {0: 0.10, 1: 0.11, 2: 0.2, 3: 0.12, 4: 0.13, 5: 0.3, 6: 0.31}
    series = known("r", own, groups=["a", "a", "a", "a", "a", "b", "b"])
    slow = [firing("TrainingGpuThrottled", "r", "4"), firing("TrainingStraggler", "r", "2")]
    dead = [firing("TrainingRankDied", "r", "0", severity="critical")]
    # Of 1 and 3, which no verdict names, the lower is the median of an even number.
    assert chosen(series, dead + slow) == Choice(Run("", "r"), culprit=2, peer=1, alert="TrainingStraggler")
    assert chosen(series, slow[:1]) == Choice(Run("", "r"), culprit=4, peer=1, alert="TrainingGpuThrottled")
    assert chosen(series, dead) == "no verdict names a rank that goes on; give --ranks"
    alone = known("r", {0: 0.1, 1: 0.2}, groups=["a", "b"])
    assert chosen(alone, [firing("TrainingStraggler", "r", "1")]) == (
        "rank 1 of r has no peer that no verdict names; give --ranks"
    )


def test_the_gravest_verdict_is_looked_into() -> None:
    """A critical verdict on a rank goes before a straggler, and what a verdict says of the phase is kept."""
    series = known("r", {0: 0.1, 1: 0.11, 2: 0.2, 3: 0.12})
    slow = firing("TrainingStraggler", "r", "2")
    slow["labels"]["training_phase"] = "data"
    lost = firing("TrainingGpuLost", "r", "3", severity="critical")
    assert chosen(series, [slow, lost]) == Choice(Run("", "r"), culprit=3, peer=0, alert="TrainingGpuLost")
    choice = chosen(series, [slow])
    assert choice == Choice(Run("", "r"), culprit=2, peer=1, alert="TrainingStraggler", phase="data")
    assert isinstance(choice, Choice)
    assert choice.in_code


@pytest.mark.parametrize("ranks", [[], ["--ranks", "0,1"]])
def test_a_stalled_run_is_not_profiled(ranks: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is said at once, with what shows where it stands; nobody is asked. Another run's culprit is chosen."""
    alerts = [firing("TrainingStalled", "my run", "3", severity="critical"), firing("TrainingStraggler", "r", "1")]
    series = known("my run", {0: 0.1, 3: 0.1})
    with fake_prometheus(series, alerts) as address:
        place = ["--state-dir", str(tmp_path / "state"), "--output", str(tmp_path)]
        assert main(["profile", "--prometheus", address, "--run", "my run", *ranks, *place]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "laggard profile: error: my run is stalled (TrainingStalled): no step ends that could be profiled; "
        "laggard stacks --run 'my run' --ranks 3 shows where it stands\n"
    )
    both = {
        **known("r", {0: 0.1, 1: 0.2}),
        "count by (cluster, training_run)": [({"training_run": run}, 1) for run in ("my run", "r")],
    }
    assert chosen(both, alerts) == Choice(Run("", "r"), culprit=1, peer=0, alert="TrainingStraggler")


def test_a_run_is_needed_where_several_have_a_culprit() -> None:
    """The line names them."""
    series: dict[str, Series] = {"count by (cluster, training_run)": [({"training_run": run}, 1) for run in "ab"]}
    alerts = [firing("TrainingStraggler", run, "1") for run in "ab"]
    assert chosen(series, alerts) == "--run is needed: verdicts name ranks of a, b"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "a rank runs on another host: --exporter-credentials or --exporter-certificate is needed to ask its node"),
        (["--exporter-credentials", "/nowhere"], "--exporter-credentials /nowhere: No such file or directory"),
        (["--exporter-credentials", "{none}"], "--exporter-credentials {none}: holds no user:password"),
        (["--exporter-credentials", "{file}", "--exporter-ca", "/nowhere"], "--exporter-ca /nowhere: No such file"),
        (["--exporter-certificate", "/nowhere"], "--exporter-certificate /nowhere: No such file or directory"),
        (["--exporter-credentials", "{file}"], "rank 7 of r is not on this host, and no node exporter in Prometheus"),
        (
            ["--exporter-credentials", "{file}", "--ranks", "1", "--exporter-url", "http://{{host}}"],
            "--exporter-url 'http://node-1' does not begin with https://; a password would be readable",
        ),
        (["--ranks", "x"], "--ranks must be numbers, got 'x'; try 0,3"),
    ],
)
def test_what_can_not_be_asked_is_one_line(
    arguments: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line names the flag, its value and what to do; nobody is asked."""
    file, none = tmp_path / "file", tmp_path / "none"
    file.write_text("user:password")
    none.write_text("nothing")
    series: dict[str, Series] = {
        "training_process_up": [(labels("r", 1, instance="10.0.0.1:9495"), 1)],
        "training_place": [(labels("r", 1, host_name="node-1"), 1)],
    }
    given = [word.format(file=file, none=none) for word in arguments]
    with fake_prometheus(series, []) as address:
        state = ["--state-dir", str(tmp_path / "state"), "--output", str(tmp_path)]
        assert main(["profile", "--prometheus", address, "--run", "r", *state, "--ranks", "7", *given]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"laggard profile: error: {expected.format(none=none)}")
    assert captured.err.count("\n") == 1


def test_an_exporter_that_refuses_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One without the page, and one that nobody reaches, cost a line and the exit code 1."""
    authority, web, credentials = _guarded(tmp_path)
    with exporter(f"--web.config.file={web}", "--collector.disable-defaults") as node:
        instance = node.url.removeprefix("https://").removesuffix("/metrics")
        series: dict[str, Series] = {
            "training_process_up": [
                (labels("r", 0, instance=instance), 1),
                (labels("r", 1, instance="127.0.0.1:1"), 1),
            ]
        }
        with fake_prometheus(series, []) as address:
            ask = ["profile", "--prometheus", address, "--run", "r", "--ranks", "0,1", "--output", str(tmp_path)]
            ask += ["--state-dir", str(tmp_path / "state"), "--exporter-credentials", str(credentials)]
            assert main([*ask, "--exporter-ca", str(authority.certificate)]) == 1
    first, second = sorted(capsys.readouterr().out.splitlines())
    assert first == (
        f"rank 0: https://{instance}: it takes no requests for profiles: start it with --web.enable-profiling"
    )
    assert second.startswith("rank 1: https://127.0.0.1:1: ")
