"""Scans a trace in the trace event format event by event: one of 100 MB would be gigabytes as Python objects."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import json
import re
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import IO, Any, cast

from laggard_cli.errors import CommandError

EVENTS = "traceEvents"

_CHUNK_BYTES = 1 << 20
#: No event, and no fact beside the events, is longer than this many characters.
_MAX_VALUE = 16 << 20
#: An error so close to the end of what has been read may be one of the cut alone.
_CUT = 16
#: The first characters of a trace, in which its keys must show.
_HEAD_BYTES = 64 << 10
_GZIP = b"\x1f\x8b"
#: The events alone, the other form that the format has.
_EVENTS_ALONE = re.compile(rb'\[\s*\{[^{}]*"ph"\s*:')
_SPACE = re.compile(r"[ \t\r\n]*")
#: Where an event ends that is no JSON: before the next one, or before the end of all.
_END = re.compile(r'\}(?=\s*(?:,\s*\{\s*"(?:ph|name|cat)"|\]\s*(?:[,}]|\Z)))')
#: What torch writes and JSON has not: numbers that are none, values that are missing, backslashes of Windows.
_NO_VALUE = re.compile(r"(?<=:)\s*(?:-?(?:inf|nan))?\s*(?=[,}])")
_BACKSLASH = re.compile(r"\\\\|\\(?![\"\\/bfnrt]|u[0-9a-fA-F]{4})")
#: A call of Python's, which is in no phase. Torch does not escape the quotes in the name of generated code.
_FUNCTION = re.compile(r'"cat"\s*:\s*"python_function"')


def is_trace(path: Path) -> bool:
    """Return whether a file begins like a trace of torch's profiler, compressed or not.

    Raises:
        CommandError: the file cannot be read.
    """
    with _opened(path) as file:
        head = file.read(_HEAD_BYTES)
    head = head.removeprefix(codecs.BOM_UTF8).lstrip()
    named = b'"schemaVersion"' in head or b'"%s"' % EVENTS.encode() in head
    return (head.startswith(b"{") and named) or bool(_EVENTS_ALONE.match(head))


def scan(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the facts of a trace by their keys, and each event under the key ``traceEvents``, in the order of the file.

    Raises:
        CommandError: the file cannot be read, is no such trace, or ends before the trace does.
    """
    count = 0
    with _opened(path) as file:
        text = _Text(path, file)
        if text.accept("["):
            yield from _events(text)
            text.end()
            return
        text.expect("{")
        while not text.accept("}"):
            key = text.value(count)
            if not isinstance(key, str):
                raise CommandError(f"{path}: no trace: {str(key)[:40]!r} stands where a name should")
            text.expect(":")
            if key == EVENTS:
                text.expect("[")
                for event in _events(text):
                    yield event
                    count += 1
            else:
                yield key, text.value(count)
            if not text.accept(","):
                text.expect("}")
                break
        text.end()


def _events(text: _Text) -> Iterator[tuple[str, Any]]:
    """Yield the events of an array, behind its bracket."""
    count = 0
    while not text.accept("]"):
        yield EVENTS, text.value(count, event=True)
        count += 1
        if not text.accept(","):
            text.expect("]")
            return


@contextlib.contextmanager
def _opened(path: Path) -> Generator[IO[bytes]]:
    """Open a file and, where it is compressed, what is in it; its errors become one line."""
    try:
        with path.open("rb") as raw:
            compressed = raw.read(len(_GZIP)) == _GZIP
            raw.seek(0)
            if compressed:
                with gzip.open(raw) as unpacked:
                    yield cast("IO[bytes]", unpacked)
            else:
                yield raw
    except EOFError:
        raise CommandError(f"{path}: {_ENDS}") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise CommandError(f"{path}: the compressed file is damaged: {error}") from error
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}") from error


#: torch writes by kind of event, not by time: what a cut file lacks may be all kernels, or a whole thread.
_ENDS = "ends in the middle, so it was not written to its end; what is missing cannot be told: take another"


class _Text:
    """What has been read of a file and not yet been taken."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self._path = path
        self._file = file
        self._text = ""
        self._position = 0
        # Names of kernels and files may hold anything.
        self._letters = codecs.getincrementaldecoder("utf-8-sig")("replace")
        # Nor does torch escape control characters.
        self._decoder = json.JSONDecoder(strict=False)

    def accept(self, letter: str) -> bool:
        """Return whether the next letter is this one, and go behind it if it is."""
        found = self._next() == letter
        self._position += found
        return found

    def expect(self, letter: str) -> None:
        """Go behind a letter that must be there."""
        if not self.accept(letter):
            found = self._text[self._position : self._position + 20]
            raise CommandError(f"{self._path}: no trace: {letter!r} expected at {found!r}" if found else self._short())

    def end(self) -> None:
        """Make sure that nothing comes any more: of two traces in one file neither is known to be meant."""
        if self._next():
            found = self._text[self._position : self._position + 20]
            raise CommandError(f"{self._path}: {found!r} stands behind the end of the trace: take a file of one trace")

    def value(self, count: int = 0, *, event: bool = False) -> Any:
        """Return the next value; ``count`` events came before it."""
        self._next()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._position)
            except json.JSONDecodeError as found:
                error = found
                ends = _END.search(self._text, error.pos) if event else None
                if ends:
                    return self._mended(ends.end(), count)
                cut = error.msg.startswith("Unterminated") or error.pos >= len(self._text) - _CUT
                if not (cut or event) or len(self._text) - self._position > _MAX_VALUE:
                    raise self._no_json(error, count) from None
            except (RecursionError, ValueError) as found:
                # Python reads no number of more than 4300 digits.
                why = "nested too deeply" if isinstance(found, RecursionError) else "a number has too many digits"
                raise CommandError(f"{self._path}: no JSON after {count} events: {why}") from None
            else:
                # A number may go on behind the cut.
                if end < len(self._text) or not self._more():
                    self._position = end
                    return value
                continue
            if not self._more():
                raise CommandError(self._short()) if cut else self._no_json(error, count)

    def _mended(self, end: int, count: int) -> Any:
        """Return an event that ends here and is no JSON as it stands; nothing of a call of Python's that stays none."""
        event = self._text[self._position : end]
        text = _BACKSLASH.sub(r"\\\\", _NO_VALUE.sub(" null", event))
        self._position = end
        try:
            return self._decoder.decode(text)
        except json.JSONDecodeError as error:
            if _FUNCTION.search(event):
                return None
            raise self._no_json(error, count) from None

    def _no_json(self, error: json.JSONDecodeError, count: int) -> CommandError:
        found = error.doc[max(0, error.pos - 20) : error.pos + 20]
        return CommandError(f"{self._path}: no JSON after {count} events: {error.msg} at {found!r}")

    def _next(self) -> str:
        """Go to the next letter that is no space and return it; an empty text at the end of the file."""
        while True:
            self._position = cast("re.Match[str]", _SPACE.match(self._text, self._position)).end()
            if self._position < len(self._text):
                return self._text[self._position]
            if not self._more():
                return ""

    def _more(self) -> bool:
        data = self._file.read(_CHUNK_BYTES)
        if not data:
            return False
        self._text = self._text[self._position :] + self._letters.decode(data)
        self._position = 0
        return True

    def _short(self) -> str:
        return f"{self._path}: {_ENDS}"
