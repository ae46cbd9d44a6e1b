"""Write the dashboards: ``python -m dashboards``, with ``--check`` say whether what is written is up to date."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dashboards.boards import BOARDS
from dashboards.encoding import encode, shareable

FOLDER = Path(__file__).resolve().parent / "json"


def main() -> None:
    """Write each dashboard into a file named by its uid."""
    parser = argparse.ArgumentParser(description="Write the Grafana dashboards.")
    parser.add_argument("--check", action="store_true", help="write nothing, and fail where a file is out of date")
    parser.add_argument("--share", type=Path, metavar="FOLDER", help="write the form for grafana.com into a folder")
    options = parser.parse_args()
    check: bool = options.check
    wanted = {f"{board.uid}.json": encode(board.build()) for board in BOARDS}
    found = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    if check:
        stale = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
        if stale:
            sys.exit(f"out of date in {FOLDER.name}: {', '.join(stale)}; run `make dashboards`")
        return
    if options.share:
        options.share.mkdir(parents=True, exist_ok=True)
        for name, text in wanted.items():
            (options.share / name).write_text(shareable(text), encoding="utf-8")
        return
    FOLDER.mkdir(exist_ok=True)
    for name in found.keys() - wanted.keys():
        (FOLDER / name).unlink()
    for name, text in wanted.items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
