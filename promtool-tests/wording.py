"""Write down what each alert says when it first fires in a scenario, for a person to read: ``wording.yaml``.

    python promtool-tests/wording.py PROMTOOL

Unit tests then expect these words. Run it after a change of an annotation, and read the difference.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import yaml

from generate import HERE, WORDING, Dumper, document
from scenario import Play, Yaml

_STRING = r'"(?:\\.|[^"\\])*"'
_ALERTNAME = re.compile(r"^    alertname: (\w+), time: ", re.MULTILINE)
_FOUND = re.compile(r"Labels:\{(.*)\}\n\s+Annotations:\{(.*)\},?$", re.MULTILINE)
_PAIR = re.compile(rf"(\w+)=({_STRING})")


def _said(promtool: Path, module: str, play: Play, alerts: list[str]) -> dict[str, list[Yaml]]:
    """Return alert to what its alerts say in a play, as promtool tells when it expects none."""
    wording = {module: {play.__name__: {alert: list[Yaml]() for alert in alerts}}}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "wording.yml"
        path.write_text(document(module, wording, only=[play]), encoding="utf-8")
        done = subprocess.run([promtool, "test", "rules", path], capture_output=True, text=True, check=False)
    _, *parts = _ALERTNAME.split(done.stdout + done.stderr)
    return {
        alert: [
            {"exp_labels": {k: v for k, v in _pairs(labels) if k != "alertname"}, "exp_annotations": dict(_pairs(said))}
            for labels, said in _FOUND.findall(text)
        ]
        for alert, text in zip(parts[::2], parts[1::2], strict=True)
    }


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for name, quoted in _PAIR.findall(text):
        yield name, json.loads(quoted)


def main() -> int:
    """Write the file; return the exit status."""
    parser = argparse.ArgumentParser(description="Write down what each alert says.")
    parser.add_argument("promtool", type=Path, help="the promtool to run")
    promtool: Path = parser.parse_args().promtool
    played = [
        (path.stem, play, play())
        for path in sorted((HERE / "plays").glob("*.py"))
        for play in importlib.import_module(f"plays.{path.stem}").PLAYS
    ]
    wording: dict[str, dict[str, dict[str, list[Yaml]]]] = {}
    # Each alert once.
    known: set[str] = set()
    for module, play, scenario in played:
        if alerts := sorted(scenario.first.keys() - known):
            known |= set(alerts)
            wording.setdefault(module, {})[play.__name__] = _said(promtool, module, play, alerts)
    WORDING.write_text(
        "# What alerts say. Written by wording.py, to be read by a person.\n"
        + yaml.dump(wording, Dumper=Dumper, sort_keys=True, width=120, allow_unicode=True),
        encoding="utf-8",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
