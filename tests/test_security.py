"""What SECURITY.md promises and no other test shows."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from laggard.shared.names import clip_name
from laggard_cli.diagnose.model import Diagnosis
from laggard_cli.diagnose.view import show
from laggard_cli.main import main
from tests.cli.test_diagnose import VERDICT
from tests.exporter.support import dead_file, exporter, fresh
from tests.instrumentation.test_endpoint import free_base_port, scrape
from tests.support.launch import PROGRAMS, Launcher
from tests.support.recorded_job import RecordedJob

ROOT = Path(__file__).parent.parent
CANARY = "canary-4711"
#: Variables with which secrets come to a training process.
SECRETS = dict.fromkeys(("AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "HF_TOKEN", "LAGGARD_SECRET", "OTEL_SECRET"), CANARY)
#: A name that means something to a terminal, a web page, a template and PromQL.
HOSTILE = 'a\n\x1b]0;owned\x07<script>alert(1)</script>{{ .Labels }}"} or vector(1) #'


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    """Starts instrumented commands."""
    with Launcher(tmp_path) as running:
        yield running


def test_no_secret_of_the_environment_is_exported(launcher: Launcher, tmp_path: Path) -> None:
    """Neither a rank's metrics and state file nor any page of the exporter holds what other variables hold."""
    port = free_base_port()
    process = launcher.fork(
        PROGRAMS / "on_request.py",
        tmp_path / "end",
        OTEL_METRICS_EXPORTER="laggard_prometheus",
        OTEL_EXPORTER_PROMETHEUS_HOST="127.0.0.1",
        OTEL_EXPORTER_PROMETHEUS_PORT=str(port),
        LAGGARD_WARMUP_STEPS="1",
        **SECRETS,
    )
    page = scrape(port)
    assert "training_step" in page
    with exporter("--state.directory", str(launcher.state_directory), **SECRETS) as node:
        url = node.url
        pages = [
            node.get(url)[1],
            node.get(url.removesuffix("metrics"))[1],
            node.get(url.replace("metrics", "-/ready"))[1],
        ]
    assert "training_process_up" in pages[0]
    files = [path.read_bytes() for path in launcher.state_directory.iterdir()]
    assert files
    (tmp_path / "end").touch()
    process.communicate(timeout=60)
    assert CANARY not in "".join([page, *pages])
    assert CANARY.encode() not in b"".join(files)


def test_a_hostile_name_stays_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the exporter's page it is one label of one series, on a terminal it is spelled out."""
    dead_file(tmp_path, fresh(run=HOSTILE))
    with exporter("--state.directory", str(tmp_path)) as node:
        samples = node.scrape()
    (up,) = [series for series in samples if series.startswith("training_process_up")]
    assert f'training_run="{clip_name(HOSTILE)}"' in up

    output = io.StringIO()
    verdict = replace(VERDICT, run=HOSTILE, description=f"Run {HOSTILE} stands still.")
    show(Console(file=output, width=200), [Diagnosis(HOSTILE, (verdict,), {}, ())])
    assert "\x1b" not in output.getvalue()
    assert "a\\n\\x1b]0;owned\\x07<script>" in output.getvalue()

    dumps = tmp_path / "dumps"
    dumps.mkdir()
    RecordedJob({"0": (0, 1, 2)}, [("0", "all_reduce")] * 2, stops={1: 1}).write(dumps, as_pickle=False)
    (dumps / "\x1b[2Jnotes").touch()
    main(["hang", str(dumps)])
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "left out \\x1b[2Jnotes: " in printed


def test_the_document_names_tests_that_exist() -> None:
    """Each promise of SECURITY.md points to a file of tests that is there."""
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/.]+\.py)`", text)
    assert len(named) > 8
    assert all((ROOT / name).is_file() for name in named)
