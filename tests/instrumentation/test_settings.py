"""The settings of the process win over ours: its meter provider in every order, its exporters, its number of files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics import MeterProvider

from laggard import _providers
from laggard.shared import statefile
from laggard.shared.phases import RankState
from laggard.shared.statefile import EndedBy, Ending
from tests.support.launch import PROGRAMS
from tests.support.ports import free_port

OWN = '["jobs", "training.step", "training.steps"]'
SERVED, NOT_SERVED = '{"served": true}', '{"served": false}'


def run(when: str, folder: Path, *launcher: str, said: str = "", **environment: str) -> list[str]:
    """Run the program, without anything else on stderr, and return what it printed."""
    variables = {
        "LAGGARD_STATE_DIR": str(folder),
        "LAGGARD_RUN": "test",
        "LAGGARD_TRACE_EVERY": "10",
        "OTEL_EXPORTER_PROMETHEUS_PORT": str(free_port()),
    }
    done = subprocess.run(
        [*launcher, sys.executable, PROGRAMS / "settings.py", when],
        env={**variables, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == said
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("when", "environment", "printed"),
    [
        ("never", {}, [SERVED]),
        ("never", {"OTEL_METRICS_EXPORTER": "none"}, [NOT_SERVED]),
        ("never", {"OTEL_SDK_DISABLED": "true"}, [NOT_SERVED]),
        ("before", {}, [NOT_SERVED, OWN]),
        ("after", {}, [NOT_SERVED, OWN]),
        ("late", {}, [NOT_SERVED, OWN]),
        ("child", {}, ['["jobs"]']),
        ("many_files", {}, [SERVED]),
        ("python", {}, [SERVED]),
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
    assert final.ending == Ending(EndedBy.UNKNOWN if when == "python" else EndedBy.EXIT, 0)


@pytest.mark.parametrize("exporter", ["laggard_prometheus", "none"])
def test_a_launcher_that_makes_no_provider(exporter: str, tmp_path: Path) -> None:
    """A file of OpenTelemetry's configuration may have traces alone: metrics are served as without the launcher."""
    launcher = str(Path(sys.executable).with_name("laggard"))
    said = "Configuration of configurator not loaded because absent is set by OTEL_PYTHON_CONFIGURATOR\n"
    settings = {"OTEL_PYTHON_CONFIGURATOR": "absent", "OTEL_METRICS_EXPORTER": exporter}
    printed = run("never", tmp_path, launcher, "run", said=said, **settings)
    assert printed == [NOT_SERVED if exporter == "none" else SERVED]


@pytest.mark.parametrize("when", ["after", "late"])
@pytest.mark.parametrize(
    ("environment", "printed"),
    [
        ({}, [SERVED, OWN]),
        ({"OTEL_TRACES_EXPORTER": "console"}, [SERVED, '["jobs", "training.steps"]']),
        ({"OTEL_METRICS_EXPORTER": "none"}, [NOT_SERVED, OWN]),
    ],
)
def test_under_the_launcher_the_script_may_set_its_own_providers(
    when: str, environment: dict[str, str], printed: list[str], tmp_path: Path
) -> None:
    """They have our metrics beside the launcher's exporters. Spans go to those, else to the script's."""
    launcher = str(Path(sys.executable).with_name("laggard"))
    lines = run(when, tmp_path, launcher, "run", **environment)
    assert [line for line in lines if line.startswith(('{"served', "["))] == printed
    sent = [line for line in lines if '"name": "training.step"' in line]
    assert bool(sent) == ("OTEL_TRACES_EXPORTER" in environment)


def test_a_provider_that_has_ended_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The script may set one so late that it ends before the last report: the SDK would say so on stderr."""
    provider = MeterProvider()
    flushed: list[bool] = []
    monkeypatch.setattr(provider, "force_flush", lambda: flushed.append(True))
    monkeypatch.setattr(_providers, "get_meter_provider", lambda: provider)
    for other in ("_own", "_launched"):
        monkeypatch.setattr(_providers, other, None)
    assert (len(_providers.meters("test", "1")), _providers.flush(1), flushed) == (1, True, [True])
    provider.shutdown()
    assert (_providers.meters("test", "1"), _providers.flush(1), flushed) == ([], True, [True])
    assert caplog.messages == []
