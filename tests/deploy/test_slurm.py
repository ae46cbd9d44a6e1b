"""The scripts for Slurm and ``laggard slurm``, under a real Slurm of two nodes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import opentelemetry
import pytest
import yaml

import laggard
from laggard.shared import statefile
from laggard.shared.phases import RankState
from laggard_cli.demo.servers import free_ports
from laggard_cli.main import main
from laggard_cli.run import defaults
from tests.deploy import booted
from tests.deploy.slurm_cluster import NODES, ROOT, SCRIPTS, TIMEOUT, Cluster, cluster
from tests.exporter.ranks.test_pages import prometheus
from tests.exporter.support import EXPORTER, Exporter, dead_file, fresh, live_rank, running
from tests.support.waiting import until

PROMETHEUS = ROOT / "deploy" / "prometheus" / "prometheus.yml"

#: One process for all of them: their fixture is dear.
pytestmark = pytest.mark.xdist_group("slurm")

UNITS = [SCRIPTS / f"laggard-slurm-targets.{kind}" for kind in ("service", "timer")]

#: A script that knows nothing of laggard. It trains until it is told to stop.
TRAINING = """
import json, os, sys, time
from pathlib import Path
import torch
import torch.distributed as dist

folder = Path(sys.argv[1])
dist.init_process_group("gloo")
(folder / f"environment-{dist.get_rank()}.json").write_text(json.dumps(dict(os.environ)))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
stop = torch.zeros(1)
while not stop:
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.05)
    stop += (folder / "stop").exists()
    dist.all_reduce(stop)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def slurm() -> Generator[Cluster, None, None]:
    """Run Slurm, with an installation of laggard as the document describes it."""
    with cluster() as running_:
        packages = running_.folder / "packages"
        packages.mkdir()
        for package in (Path(next(iter(opentelemetry.__path__))), Path(laggard.__path__[0])):
            (packages / package.name).symlink_to(package)
        torchrun = running_.folder / "bin" / "torchrun"
        torchrun.write_text(f'#!/bin/sh\nexec {sys.executable} -m torch.distributed.run "$@"\n')
        torchrun.chmod(0o755)
        yield running_


