"""Write the dashboards: ``python -m dashboards``, and with ``--check`` say whether what is written is up to date."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dashboards.boards import BOARDS
from dashboards.encoding import encode

FOLDER = Path(__file__).resolve().parent / "json"


def main() -> None:
    """Write each dashboard into a file named by its uid."""
    parser = argparse.ArgumentParser(description="Write the Grafana dashboards.")
    parser.add_argument("--check", action="store_true", help="write nothing, and fail where a file is out of date")
    check: bool = parser.parse_args().check
    wanted = {f"{board.uid}.json": encode(board.build()) for board in BOARDS}
    found = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    if check:
        stale = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
        if stale:
            sys.exit(f"out of date in {FOLDER.name}: {', '.join(stale)}; run `make dashboards`")
        return
    FOLDER.mkdir(exist_ok=True)
    for name in found.keys() - wanted.keys():
        (FOLDER / name).unlink()
    for name, text in wanted.items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
