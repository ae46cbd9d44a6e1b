"""Manifests as people write them: read, added to and written with their comments, order and quotes."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any, cast

import yaml
from ruamel.yaml import YAML, comments
from ruamel.yaml.error import YAMLError
from ruamel.yaml.scalarstring import SingleQuotedScalarString

from laggard_cli.errors import CommandError

#: They have no types that a checker could follow.
_YAML_1_1: Any = yaml
_MAPPING: Any = comments.CommentedMap
_LIST: Any = comments.CommentedSeq
#: Longer than any line: a command in one stays in one.
_WIDTH = 1 << 16
#: A list that stands further to the right than its name.
_INDENTED_LIST = re.compile(r"^( *)(?:- )?[\w.\"'-]+:[ ]*(?:#.*)?\n(?: *#.*\n|\n)*\1 +- ", re.MULTILINE)


class Manifest:
    """The documents of a text.

    Where something is said once and referred to again (an anchor), each place gets its own, and comments are left out:
    what is added to one place must not be added to the others.

    Raises:
        CommandError: it is no YAML.
    """

    def __init__(self, text: str, source: str) -> None:
        self.documents: list[Any]
        try:
            self.with_comments = not any(isinstance(event, yaml.AliasEvent) for event in _YAML_1_1.parse(text))
            self._writer: Any = _writer(text)
            loaded = self._writer.load_all(text) if self.with_comments else yaml.safe_load_all(text)
            self.documents = [
                _unshared(each) if not self.with_comments else each for each in loaded if each is not None
            ]
        except (yaml.YAMLError, YAMLError) as error:
            raise CommandError(f"{source}: {' '.join(str(error).split())}") from error
        except RecursionError:
            raise CommandError(f"{source}: an anchor contains itself") from None

    def text(self) -> bytes:
        """Return all documents as UTF-8, which a manifest is whatever a terminal's encoding is."""
        if not self.with_comments:
            return yaml.safe_dump_all(self.documents, sort_keys=False, allow_unicode=True, encoding="utf-8")
        out = io.BytesIO()
        self._writer.dump_all(self.documents, out)
        return out.getvalue()


def put(node: Any, name: str, value: Any) -> None:
    """Add an entry to a mapping, before its last one where a comment behind that is about what follows."""
    if isinstance(node, _MAPPING) and _ends_with_comment(node):
        node.insert(len(node) - 1, name, _quoted(value))
    else:
        node[name] = _quoted(value)


def extend(node: list[dict[str, Any]], entries: Sequence[dict[str, Any]], *, first: bool = False) -> None:
    """Add entries to a list, at its begin or its end; before the last one where a comment behind that follows."""
    place = 0 if first else len(node) - int(_ends_with_comment(node))
    for entry in reversed(entries):
        node.insert(place, _quoted(entry))


def _writer(text: str) -> Any:
    writer: Any = YAML()
    writer.preserve_quotes = True
    writer.width = _WIDTH
    if _INDENTED_LIST.search(text):
        writer.indent(mapping=2, sequence=4, offset=2)
    return writer


def _unshared(value: Any) -> Any:
    """Return a document in which what is said once and referred to again stands at each place for itself."""
    if isinstance(value, dict):
        return {name: _unshared(entry) for name, entry in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_unshared(entry) for entry in cast("list[Any]", value)]
    return value


def _quoted(value: Any) -> Any:
    """Return a value whose texts are texts for readers of YAML 1.1 too, to whom ``on`` is true."""
    if isinstance(value, dict):
        return {name: _quoted(entry) for name, entry in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_quoted(entry) for entry in cast("list[Any]", value)]
    if isinstance(value, str) and _YAML_1_1.resolver.Resolver().resolve(yaml.ScalarNode, value, (True, False)) != _TEXT:
        return SingleQuotedScalarString(value)
    return value


_TEXT = "tag:yaml.org,2002:str"


def _ends_with_comment(node: Any) -> bool:
    """Return whether lines of comment follow the last entry: they are about what comes after it."""
    while isinstance(node, (_MAPPING, _LIST)) and len(node):
        key: Any = next(reversed(node)) if isinstance(node, _MAPPING) else len(node) - 1
        tokens: list[Any] = [token for token in node.ca.items.get(key) or () if token is not None]
        for token in tokens:
            written = "".join(each.value for each in (cast("list[Any]", token) if isinstance(token, list) else [token]))
            if "#" in written.partition("\n")[2]:
                return True
        node = node[key]
    return False
