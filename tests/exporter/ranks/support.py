"""A live rank with a made-up procfs."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from laggard_exporter.ranks.files import RankFiles
from laggard_exporter.samples import Sample
from tests.exporter.support import as_dict


@dataclass(frozen=True)
class Node:
    """A node with one rank of run-1, number 3."""

    files: RankFiles
    procfs: Path
    sysfs: Path
    process: subprocess.Popen[str]

    @property
    def pid(self) -> int:
        """The rank's process."""
        return self.process.pid


def read(samples: Iterable[Sample]) -> dict[str, float]:
    """Return the samples without prefix and identity, which every rank metric carries."""
    found = as_dict(samples)
    identity = 'training_rank="3",training_run="run-1"'
    assert all(identity in series for series in found if series.startswith("training_"))
    short = {series.removeprefix("training_process_"): value for series, value in found.items()}
    for old in (f"{{{identity}}}", f",{identity}", f"{identity},"):
        short = {series.replace(old, ""): value for series, value in short.items()}
    return short
