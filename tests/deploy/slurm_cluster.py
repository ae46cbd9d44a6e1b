"""A real Slurm of two nodes on loopback, all in one folder: munge, a controller, and a node daemon for each node.

What is a node's own on a real one, ``/run``, is a folder ``run`` here that is another one on each node. Needs root.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from laggard_cli.demo.servers import free_ports
from tests.collector.support import Processes, processes
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
UNPACKED = ROOT / ".cache" / "tools" / "slurm"
SCRIPTS = ROOT / "deploy" / "slurm"
TIMEOUT = 60
#: By name; both run on this host. Of a third one Slurm only knows that it could be rented.
NODES = {"node1": "127.0.0.1", "node2": "127.0.0.2"}

_CONFIGURATION = """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
PluginDir={plugins}
PlugStackConfig=/dev/null
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmdSpoolDir={folder}/spool-%n
StateSaveLocation={folder}/saved
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
MailProg=/bin/true
MessageTimeout=5
PrivateData=cloud
SuspendProgram=/bin/true
ResumeProgram=/bin/true
SuspendTime=-1
Prolog={folder}/scripts/prolog.sh
TaskProlog={folder}/scripts/task-prolog.sh
Epilog={folder}/scripts/epilog.sh
NodeName=node1 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 RealMemory=100
NodeName=node2 NodeHostname=localhost NodeAddr=127.0.0.2 Port={ports[2]} CPUs=2 RealMemory=100
NodeName=rented NodeAddr=127.0.0.3 CPUs=2 RealMemory=100 State=CLOUD
PartitionName=asked Nodes=node1,node2,rented Default=YES
PartitionName=always Nodes=node1
"""

#: Our settings but for where things are.
_SETTINGS = """
home={folder}/packages
command={command}
partitions='other always'
variables='LAGGARD_PRECISION=bf16 LAGGARD_TEAM=nobody'
state_directory={folder}/run/laggard
jobs_directory={folder}/run/laggard-jobs
keep_seconds={keep}
"""


class Cluster:
    """A running Slurm, its commands, and what our scripts are told."""

    def __init__(self, folder: Path, started: Processes) -> None:
        self.folder = folder
        self.started = started
        self.environment = {
            "PATH": os.pathsep.join([str(folder / "bin"), f"{UNPACKED}/usr/bin", "/usr/bin", "/bin"]),
            "HOME": str(folder),
            "LD_LIBRARY_PATH": os.pathsep.join(map(str, _libraries())),
            "SLURM_CONF": str(folder / "slurm.conf"),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "MASTER_ADDR": "127.0.0.1",
        }

    def settings(self, *, keep: float) -> None:
        """Write ``laggard.conf``: files of ended jobs stay for so many seconds."""
        command = Path(sys.executable).with_name("laggard")
        text = _SETTINGS.format(folder=self.folder, command=command, keep=keep)
        shipped = (SCRIPTS / "laggard.conf").read_text()
        (self.folder / "scripts" / "laggard.conf").write_text(shipped + text)

    def ask(self, *command: str | Path, **environment: str) -> str:
        """Return what a command of Slurm's says."""
        done = subprocess.run(
            list(map(str, command)),
            env={**self.environment, **environment},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def states(self, node: str) -> Path:
        """Return the folder of a node's state files."""
        return self.folder / f"run-{node}" / "laggard"

    def notes(self, node: str) -> Path:
        """Return the folder of a node's notes of jobs."""
        return self.folder / f"run-{node}" / "laggard-jobs"

    def submit(self, *arguments: str | Path, **environment: str) -> str:
        """Submit a batch job and return its number."""
        output = f"--output={self.folder}/out-%j"
        return self.ask("sbatch", "--parsable", output, *arguments, **environment).strip()

    def output(self, job: str) -> str:
        """Return what a job has written, less its tasks' prefixes and what srun says while it tries again."""
        lines = (self.folder / f"out-{job}").read_text().splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith("srun: "))

    def wait_for(self, *jobs: str) -> None:
        """Wait until jobs are over, with their epilogs."""
        until(lambda: not self.ask("squeue", "--noheader", f"--jobs={','.join(jobs)}").strip(), f"jobs {jobs} run", 120)
        until(lambda: not any((self.notes(node) / job).exists() for node in NODES for job in jobs), "no epilog")

    def run(self, *arguments: str | Path, **environment: str) -> str:
        """Run a batch job to its end and return what it wrote."""
        job = self.submit(*arguments, **environment)
        self.wait_for(job)
        return self.output(job)


