"""``laggard run --local`` in a folder of its own, and what it leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from laggard.shared import statefile
from tests.support.environments import processes_of


class Local:
    """Starts jobs with ``--local`` in a folder, and knows what is left of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.marker = f"LOCAL_RUN_TEST={folder}"
        foreign = ("LAGGARD_", "OTEL_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_")
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(foreign)},
            "LOCAL_RUN_TEST": str(folder),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        }

    def command(self, *words: str) -> list[str]:
        return [
            sys.executable,
            "-m",
            "laggard_cli.main",
            "run",
            "--local",
            "--folder",
            str(self.folder / "runs"),
            *words,
        ]

    def start(self, *words: str, prefix: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*prefix, *self.command(*words)],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def left(self, laggard: int) -> tuple[list[str], list[str], list[str]]:
        """Processes, files and folders in shared memory that are left, given the process that stood for the job."""
        shared = statefile.default_directory().parent.glob(f"laggard-local-{laggard}-*")
        return (
            processes_of(self.marker),
            sorted(path.name for path in self.folder.iterdir()),
            [str(path) for path in shared],
        )
