"""The settings of the process win over ours: its meter provider in every order, its exporters, its number of files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from laggard import statefile
from laggard.conventions import RankState
from laggard.statefile import EndedBy, Ending
from tests.support.launch import PROGRAMS
from tests.support.ports import free_port

SERVED, NOT_SERVED = '{"served": true}', '{"served": false}'


def run(when: str, folder: Path, **environment: str) -> list[str]:
    """Run the program, without anything on stderr, and return what it printed."""
    variables = {
        "LAGGARD_STATE_DIR": str(folder),
        "LAGGARD_RUN": "test",
        "OTEL_EXPORTER_PROMETHEUS_PORT": str(free_port()),
    }
    done = subprocess.run(
        [sys.executable, PROGRAMS / "settings.py", when],
        env={**variables, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("when", "environment", "printed"),
    [
        ("never", {}, [SERVED]),
        ("never", {"OTEL_METRICS_EXPORTER": "none"}, [NOT_SERVED]),
        ("never", {"OTEL_SDK_DISABLED": "true"}, [NOT_SERVED]),
        ("before", {}, [NOT_SERVED, '["jobs", "training.steps"]']),
        ("after", {}, [NOT_SERVED, '["jobs", "training.steps"]']),
        ("late", {}, [NOT_SERVED, '["jobs", "training.steps"]']),
        ("child", {}, ['["jobs"]']),
        ("many_files", {}, [SERVED]),
        ("uncompiled", {}, [SERVED]),
    ],
)
def test_the_process_decides_where_metrics_go(
    when: str, environment: dict[str, str], printed: list[str], tmp_path: Path
) -> None:
    """Its provider has ours too whenever it is set, and no endpoint stays; a child's own works; nothing is said."""
    assert run(when, tmp_path, **environment) == printed
    (path,) = tmp_path.iterdir()
    final = statefile.read(path)
    assert (final.state, final.steps) == (RankState.FINISHED, 100 if when == "late" else 50)
    assert final.ending == Ending(EndedBy.UNKNOWN if when == "uncompiled" else EndedBy.EXIT, 0)
