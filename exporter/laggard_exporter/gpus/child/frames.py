"""What goes to and fro between the exporter and the process of a vendor's library.

A frame is its length and a number, both of the exporter, and a content. A request is a list of calls,
``(function, device, arguments)``; its answer has the same number and holds ``(return code, value)`` for each call.
"""

from __future__ import annotations

import marshal
import os
import struct
from typing import Any

#: Number of the frames that nobody asked for: an event, ``(index of the GPU, XID, Unix time)``.
EVENT = 0

#: The length of a frame's content, and its number.
HEAD = struct.Struct("=QQ")

#: What the shared memory says: the number of the requests under way, and which of them.
PROGRESS = struct.Struct("=QQ")


def pack(number: int, data: bytes) -> bytes:
    """Return a frame of what :func:`dump` made."""
    return HEAD.pack(len(data), number) + data


def dump(content: Any) -> bytes:
    """Return a content as bytes."""
    return marshal.dumps(content)


def load(data: bytes | bytearray) -> Any:
    """Return a content. Both ends are ours."""
    return marshal.loads(data)  # noqa: S302 - our own parent or child


def read(descriptor: int) -> tuple[int, Any] | None:
    """Wait for a frame and return its number and content, None at the end of the stream."""
    if not (head := _read_exactly(descriptor, HEAD.size)):
        return None
    size, number = HEAD.unpack(head)
    return number, load(_read_exactly(descriptor, size))


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
