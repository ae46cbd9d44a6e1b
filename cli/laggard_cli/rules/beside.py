"""What reads the labels of the rules: the dashboards and Alertmanager's configuration, under a site's names."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, cast

from laggard_cli.labels import in_template, in_words, renamed
from laggard_cli.pack import pack_folder

#: Fields of a dashboard that hold PromQL, a call that finds the values of a variable, or an expression on its answer.
_QUERIES = ("expr", "query", "regex")
_TEMPLATES = ("legendFormat", "textFormat", "titleFormat")
#: Options of tables, by a column's name.
_BY_NAME = ("includeByName", "indexByName", "renameByName")
#: From their head to the empty line behind them.
_RECEIVERS = re.compile(r"^receivers:\n(?:.+\n)+\n", re.MULTILINE)


def dashboards(names: Mapping[str, str]) -> dict[str, str]:
    """Return file name and text of each dashboard. Its variables keep their names: links of alerts set them."""
    folder = pack_folder("dashboards")
    # In an installation the files alone are there, in a checkout what makes them too.
    folder = folder / "json" if (folder / "json").is_dir() else folder
    boards = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}
    return {
        name: json.dumps(_board(board, names, ""), indent=2, sort_keys=True) + "\n" for name, board in boards.items()
    }


def alertmanager(names: Mapping[str, str], *, receivers: bool = False) -> str:
    """Return Alertmanager's configuration, with receivers to fill in if asked. Its comments stay as they are."""
    folder = pack_folder("deploy/alertmanager")
    text = (folder / "alertmanager.yml").read_text(encoding="utf-8")
    if receivers:
        text = _RECEIVERS.sub(lambda _: (folder / "receivers.yml").read_text(encoding="utf-8") + "\n", text, count=1)
    lines = text.splitlines(keepends=True)
    return "".join(line if line.lstrip().startswith("#") else in_words(line, names) for line in lines)


def _board(content: Any, names: Mapping[str, str], field: str) -> Any:
    """Return a part of a dashboard, which stands in a field."""
    if isinstance(content, dict):
        parts = cast("dict[str, Any]", content)
        return {
            names.get(key, key) if field in _BY_NAME else key: _board(part, names, key) for key, part in parts.items()
        }
    if isinstance(content, list):
        return [_board(part, names, field) for part in cast("list[Any]", content)]
    if isinstance(content, str) and field in _QUERIES:
        return renamed(content, names)
    return in_template(content, names) if isinstance(content, str) and field in _TEMPLATES else content
