"""Where the files lie that travel with the command line: rules and examples."""

from __future__ import annotations

from pathlib import Path


def pack_folder(name: str) -> Path:
    """Return a folder of the pack: in an installation inside this package, in a checkout at its root."""
    package = Path(__file__).resolve().parent
    installed = package / "pack" / name
    return installed if installed.is_dir() else package.parents[1] / name
