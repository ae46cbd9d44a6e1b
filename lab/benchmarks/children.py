"""Processes that measure when they are asked to, so that several can take turns, and what their turns show."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from typing_extensions import Self

from lab.benchmarks.spread import typical

HERE = Path(__file__).resolve().parent


class Child:
    """A process of a script in this folder. It prints ``ready``, then answers each line with one of JSON.

    Args:
        script: name of the script.
        arguments: what it is called with.
        environment: what it has beside the variables of this process.
        under: the command that runs it, such as a profiler's.
    """

    def __init__(
        self,
        script: str,
        *arguments: object,
        environment: Mapping[str, str] | None = None,
        under: Sequence[str] = (),
    ) -> None:
        self._command = [*under, sys.executable, str(HERE / script), *map(str, arguments)]
        self._process = subprocess.Popen(
            self._command,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._process.communicate(timeout=60)
        finally:
            self._process.kill()

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def wait(self) -> None:
        """Wait until it has warmed up."""
        self._answer()

    def ask(self, *words: object) -> dict[str, Any]:
        """Have it measure and return its answer."""
        assert self._process.stdin
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        return json.loads(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout
        # A peer may print, too.
        for line in self._process.stdout:
            if line.startswith(("ready", "{")):
                return line
        sys.exit(f"{' '.join(self._command)} failed")


class Comparison:
    """What the variants add to a step in the turns of one process.

    Args:
        variants: their names; the first is what the others are compared with.
    """

    def __init__(self, variants: Sequence[str]) -> None:
        self._variants = variants
        #: Processor time of the training thread and time by the clock on the wall, of each turn.
        self._taken: dict[str, list[tuple[float, float]]] = {variant: [] for variant in variants}

    @property
    def turns(self) -> int:
        """Turns so far."""
        return len(self._taken[self._variants[0]])

    def measure(self, child: Child, turns: int) -> None:
        """Have the variants take turns in a process."""
        for variant, taken in child.ask("turns", turns).items():
            self._taken[variant] += taken

    def measure_until(self, child: Child, variant: str, most: int, *, at_once: int = 50) -> None:
        """Have the variants take turns until what one of them adds is known to 3 % or 1 µs, or for ``most`` turns."""
        while self.turns < most:
            self.measure(child, min(at_once, most - self.turns))
            added, error = self.added(variant)
            if error <= max(0.03 * added, 1.0):
                return

    def added(self, variant: str, *, wall: bool = False) -> tuple[float, float]:
        """Return the microseconds of a step that a variant adds, and by how much they may be off at 95 % confidence."""
        pairs = zip(self._taken[variant], self._taken[self._variants[0]], strict=True)
        return typical([with_it[wall] - without[wall] for with_it, without in pairs])

    def step(self, *, wall: bool = False) -> float:
        """Return the microseconds of a step of the first variant."""
        return round(statistics.median(taken[wall] for taken in self._taken[self._variants[0]]), 1)
