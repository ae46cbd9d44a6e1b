"""The pictures of the README."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from laggard_cli.demo import command

ROOT = Path(__file__).parent.parent


def test_the_recording_is_what_the_demo_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The picture shows the command and all that it printed, asks for no font, and ends as the demo does."""
    spec = importlib.util.spec_from_file_location("record_demo", ROOT / "scripts" / "docs" / "record_demo.py")
    assert spec is not None
    assert spec.loader is not None
    recorder = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recorder)

    def demo(arguments: list[str]) -> int:
        console: Console = command.Console()
        console.print(f"played {' '.join(arguments)}")
        return 1

    monkeypatch.setattr(command, "Console", Console)
    monkeypatch.setattr(recorder, "main", demo)
    monkeypatch.setattr(recorder, "PICTURE", tmp_path / "demo.svg")
    assert recorder.record(["frozen"]) == 1
    text = (tmp_path / "demo.svg").read_text(encoding="utf-8")
    lines = ["".join(element.itertext()) for element in ET.fromstring(text).iter("{http://www.w3.org/2000/svg}text")]
    shown = [line.replace("\xa0", " ") for line in lines if line.strip()]
    assert shown == ["laggard demo", "$ laggard demo --acts frozen", "played demo --acts frozen"]
    assert "url(" not in text.replace("url(#", "")


def test_the_demo_of_the_readme_was_right() -> None:
    """The recording that is shown ends with its table, and every verdict in it is right."""
    text = (ROOT / "docs" / "images" / "demo.svg").read_text(encoding="utf-8")
    words = " ".join(ET.fromstring(text).itertext()).replace("\xa0", " ")
    assert "$ laggard demo --acts" in words
    assert "Played in" in words
    assert "WRONG" not in words
