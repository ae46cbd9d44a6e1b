"""Prints which share of the lines of each package the tests run, from what ``coverage combine`` has gathered."""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

from coverage import Coverage


def main() -> int:
    """Print a line for each package."""
    measured = Coverage()
    measured.load()
    lines: dict[str, int] = defaultdict(int)
    missing: dict[str, int] = defaultdict(int)
    root = Path.cwd()
    for file in measured.get_data().measured_files():
        # What tests install elsewhere is a copy.
        folders = Path(file).relative_to(root).parts if Path(file).is_relative_to(root) else ("elsewhere",)
        if folders[0] not in {"instrumentation", "exporter", "cli"}:
            continue
        _, statements, _, absent, _ = measured.analysis2(file)
        package = ".".join(folders[1:-1][:2])
        lines[package] += len(statements)
        missing[package] += len(absent)
    for package in sorted(lines):
        print(f"{package:28} {lines[package]:6} lines {100 * (1 - missing[package] / max(lines[package], 1)):6.1f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