def _libraries() -> list[Path]:
    folders = {file.parent for file in UNPACKED.glob("**/*.so*")}
    return sorted(folders, key=lambda folder: len(folder.parts))


def _daemon(name: str) -> Path:
    # Debian's have a suffix, beside those of another program.
    return next(UNPACKED.glob(f"usr/sbin/{name}*"))


def missing() -> None:
    """Skip the test without Slurm, or fail it in CI where one could have been had."""
    if not UNPACKED.is_dir():
        text = "no Slurm: run scripts/tools/fetch_slurm.sh, which needs apt-get"
        if os.environ.get("CI") and shutil.which("apt-get"):
            pytest.fail(text)
        pytest.skip(text)
    probe = subprocess.run(["unshare", "--mount", "true"], capture_output=True, timeout=TIMEOUT, check=False)
    if probe.returncode != 0:
        pytest.skip("no right to make mount namespaces: needs root")


@contextlib.contextmanager
def cluster() -> Generator[Cluster, None, None]:
    """Run a Slurm; nothing of it is left afterwards."""
    missing()
    # Not pytest's folder, which is closed to the users of jobs, and that munge refuses.
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        Path(folder).chmod(0o755)
        with _running(Path(folder)) as slurm:
            yield slurm


@contextlib.contextmanager
def _running(folder: Path) -> Generator[Cluster, None, None]:
    for name in ("bin", "scripts", "saved", "spool-node1", "spool-node2", "run", "run-node1", "run-node2"):
        (folder / name).mkdir()
    for script in SCRIPTS.glob("*.sh"):
        shutil.copy(script, folder / "scripts")
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o600)
    plugins = next(UNPACKED.glob("usr/lib/*/slurm-wlm"))
    (folder / "slurm.conf").write_text(
        _CONFIGURATION.format(folder=folder, plugins=plugins, user=getpass.getuser(), ports=free_ports(3))
    )
    with processes(folder) as started:
        slurm = Cluster(folder, started)
        slurm.settings(keep=3600)
        munge = {name: f"--{name}={folder}/munge.{name.split('-')[0]}" for name in ("socket", "pid-file", "seed-file")}
        command = [_daemon("munged"), "--foreground", f"--key-file={key}", *munge.values(), "--num-threads=2"]
        started.start("munged", command, slurm.environment)
        until((folder / "munge.socket").exists, "munged does not start")
        started.start("slurmctld", [_daemon("slurmctld"), "-D"], slurm.environment)
        for node in NODES:
            command = [_daemon("slurmd"), "-D", "-N", node, "-d", _daemon("slurmstepd")]
            mount = 'mount --bind "$0-$1" "$0" && shift && exec "$@"'
            own = ["unshare", "--mount", "sh", "-c", mount, folder / "run", node]
            started.start(node, [*own, *command], slurm.environment)
        try:
            until(lambda: _idle(slurm), "the nodes do not answer", 20)
        except AssertionError as error:
            logs = "".join(started.log(name)[-2000:] for name in ("munged", "slurmctld", *NODES))
            raise AssertionError(logs) from error
        yield slurm
        # Steps are processes of their own, which a killed daemon would leave.
        with contextlib.suppress(AssertionError):
            slurm.ask("scancel", "--signal=KILL", f"--user={getpass.getuser()}")
            until(lambda: not slurm.ask("squeue", "--noheader").strip(), "jobs run on", 10)


def _idle(slurm: Cluster) -> bool:
    try:
        states = slurm.ask("sinfo", "--noheader", "--Node", "--nodes=node1,node2", "--format=%N %t").split("\n")
    except AssertionError:
        return False
    return {"node1 idle", "node2 idle"} <= set(states)
