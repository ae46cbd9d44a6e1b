"""The README's section on an own script, as it is printed: from the wheels of a release, with no server on the machine.

``make test-install`` runs this: the first time Prometheus is compiled, which takes minutes.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.rules.pack import ROOT
from tests.test_packaging import release

__all__ = ["release"]

pytestmark = [
    pytest.mark.skipif(os.environ.get("INSTALL") != "all", reason="make test-install runs it"),
    pytest.mark.timeout(900),
]

SECTION = (ROOT / "README.md").read_text(encoding="utf-8").partition("## On your own script")[2].partition("\n## ")[0]
INSTALL, RUN = re.findall(r"^```sh\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)[0].splitlines()
QUICKSTART = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
#: A script without ranks, whose storage is slow.
PLAIN = """
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.randn(64), torch.randn(1)


torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for inputs, targets in DataLoader(Slow(), batch_size=8):
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def wheels(release: Path) -> Path:
    """A release with the wheel of Prometheus for this processor."""
    processor = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    program = ROOT / "scripts" / "release" / "prometheus_wheel.py"
    command = [sys.executable, program, "--output", release, "--processors", processor]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # What the bill of materials says of it is written with it there.
    command = [sys.executable, str(program.with_name("release.py")), "--output", str(release)]
    subprocess.run(command, check=True, capture_output=True)
    assert '"laggard-prometheus"' in next(release.glob("*.cdx.json")).read_text()
    return release


@pytest.fixture(scope="module")
def machine(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A folder with an environment that has torch, and nothing else on PATH; the section's pip command has been run."""
    folder = tmp_path_factory.mktemp("machine")
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python = environment / "bin" / "python"
    (site,) = environment.glob("lib/python*/site-packages")
    for distribution in ("torch", *("filelock", "fsspec", "jinja2", "markupsafe", "mpmath", "networkx", "sympy")):
        _lend(distribution, site)
    launcher = environment / "bin" / "torchrun"
    launcher.write_text(f"#!{python}\nfrom torch.distributed.run import main\nmain()\n")
    launcher.chmod(0o755)
    kept = ("LANG", "LC_ALL", "SSL_CERT_FILE", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY")
    variables = {
        **{name: value for name, value in os.environ.items() if name in kept or name.startswith("PIP_")},
        "PATH": str(environment / "bin"),
        "HOME": str(folder),
        "OMP_NUM_THREADS": "1",
        "PIP_FIND_LINKS": str(wheels),
        "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),
    }
    done = subprocess.run(INSTALL, shell=True, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (text,) = re.findall(r'^```python title="train.py"\n(.*?)^```$', QUICKSTART, re.MULTILINE | re.DOTALL)
    (folder / "train.py").write_text(text)
    (folder / "plain.py").write_text(PLAIN)
    return folder, variables


def _lend(distribution: str, site: Path) -> None:
    """Put a package of this environment into another one: torch is large, and installed by whoever trains."""
    files = metadata.files(distribution) or []
    for name in {file.parts[0] for file in files if file.parts[0] not in ("..", "__pycache__")}:
        place = Path(str(metadata.distribution(distribution).locate_file(name)))
        (site / name).symlink_to(place, target_is_directory=place.is_dir())


def lines_of(process: subprocess.Popen[str], seconds: float) -> Iterator[str]:
    """Give the lines on stderr, and end the process after ``seconds``."""
    assert process.stderr is not None
    deadline = time.monotonic() + seconds
    for line in process.stderr:
        yield line
        assert time.monotonic() < deadline


def train(command: str, verdict: str, machine: tuple[Path, dict[str, str]]) -> str:
    """Run a command until its terminal has a verdict, end it with Ctrl-C as a terminal does, and return the card."""
    folder, variables = machine
    words: dict[str, Any] = {"shell": True, "cwd": folder, "env": variables, "text": True, "start_new_session": True}
    with subprocess.Popen(f"exec {command}", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **words) as process:
        told: list[str] = []
        for line in lines_of(process, 600):
            told.append(line)
            if line.startswith("laggard: ") and verdict in line:
                break
        assert told, "nothing was said"
        assert verdict in told[-1], "".join(told)
        os.killpg(process.pid, signal.SIGINT)
        card = "".join(lines_of(process, 60))
        process.wait(60)
    return card


def test_the_environment_has_its_prometheus_from_the_wheel(machine: tuple[Path, dict[str, str]]) -> None:
    """None is on PATH, and the one of the wheel runs, in the version that the wheel has."""
    folder, variables = machine
    assert shutil.which("prometheus", path=variables["PATH"]) is None
    program = "import importlib.metadata as m; print(m.version('laggard-prometheus'))"
    python = str(folder / "environment" / "bin" / "python")
    version = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True).stdout.strip()
    command = [python, "-m", "laggard_prometheus", "--version"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, env=variables)
    assert said.stdout.startswith(f"prometheus, version {version} ")


def test_the_readmes_commands_name_the_slow_rank(machine: tuple[Path, dict[str, str]]) -> None:
    """In the job's own terminal, and on the card."""
    assert RUN == "laggard run --local torchrun --nproc-per-node 4 train.py"
    card = train(RUN, "TrainingStraggler: Rank 2 of run ", machine)
    assert re.search(r"^laggard: run local-[\d-]+: .* after .*, 4 ranks, \d+ steps of ", card, re.MULTILINE), card
    assert "Most of the difference is in phase data." in " ".join(card.replace("laggard: ", "").split())
    assert re.search(r"^laggard: report: .*/laggard-runs/local-[\d-]+/report\.html$", card, re.MULTILINE), card


def test_a_plain_script_that_waits_for_data_is_told_so(machine: tuple[Path, dict[str, str]]) -> None:
    """One process, no launcher; in the fast profile, for which its steps are short enough."""
    command = RUN.replace("--local torchrun --nproc-per-node 4 train.py", "--local --profile fast python plain.py")
    card = train(command, "TrainingInputBound: ", machine)
    assert re.search(r"^laggard: run local-[\d-]+: .* after .*, 1 rank, \d+ steps of ", card, re.MULTILINE), card
    assert "TrainingInputBound  warning, to the end" in card
