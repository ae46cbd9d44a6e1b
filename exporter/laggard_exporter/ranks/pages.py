"""Reads the pages of all ranks at the same time, in the time and the memory that is given, in one thread."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import time
from collections.abc import Sequence

#: A page may have so many bytes, and all pages of a scrape together so many.
PAGE_BYTES, ALL_BYTES = 2 << 20, 64 << 20

_CHUNK_BYTES = 1 << 16
_REQUEST = b"GET /metrics HTTP/1.0\r\nHost: localhost\r\nAccept: text/plain;version=0.0.4\r\n\r\n"


class PageError(Exception):
    """A page cannot be had; the text says why."""


class _Conversation:
    """One request and its answer; :meth:`step` never waits."""

    def __init__(self, address: str, port: int) -> None:
        self.socket = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        self.socket.setblocking(False)
        self.error = "no answer in time"
        self.bytes = 0
        self._left = _REQUEST
        self._parts: list[bytes] = []
        self._refused = self.socket.connect_ex((address, port))

    def step(self) -> bool:
        """Send or receive what there is; return whether that was all."""
        try:
            # A connection that is under way ends with an error of the socket.
            refused = self._refused if self._refused != errno.EINPROGRESS else 0
            if refused or (refused := self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)):
                self.error = f"cannot be reached ({os.strerror(refused)})"
                return True
            if self._left:
                self._left = self._left[self.socket.send(self._left) :]
                return False
            part = self.socket.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:
            self.error = f"broke off ({error.strerror})"
            return True
        self._parts.append(part)
        self.bytes += len(part)
        if not part:
            self.error = ""
        elif self.bytes > PAGE_BYTES:
            self.error = f"has more than {PAGE_BYTES} bytes"
        return not part or self.bytes > PAGE_BYTES

    @property
    def wants(self) -> int:
        """What to wait for before the next step."""
        return selectors.EVENT_WRITE if self._left else selectors.EVENT_READ

    def page(self) -> str:
        """Return the page. Raises :class:`PageError` where there is no whole one."""
        if self.error:
            raise PageError(self.error)
        head, _, body = b"".join(self._parts).partition(b"\r\n\r\n")
        first, *fields = head.split(b"\r\n")
        if first.split(b" ")[1:2] != [b"200"]:
            raise PageError(f"answers {first[:40].decode('ascii', 'replace')!r}")
        for field in fields:
            name, _, value = field.partition(b":")
            if name.strip().lower() == b"content-length" and value.strip() != str(len(body)).encode():
                raise PageError("broke off")
        try:
            return body.decode()
        except UnicodeDecodeError as error:
            raise PageError("must be UTF-8") from error


def read_pages(addresses: Sequence[tuple[str, int]], seconds: float) -> list[str | PageError]:
    """Return the page that each address serves at ``/metrics``, or why there is none, in so many ``seconds``."""
    deadline = time.monotonic() + seconds
    with contextlib.ExitStack() as sockets, selectors.DefaultSelector() as selector:
        conversations: list[_Conversation | PageError] = []
        for address, port in addresses:
            try:
                conversation = _Conversation(address, port)
            except OSError as error:  # no descriptor is left
                conversations.append(PageError(f"cannot be asked ({error.strerror})"))
                continue
            sockets.enter_context(conversation.socket)
            selector.register(conversation.socket, conversation.wants, conversation)
            conversations.append(conversation)
        _converse(selector, deadline)
        return [_page(conversation) for conversation in conversations]


def _converse(selector: selectors.BaseSelector, deadline: float) -> None:
    total = 0
    while selector.get_map() and (left := deadline - time.monotonic()) > 0:
        for key, _ in selector.select(left):
            conversation: _Conversation = key.data
            total -= conversation.bytes
            over = conversation.step()
            total += conversation.bytes
            if total > ALL_BYTES:
                over, conversation.error = True, f"is too much: all pages together have more than {ALL_BYTES} bytes"
            if over:
                selector.unregister(conversation.socket)
            elif conversation.wants != key.events:
                selector.modify(conversation.socket, conversation.wants, conversation)


def _page(conversation: _Conversation | PageError) -> str | PageError:
    try:
        return conversation if isinstance(conversation, PageError) else conversation.page()
    except PageError as error:
        return error
