"""The command ``laggard-exporter``, which says in one line what an installation without its extra lacks."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the exporter. Raises :class:`SystemExit`, with code 2 where a package is missing."""
    try:
        from laggard_exporter.main import main as run  # noqa: PLC0415 - this is what may not be possible
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "laggard", "laggard_exporter"):
            raise
        message = f"laggard-exporter: error: it needs the package {package}: pip install 'laggard[exporter]'"
        print(message, file=sys.stderr)  # noqa: T201 - the console is where a user looks
        raise SystemExit(2) from None
    run()
