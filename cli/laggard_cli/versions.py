"""``laggard version``."""

from __future__ import annotations

import argparse

from laggard.version import VERSIONS


def configure(parser: argparse.ArgumentParser) -> None:
    """Add no argument."""
    del parser


def run(options: argparse.Namespace) -> int:
    """Print the version of laggard and that of the rule pack, as ``--version`` does."""
    del options
    print(f"laggard {VERSIONS}")
    return 0
