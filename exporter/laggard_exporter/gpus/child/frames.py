"""What goes to and fro between the exporter and the process of a vendor's library.

A frame is four bytes of its length and a pair: a number and a content. A request is a list of calls,
``(function, device, arguments)``; its answer has the same number and holds ``(return code, value)`` for each call.
"""

from __future__ import annotations

import marshal
import os
import struct
from typing import Any

#: Number of the frames that nobody asked for: an event, ``(index of the GPU, XID, Unix time)``.
EVENT = 0

#: Bytes of a frame's length.
HEAD = 4

#: What the shared memory says: the number of the requests under way, and which of them.
PROGRESS = struct.Struct("=QQ")


def pack(number: int, content: Any) -> bytes:
    """Return a frame."""
    data = marshal.dumps((number, content))
    return len(data).to_bytes(HEAD, "little") + data


def size_of(head: bytes | bytearray) -> int:
    """Return the length that the head of a frame tells."""
    return int.from_bytes(head[:HEAD], "little")


def unpack(data: bytes | bytearray) -> tuple[int, Any]:
    """Return number and content of a frame without its head. Both ends are ours."""
    return marshal.loads(data)  # noqa: S302 - our own parent or child


def read(descriptor: int) -> tuple[int, Any] | None:
    """Wait for a frame and return its number and content, None at the end of the stream."""
    head = _read_exactly(descriptor, HEAD)
    return unpack(_read_exactly(descriptor, size_of(head))) if head else None


def write(descriptor: int, data: bytes) -> None:
    """Write all of a frame."""
    while data:
        data = data[os.write(descriptor, data) :]


def _read_exactly(descriptor: int, size: int) -> bytes:
    """Read ``size`` bytes, fewer only at the end of the stream."""
    data = b""
    while len(data) < size and (chunk := os.read(descriptor, size - len(data))):
        data += chunk
    return data
