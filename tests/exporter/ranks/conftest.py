"""Fixtures of the tests of ranks' processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from laggard_exporter.ranks.files import RankFiles
from tests.exporter.ranks.support import Node
from tests.exporter.support import fresh, live_rank
from tests.exporter.trees import CGROUP_SYSFS, HOST_PROCFS, rank_procfs, write_tree


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """Return a node with a live rank, whose process has made-up entries in procfs."""
    with live_rank(tmp_path / "state", fresh()) as process:
        procfs = write_tree(tmp_path / "proc", {**HOST_PROCFS, **rank_procfs(process.pid)})
        sysfs = write_tree(tmp_path / "sys", CGROUP_SYSFS)
        yield Node(RankFiles(tmp_path / "state"), procfs, sysfs, process)
