"""Whatever anybody writes into the folder of state files, the collector goes on and the other ranks are exported."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.exposition import generate_latest

from laggard.shared import statefile
from laggard_exporter.collection import Collection
from laggard_exporter.ranks.state import StateCollector
from tests.exporter.scrape import Scrape
from tests.exporter.support import FACTS, NANOSECONDS, as_dict, dead_file, parse

NOW = 25 * NANOSECONDS
GOOD = 'training_process_up{training_rank="0",training_run="run-1"}'

#: A file of ours, to be damaged.
with tempfile.TemporaryDirectory() as _folder:
    TEMPLATE = dead_file(Path(_folder), FACTS, {statefile.GROUPS: 1, statefile.STEPS: 3}).read_bytes()


def _damaged(changes: list[tuple[int, bytes]]) -> bytes:
    content = bytearray(TEMPLATE)
    for offset, data in changes:
        content[offset : offset + len(data)] = data
    return bytes(content[: statefile.SIZE])


damage = st.lists(
    st.tuples(st.integers(0, statefile.SIZE - 1), st.binary(min_size=1, max_size=16)), min_size=1, max_size=8
)
contents = st.one_of(
    st.binary(max_size=2 * statefile.SIZE),
    st.binary(min_size=statefile.SIZE, max_size=statefile.SIZE),
    st.integers(0, statefile.SIZE).map(lambda size: TEMPLATE[:size]),
    damage.map(_damaged),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with one good rank."""
    path = tmp_path_factory.mktemp("state")
    dead_file(path, replace(FACTS, rank=0))
    return path


# The folder is the same for all examples; each removes what it wrote.
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)
@given(files=st.lists(contents, min_size=1, max_size=4))
def test_any_content(folder: Path, files: list[bytes]) -> None:
    """Any bytes are counted as one of the results, the good rank stays, and the scrape can be parsed."""
    written = [folder / f"fuzz{number}{statefile.SUFFIX}" for number in range(len(files))]
    for path, content in zip(written, files, strict=True):
        path.write_bytes(content)
    try:
        collector = StateCollector(folder, clock=lambda: NOW)
        samples = as_dict(collector.collect())
        assert samples[GOOD] == 0
        counted = sum(value for series, value in samples.items() if series.startswith("laggard_exporter_state_files"))
        assert counted == len(files) + 1
        text = generate_latest(Scrape(Collection([collector]).samples())).decode()
        assert parse(text)[GOOD] == 0
    finally:
        for path in written:
            path.unlink(missing_ok=True)  # an expired file was removed