def laggard_slurm(slurm: Cluster, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``laggard slurm`` where Slurm's commands are."""
    return subprocess.run(
        [sys.executable, "-m", "laggard_cli.main", "slurm", *map(str, arguments)],
        env={**slurm.environment, **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


def scrape_configuration(targets: Path) -> str:
    """Return a configuration for Prometheus with the jobs of the document, and a short interval."""
    text = (ROOT / "docs" / "slurm.md").read_text()
    (block,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert "/var/lib/laggard-slurm/nodes.json" in block
    assert "/var/lib/laggard-slurm/nodes.json" in UNITS[0].read_text()
    assert yaml.safe_load(block)["global"] == yaml.safe_load(PROMETHEUS.read_text())["global"]
    _, _, rest = block.partition("\n")
    interval = "global: {scrape_interval: 500ms, scrape_timeout: 400ms}\n"
    return interval + rest.replace("/var/lib/laggard-slurm/nodes.json", str(targets))


def asked(server: str, query: str) -> list[dict[str, Any]]:
    """Return what Prometheus answers, nothing while it starts."""
    with contextlib.suppress(OSError):
        address = f"{server}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        with urllib.request.urlopen(address, timeout=TIMEOUT) as answer:
            return json.load(answer)["data"]["result"]
    return []


@contextlib.contextmanager
def node_exporters(slurm: Cluster, port: int) -> Iterator[None]:
    """Run the node exporter of each node, on the node's address."""
    with contextlib.ExitStack() as stack:
        for node, address in NODES.items():
            flags = [f"--web.listen-address={address}:{port}", f"--state.directory={slurm.states(node)}"]
            flags += ["--collector.disable-defaults", "--collector.state"]
            process = stack.enter_context(running([str(EXPORTER), *flags], stderr=subprocess.PIPE))
            Exporter(process)
        yield


def ranks(slurm: Cluster) -> dict[int, statefile.Snapshot]:
    """Return the state files of all nodes, by rank."""
    found: dict[int, statefile.Snapshot] = {}
    for file in (path for node in NODES for path in slurm.states(node).glob("*.state")):
        with contextlib.suppress(statefile.StateFileError):
            read = statefile.read(file)
            found[read.facts.rank] = read
    return found


def test_the_example_job(slurm: Cluster, tmp_path: Path) -> None:
    """A job that asks for it shows its run in Prometheus by the nodes' targets, ends, and is cleaned up later."""
    program = slurm.folder / "pretrain.py"
    program.write_text(TRAINING)
    exporter_port, master_port = free_ports(2)
    targets = tmp_path / "nodes.json"
    done = laggard_slurm(slurm, "targets", "--output", targets, "--port", str(exporter_port))
    assert (done.returncode, done.stderr) == (0, "")
    variables = {"LAGGARD": "on", "RANKS_PER_NODE": "1", "MASTER_PORT": str(master_port)}
    job = slurm.submit("--account=vision", SCRIPTS / "train.sbatch", program, slurm.folder, **variables)
    run = f"slurm-{job}.0"
    with node_exporters(slurm, exporter_port), prometheus(tmp_path, scrape_configuration(targets)) as server:
        until(
            lambda: len(ranks(slurm)) == 2 and all(rank.steps > 5 for rank in ranks(slurm).values()),
            "the ranks do not train",
            150,
        )
        facts = {number: rank.facts for number, rank in ranks(slurm).items()}
        assert {(number, each.run, each.world_size, each.workload) for number, each in facts.items()} == {
            (0, run, 2, "pretrain"),
            (1, run, 2, "pretrain"),
        }
        until(lambda: len(asked(server, f'training_steps_total{{training_run="{run}"}} > 5')) == 2, "no steps")
        shown = [each["metric"] for each in asked(server, "training_process_up == 1")]
        assert {(each["instance"], each["job"], each["training_run"]) for each in shown} == {
            ("node1", "laggard-exporter", run),
            ("node2", "laggard-exporter", run),
        }
        assert {each["training_rank"] for each in shown} == {"0", "1"}
        for number in (0, 1):
            given = json.loads((slurm.folder / f"environment-{number}.json").read_text())
            check_environment(slurm, given)
        (slurm.folder / "stop").touch()
        slurm.wait_for(job)
        finished = 'training_process_state{training_state="finished"} == 1'
        until(lambda: len(asked(server, finished)) == 2, "Prometheus does not see that the ranks have finished")
    assert {rank.state for rank in ranks(slurm).values()} == {RankState.FINISHED}
    stay = leave_behind(slurm, run)
    slurm.settings(keep=0)
    try:
        slurm.run("--nodes=2", "--wrap", "srun true")
    finally:
        slurm.settings(keep=3600)
    folder = slurm.states("node1")
    left = {path.name for path in folder.iterdir()}
    assert left == stay
    assert list(slurm.states("node2").iterdir()) == []
    assert (slurm.folder / "precious").read_text() == "a user's"
    assert [list(slurm.notes(node).iterdir()) for node in NODES] == [[], []]
    for path in folder.iterdir():
        path.unlink()


def check_environment(slurm: Cluster, given: dict[str, str]) -> None:
    """Assert that a task got what ``laggard run`` would have set, and the site's variables."""
    wanted = defaults({}, None, None)
    assert {name: given.get(name) for name in wanted} == wanted
    packages = f"{slurm.folder}/packages"
    assert given["PYTHONPATH"] == f"{packages}/opentelemetry/instrumentation/auto_instrumentation:{packages}"
    assert {name: value for name, value in given.items() if name.startswith("LAGGARD")} == {
        "LAGGARD": "on",
        "LAGGARD_PRECISION": "bf16",
        "LAGGARD_PROVIDERS": "replaceable",
        "LAGGARD_STATE_DIR": f"{slurm.folder}/run/laggard",
        "LAGGARD_TEAM": "vision",
    }


def leave_behind(slurm: Cluster, run: str) -> set[str]:
    """Put more files into the folder of the first node; return the names of those that are not the ended job's."""
    folder = slurm.states("node1")
    (state,) = folder.glob("*.state")
    mine = statefile.read(state).facts
    stem = f"{run}-{mine.rank}"
    # The job's own, beside its state file.
    of_the_job = [f"{stem}.20260101T000000.trace.json", f"{stem}.reply", f"hang-1-2-3-{stem}.json"]
    # The same names but another user's, another run's, another rank's, newer, or no file.
    (slurm.folder / "precious").write_text("a user's")
    others = [f"{stem}.control", f"hang-1-2-4-{stem}.json", f"{stem}0.reply", f"{run}1-{mine.rank}.reply"]
    for name in of_the_job + others:
        (folder / name).touch()
        os.utime(folder / name, (0, 0))
    os.chown(folder / others[0], 12345, -1)
    os.utime(folder / others[1])
    for name in (f"{stem}.link", "link.state"):
        (folder / name).symlink_to(slurm.folder / "precious")
        others.append(name)
    foreign = dead_file(folder, mine)
    os.chown(foreign, 12345, -1)
    others.append(foreign.name)
    job = run.partition(".")[0]
    another = (
        # Of an array whose first task has the job's number, and of a job whose number begins alike.
        replace(mine, run=f"{job}_1.0"),
        replace(mine, run=f"{job}0.0"),
        # The job was queued again, and this process is dead already.
        replace(mine, start_unix_ns=mine.start_unix_ns + 3600 * 10**9),
    )
    others.extend(dead_file(folder, facts).name for facts in another)
    return set(others)


def test_who_is_instrumented(slurm: Cluster) -> None:
    """Only a job that asks for it, or whose partition is one where all are, and that does not refuse."""
    cases = [
        ("asked", "", False),
        ("asked", "off", False),
        ("asked", "yes", False),
        ("always", "", True),
        ("always", "off", False),
    ]
    own = {"OTEL_TRACES_EXPORTER": "console", "PYTHONPATH": "/mine"}
    jobs = [
        slurm.submit(f"--partition={partition}", "--wrap", "srun env", **own, **({"LAGGARD": asks} if asks else {}))
        for partition, asks, _ in cases
    ]
    slurm.wait_for(*jobs)
    packages = f"{slurm.folder}/packages"
    start = f"{packages}/opentelemetry/instrumentation/auto_instrumentation:{packages}:"
    for job, (_, asks, instrumented) in zip(jobs, cases, strict=True):
        output = slurm.output(job)
        given = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
        assert given["OTEL_TRACES_EXPORTER"] == "console", "what the job sets stays"
        assert given["PYTHONPATH"] == f"{start if instrumented else ''}/mine"
        assert ("OTEL_METRICS_EXPORTER" in given) == instrumented
        told = [line for line in output.splitlines() if line.startswith("laggard:")]
        warning = "laggard: LAGGARD=yes is neither on nor off; this job is not instrumented"
        assert told == ([warning] * 2 if asks == "yes" else []), "once for the batch script, once for the step"


def test_a_step_may_refuse(slurm: Cluster) -> None:
    """In a job that is instrumented one step is not, though it inherits the batch script's environment."""
    show = "sh -c 'echo \"$PYTHONPATH.\"'"
    script = f"srun {show}; LAGGARD=off srun {show}"
    owns = ["", "/mine"]
    jobs = [slurm.submit("--wrap", script, LAGGARD="on", **({"PYTHONPATH": own} if own else {})) for own in owns]
    slurm.wait_for(*jobs)
    for job, own in zip(jobs, owns, strict=True):
        instrumented, refused = slurm.output(job).splitlines()
        assert instrumented.startswith(f"{slurm.folder}/packages/opentelemetry/")
        assert refused == f"{own}."


def test_a_collector(slurm: Cluster) -> None:
    """Where a job names a collector, its metrics and traces go there, as with ``laggard run``."""
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"}
    output = slurm.run("--wrap", "env", LAGGARD="on", **endpoint)
    given = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
    wanted = defaults(endpoint, None, None)
    assert {name: given.get(name) for name in wanted} == wanted


def test_the_note_names_the_runs(slurm: Cluster) -> None:
    """What a task notes for the epilog is what the instrumentation calls the run, but for the step."""
    ask = f'{sys.executable} -c "from laggard import _identity; print(_identity.from_environment().run)"'
    note = f"cat {slurm.folder}/run/laggard-jobs/$SLURM_JOB_ID"
    script = slurm.folder / "ask.sh"
    script.write_text(f"#!/bin/sh\n{ask}\nsrun {ask}\n{note}\n")
    path = os.pathsep.join(sys.path)
    array = slurm.submit("--array=3-4", f"--output={slurm.folder}/out-%A_%a", script, PYTHONPATH=path)
    alone = slurm.submit(script, PYTHONPATH=path)
    named = slurm.submit(script, PYTHONPATH=path, LAGGARD_RUN="pretrain-7")
    slurm.wait_for(array, alone, named)
    for job in (f"{array}_3", f"{array}_4", alone):
        assert slurm.output(job).split() == [f"slurm-{job}", f"slurm-{job}.0", f"slurm-{job}", f"slurm-{job}"]
    assert slurm.output(named).split() == ["pretrain-7"] * 4


@pytest.mark.skipif(os.getuid() != 0, reason="only root runs jobs of others")
def test_a_job_of_another_user(slurm: Cluster) -> None:
    """Its tasks write their note, and cannot make one for another job."""
    anyone = slurm.folder / "anyone"
    anyone.mkdir()
    anyone.chmod(0o777)
    script = "id -u; cat laggard-jobs/$SLURM_JOB_ID; touch laggard/own && touch laggard-jobs/99"
    options = ("--uid=65534", "--nodelist=node1", "--chdir=/", f"--output={anyone}/out")
    slurm.wait_for(job := slurm.submit(*options, "--wrap", f"cd {slurm.folder}/run; {script}"))
    user, run, refused = (anyone / "out").read_text().splitlines()
    assert (user, run) == ("65534", f"slurm-{job}")
    assert "laggard-jobs/99" in refused
    assert "Permission denied" in refused
    (slurm.states("node1") / "own").unlink()


@pytest.mark.parametrize(
    "settings", ["", "home=(", "home=/proc/a\ncommand=/proc/b\nstate_directory=/proc/c\njobs_directory=/proc/d\n"]
)
def test_nothing_stops_a_job(tmp_path: Path, settings: str) -> None:
    """Where settings are missing or folders cannot be made, prolog, task prolog and epilog still end well."""
    if settings:
        (tmp_path / "laggard.conf").write_text((SCRIPTS / "laggard.conf").read_text() + settings)
    variables = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "17", "SLURM_JOB_UID": str(os.getuid()), "LAGGARD": "on"}
    told: dict[str, str] = {}
    for name in ("prolog", "task-prolog", "epilog"):
        script = shutil.copy(SCRIPTS / f"{name}.sh", tmp_path)
        done = subprocess.run([script], env=variables, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        assert done.returncode == 0, done.stderr
        told[name] = done.stdout
    hint = "/proc/a has no packages (pip install --target /proc/a 'laggard[otel]'); this job is not instrumented"
    assert told == {
        "prolog": "",
        "task-prolog": f"print laggard: {hint}\n" if "/proc" in settings else "",
        "epilog": "",
    }


def test_targets(slurm: Cluster, tmp_path: Path) -> None:
    """Each node is a target once, by its address, with its partitions; a node that is switched off is none."""
    file = tmp_path / "nodes.json"
    done = laggard_slurm(slurm, "targets", "--output", file)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"2 nodes in {file}\n", "")
    node1, node2 = (
        {
            "targets": [f"{NODES[name]}:9495"],
            "labels": {"__meta_laggard_node": name, "__meta_laggard_partitions": partitions},
        }
        for name, partitions in (("node1", ",always,asked,"), ("node2", ",asked,"))
    )
    assert json.loads(file.read_text()) == [node1, node2]
    names = slurm.ask("scontrol", "show", "hostnames", "node[1-2]").split()
    assert [group["labels"]["__meta_laggard_node"] for group in json.loads(file.read_text())] == names
    assert file.stat().st_mode & 0o777 == 0o644
    done = laggard_slurm(slurm, "targets", "--output", file, "--port", "9500", "--partition", "always")
    assert done.returncode == 0
    only = {"__meta_laggard_node": "node1", "__meta_laggard_partitions": ",always,"}
    assert json.loads(file.read_text()) == [{"targets": ["127.0.0.1:9500"], "labels": only}]
    assert [path.name for path in tmp_path.iterdir()] == ["nodes.json"]


def test_what_slurm_does_not_tell_changes_nothing(slurm: Cluster, tmp_path: Path) -> None:
    """A controller that does not answer, or knows no such node, costs one line and not the targets."""
    file = tmp_path / "nodes.json"
    file.write_text("[]\n")
    nowhere = tmp_path / "slurm.conf"
    port = f"SlurmctldPort={free_ports(1)[0]}"
    text = re.sub("SlurmctldPort=.*", port, (slurm.folder / "slurm.conf").read_text())
    nowhere.write_text(text.replace("MessageTimeout=5", "MessageTimeout=1"))
    silent = laggard_slurm(slurm, "targets", "--output", file, SLURM_CONF=str(nowhere))
    unknown = laggard_slurm(slurm, "targets", "--output", file, "--partition", "none")
    absent = laggard_slurm(slurm, "targets", "--output", file, PATH=os.fspath(tmp_path))
    refused = laggard_slurm(slurm, "targets", "--output", tmp_path / "no" / "nodes.json")
    port_ = laggard_slurm(slurm, "targets", "--output", file, "--port", "0")
    reasons = {
        "Unable to contact slurm controller": silent,
        "Slurm knows no node": unknown,
        "sinfo is not on PATH": absent,
        "nodes.json: No such file or directory": refused,
        "--port 0: not between 1 and 65535": port_,
    }
    for reason, done in reasons.items():
        assert (done.returncode, done.stdout) == (2, "")
        assert reason in done.stderr
        assert done.stderr.count("\n") == 1
    assert file.read_text() == "[]\n"


def clean(tmp_path: Path, *arguments: str) -> int:
    """Run ``laggard slurm clean`` over two folders."""
    folders = ("--state-dir", str(tmp_path / "state"), "--jobs", str(tmp_path / "jobs"))
    return main(["slurm", "clean", *folders, *arguments])


def test_a_rank_that_lives_is_left_alone(tmp_path: Path) -> None:
    """What a process still holds is not removed, nor what ended just now, nor that of a job without a note."""
    facts = fresh(run="slurm-17.0", start_unix_ns=time.time_ns())
    (tmp_path / "jobs").mkdir()
    state = tmp_path / "state"
    with live_rank(state, facts):
        gone = dead_file(state, replace(facts, rank=4))
        assert clean(tmp_path, "--job", "17", "--keep", "0") == 0
        assert gone.exists(), "no prolog has noted the job"
        (tmp_path / "jobs" / "17").write_text("slurm-17\n")
        assert clean(tmp_path, "--job", "17", "--keep", "100") == 0
        assert gone.exists()
        assert clean(tmp_path, "--job", "18", "--keep", "0") == 0
        (left,) = state.iterdir()
        assert statefile.read(left).alive
    assert list((tmp_path / "jobs").iterdir()) == []


def test_folders_of_others_are_not_cleaned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder behind a link, a missing one, a stranger's, and a job that is no number cost one line."""
    (tmp_path / "state").mkdir()
    jobs = tmp_path / "jobs"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    messages: list[str] = []

    def refused(*arguments: str) -> None:
        assert clean(tmp_path, *arguments) == 2
        messages.append(capsys.readouterr().err)

    refused("--job", "17")
    jobs.symlink_to(elsewhere)
    refused("--job", "17")
    jobs.unlink()
    jobs.mkdir()
    refused("--job", "../17")
    expected = [
        f"{jobs}: No such file or directory",
        f"{jobs} must be a folder; links are not followed",
        "--job must be a number of a job, got '../17'",
    ]
    if os.getuid() == 0:
        os.chown(jobs, 12345, -1)
        refused("--job", "17")
        expected.append(f"{jobs} belongs to user 12345, not to root")
    assert messages == [f"laggard slurm: error: {reason}\n" for reason in expected]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="apt-get install systemd")
def test_systemd_is_content(tmp_path: Path) -> None:
    """Systemd finds no mistake in the units, and rates what the service could do to the host as small."""
    for unit in UNITS:
        text = unit.read_text().replace("/usr/local/bin/laggard", str(Path(sys.executable).with_name("laggard")))
        (tmp_path / unit.name).write_text(text)
    service, timer = (str(tmp_path / unit.name) for unit in UNITS)
    for command in (["verify", service, timer], ["security", "--offline=true", "--threshold=25", service]):
        result = subprocess.run(
            ["systemd-analyze", *command], capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
        if "unrecognized option" in result.stderr or "Failed to connect" in result.stderr:
            pytest.skip(f"systemd-analyze {command[0]} does not work here")
        assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.skipif(booted.missing() != "", reason=booted.missing())
def test_systemd_runs_it(slurm: Cluster, tmp_path: Path) -> None:
    """A real systemd starts the service as it is, without rights, and the file is there for Prometheus to read."""
    name = UNITS[0].name
    drop_ins = tmp_path / f"{name}.d"
    drop_ins.mkdir()
    tmp_path.chmod(0o755)
    shutil.copy(UNITS[0], tmp_path)
    (start,) = re.findall("ExecStart=/usr/local/bin/laggard (.*)", UNITS[0].read_text())
    command = Path(sys.executable).with_name("laggard")
    # Where the command, its interpreter and Slurm are, which the unit hides; no Prometheus is installed here.
    (drop_ins / "test.conf").write_text(
        f"[Service]\nExecStart=\nExecStart={command} {start}\nUser=nobody\nProtectHome=tmpfs\n"
        + "".join(f"BindReadOnlyPaths={path}\n" for path in (ROOT, sys.prefix, sys.base_prefix, slurm.folder))
        + "".join(f'Environment="{key}={value}"\n' for key, value in slurm.environment.items())
    )
    with booted.booted(tmp_path, name) as machine:
        # Systemd forgets a service that has ended well, and keeps one that has failed.
        file = Path("/proc", str(machine.pid), "root", "var/lib/laggard-slurm/nodes.json")
        until(file.exists, "the service writes no targets")
        assert [group["targets"] for group in json.loads(file.read_text())] == [["127.0.0.1:9495"], ["127.0.0.2:9495"]]
        status = file.stat()
        assert (status.st_uid, status.st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (65534, 0o644, 0o755)
        until(lambda: "ActiveState=inactive" in machine.control("show", name), "the service does not end well")
