"""Starts the servers that are measured, kills some of them, and says what they use."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from laggard_cli.demo.servers import end
from laggard_cli.errors import CommandError
from laggard_cli.ways import direct

_READY_SECONDS = 60


@dataclass(frozen=True)
class Usage:
    """What a program has used so far."""

    processor_seconds: float
    resident_bytes: int


@dataclass(frozen=True)
class Program:
    """A program that can be started again as it was: what answers at ``url`` is ready."""

    command: Sequence[str | Path]
    url: str
    environment: Mapping[str, str]
    at: Path


class Programs:
    """Runs in a folder, which gets their logs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._programs: dict[str, Program] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        #: Of processes that were killed.
        self._before: dict[str, float] = {}

    def start(
        self,
        name: str,
        command: Sequence[str | Path],
        url: str,
        environment: Mapping[str, str] | None = None,
        at: Path | None = None,
    ) -> None:
        """Start a program, in the folder or at another place; :meth:`wait` says when it answers."""
        self._programs[name] = Program(command, url, environment or {}, at or self.folder)
        self._launch(name)

    def wait(self, *names: str) -> None:
        """Wait until programs answer. Raises :class:`CommandError` with the last line of its log where one does not."""
        for name in names:
            for _ in range(10 * _READY_SECONDS):
                with contextlib.suppress(httpx.TransportError):
                    if direct().get(self._programs[name].url, timeout=_READY_SECONDS).is_success:
                        break
                if self._processes[name].poll() is not None:
                    raise CommandError(f"{name} does not start: {self.last_line(name)}")
                time.sleep(0.1)
            else:
                raise CommandError(f"{name} is not ready within {_READY_SECONDS} s: {self.last_line(name)}")

    def kill(self, name: str) -> None:
        """Kill a program as a crash would. Raises :class:`CommandError` where there is none of this name."""
        if name not in self._processes:
            raise CommandError(f"no {name} to kill; there are {', '.join(self._processes)}")
        self._before[name] = self.usage(name).processor_seconds
        self._processes[name].kill()
        self._processes[name].wait()

    def again(self, name: str) -> None:
        """Start a killed program as it was started before, and wait until it answers."""
        self._launch(name)
        self.wait(name)

    def usage(self, name: str) -> Usage:
        """Return what a program has used, its killed processes included. Raises :class:`CommandError` if it ended."""
        process, before = self._processes[name], self._before.get(name, 0.0)
        if process.poll() is not None:
            raise CommandError(f"{name} ended with code {process.returncode}: {self.last_line(name)}")
        known = psutil.Process(process.pid)
        used = known.cpu_times()
        return Usage(before + used.user + used.system, known.memory_info().rss)

    @property
    def names(self) -> list[str]:
        """All that were started."""
        return list(self._programs)

    def last_line(self, name: str) -> str:
        """Return the end of a program's log."""
        return (self._log(name).read_text(encoding="utf-8", errors="replace").splitlines() or ["it said nothing"])[-1]

    def end(self) -> None:
        """End all, in the reverse order."""
        for process in reversed(list(self._processes.values())):
            end(process)

    def _launch(self, name: str) -> None:
        program = self._programs[name]
        with self._log(name).open("ab") as log:
            self._processes[name] = subprocess.Popen(
                list(map(str, program.command)),
                env={**os.environ, **program.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=program.at,
            )

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"


@contextmanager
def programs(folder: Path) -> Generator[Programs, None, None]:
    """Yield what starts programs; all end with the context."""
    started = Programs(folder)
    try:
        yield started
    finally:
        started.end()
