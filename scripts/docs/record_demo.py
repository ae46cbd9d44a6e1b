"""Plays some acts of the demo and draws what it prints: docs/images/demo.svg.

    scripts/docs/record_demo.py slow-backward frozen

Nothing is left out and nothing is put in but the command. The picture asks no other host for a font.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from laggard_cli.demo import command
from laggard_cli.main import main

PICTURE = Path(__file__).parent.parent.parent / "docs" / "images" / "demo.svg"
_WIDTH = 116
_FONT_FACES = re.compile(r"@font-face \{\{.*?\}\}\n", re.DOTALL)


def record(acts: list[str]) -> int:
    """Play the acts and write the picture; return the demo's exit code."""
    console = Console(record=True, width=_WIDTH)
    arguments = ["demo", "--acts", *acts]
    console.print(f"$ laggard {' '.join(arguments)}", style="bold", highlight=False)
    command.Console = lambda: console
    code = main(arguments)
    frame = _FONT_FACES.sub("", CONSOLE_SVG_FORMAT).replace("Fira Code", "Menlo, Consolas, DejaVu Sans Mono")
    PICTURE.write_text(console.export_svg(title="laggard demo", code_format=frame, unique_id="demo"), encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(record(sys.argv[1:] or ["slow-backward", "frozen"]))
