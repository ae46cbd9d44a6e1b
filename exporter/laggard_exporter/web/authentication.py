"""Basic authentication with passwords that are stored as bcrypt hashes."""

from __future__ import annotations

import base64
import binascii
import os
import re
import threading
from collections.abc import Mapping

import bcrypt

#: Answers that are remembered: one check takes as long as the hash's cost demands, by design.
_REMEMBERED = 128

#: bcrypt looks at no more bytes of a password than these.
_PASSWORD_BYTES = 72

_HASH = re.compile(r"\$2[aby]\$(0[4-9]|[12][0-9]|3[01])\$[./A-Za-z0-9]{53}")

#: Checked for a name that nobody has, so that it takes as long as for one that somebody has. Its password is unknown.
_NOBODY = "$2b$10$" + "." * 53


class Users:
    """Who may connect: bcrypt hashes by name. Without any, everybody may.

    Raises :class:`ValueError` for a hash that is none.
    """

    def __init__(self, hashes: Mapping[str, str] | None = None) -> None:
        self._hashes = dict(hashes or {})
        for name, text in self._hashes.items():
            _check(name, text)
        self._nobody = next(iter(self._hashes.values()), _NOBODY)
        self._remembered: dict[bytes, bool] = {}
        # One hash at a time: who guesses passwords can take one core, never all.
        self._lock = threading.Lock()
        self._salt = os.urandom(16)

    def __bool__(self) -> bool:
        return bool(self._hashes)

    def allow(self, header: str | None) -> bool:
        """Return whether a request with this ``Authorization`` header may be answered."""
        if not self._hashes:
            return True
        credentials = _decode(header or "")
        if credentials is None:
            return False
        name, password = credentials
        # Not the password itself: what is remembered must not help who reads our memory.
        import hashlib  # noqa: PLC0415 - it loads OpenSSL, which takes memory, and only who has passwords needs it

        key = hashlib.blake2b(name.encode() + b"\0" + password, key=self._salt).digest()
        known = self._remembered.get(key)
        return self._verify(key, name, password) if known is None else known

    def _verify(self, key: bytes, name: str, password: bytes) -> bool:
        with self._lock:
            stored = self._hashes.get(name)
            result = bcrypt.checkpw(password, (stored or self._nobody).encode()) and stored is not None
            if len(self._remembered) >= _REMEMBERED:
                self._remembered.pop(next(iter(self._remembered)))
            self._remembered[key] = result
        return result


def _check(name: str, text: str) -> None:
    if not _HASH.fullmatch(text):
        raise ValueError(
            f"basic_auth_users: the password of {name!r} must be a bcrypt hash; try htpasswd -nBC 10 {name!r}"
        )


def _decode(header: str) -> tuple[str, bytes] | None:
    scheme, _, text = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, separator, password = base64.b64decode(text, validate=True).partition(b":")
        return (name.decode(), password) if separator and len(password) <= _PASSWORD_BYTES else None
    except (binascii.Error, ValueError):
        return None
