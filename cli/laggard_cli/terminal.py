"""Text from elsewhere, for a terminal, and data for a program."""

from __future__ import annotations

import codecs
import io
import json
import math
from collections.abc import Mapping
from typing import Any, cast

#: Of characters that laggard prints, what stands for each where a terminal's encoding lacks it.
_PLAIN = {"█": "#", "░": ".", "…": "...", "\u00d7": "x", "→": "->", "✓": "+", "✗": "x", "·": "."}
#: A line end is known better by this name than by its number.
_ESCAPES = {"\n": "\\n"}
_PLAINLY = "laggard_plainly"


def _plainly(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_PLAIN.get(each, "?") for each in missing), error.end


codecs.register_error(_PLAINLY, _plainly)


def print_plainly(*streams: object) -> None:
    """Have streams print something else for what their encoding lacks, in place of an error."""
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_PLAINLY)


def printable(text: str) -> str:
    """Return text on one line in which nothing but printable characters is left as it is.

    The name of a run, a group or a file may come from somebody else, and a terminal obeys what is hidden in it.
    """
    return "".join(each if each.isprintable() else _ESCAPES.get(each, f"\\x{ord(each):02x}") for each in text)


def printable_lines(text: str) -> str:
    """Return text as :func:`printable` does, line by line: for text whose line ends are our own."""
    return "\n".join(map(printable, text.split("\n")))


def to_json(content: Any, indent: int | None = None) -> str:
    """Return content as JSON, which has no NaN and no infinity: both are null."""
    return json.dumps(_numbers(content), indent=indent, allow_nan=False)


def _numbers(content: Any) -> Any:
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, Mapping):
        return {key: _numbers(value) for key, value in cast("Mapping[Any, Any]", content).items()}
    if isinstance(content, list | tuple):
        return [_numbers(value) for value in cast("list[Any]", content)]
    return content
