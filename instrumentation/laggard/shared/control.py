"""Control files: how a rank that runs is asked for a trace of its last steps or for a profile of its next ones.

``laggard profile`` writes one file a rank into the state folder, ``RUN-RANK.control``; the rank looks for it once a
second and answers in ``RUN-RANK.reply``. Only the standard library is imported, since both sides use this module.

A request is a JSON object with ``id``, ``request`` (``trace`` or ``profile``), and where wanted ``path`` (absolute),
``steps`` and ``stacks``. It stands for as long as its file is there. It is accepted from the rank's own user and from
root, and without a path from one more user whom the rank is told of. A rank handles an id once.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from laggard.shared import untrusted

REQUEST_SUFFIX = ".control"
REPLY_SUFFIX = ".reply"
MAX_BYTES = 8192
MAX_STEPS = 1000

_KINDS = ("trace", "profile")
_STATES = ("accepted", "done", "failed")
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
#: A file name of 255 bytes must have room for what is added to the run's name.
_MAX_RUN = 160


class ControlError(Exception):
    """A control file or a reply cannot be used; the message names the file and the reason."""


@dataclass(frozen=True)
class Request:
    """What a rank is asked for. An empty path means the state folder; what follows counts for a profile."""

    id: str
    request: Literal["trace", "profile"]
    path: str = ""
    steps: int = 5
    stacks: bool = False
    """Whether Python functions are recorded too, which makes the steps slower."""


@dataclass(frozen=True)
class Reply:
    """What became of a request; ``reason`` is empty unless it failed."""

    id: str
    status: Literal["accepted", "done", "failed"]
    reason: str = ""


def stem(run: str, rank: int) -> str:
    """Return the name of a rank's files in the state folder, without their suffix."""
    name = quote(run, safe="")
    if len(name) > _MAX_RUN:
        import hashlib  # noqa: PLC0415 - it loads OpenSSL, which takes memory, and hardly any name is so long

        name = f"{name[: _MAX_RUN - 17]}-{hashlib.sha256(run.encode()).hexdigest()[:16]}"
    return f"{name}-{rank}"


def new_id() -> str:
    """Return an id that no other request has."""
    return os.urandom(8).hex()


def write(path: Path, content: Request | Reply) -> None:
    """Write a request or a reply, whole from the moment on which it has its name. Raises :class:`OSError`."""
    fields = asdict(content)
    if not fields.get("stacks", True):
        # Ranks of a version without it refuse a field that they do not know.
        del fields["stacks"]
    write_atomically(path, [json.dumps(fields)])


def read_request(path: Path, other_user: int | None = None) -> Request:
    """Read a request that anybody may have written. Raises :class:`ControlError` for anything but a good one.

    ``other_user`` may ask like the process's own user and root, but not name a path: what is written there is written
    with this process's rights.
    """
    owner, fields = _read(path, {os.geteuid(), 0, other_user})
    request = Request(**_checked(path, fields, {"id": str, "request": str, "path": str, "steps": int, "stacks": bool}))
    if not _ID.match(request.id):
        raise ControlError(f"{path}: id {request.id!r} is not 1 to 64 letters, digits, - and _")
    if request.request not in _KINDS:
        raise ControlError(f"{path}: request must be one of {', '.join(_KINDS)}, got {request.request!r}")
    if request.path and (not Path(request.path).is_absolute() or "\0" in request.path):
        raise ControlError(f"{path}: path {request.path!r} is not absolute")
    if request.path and owner not in (os.geteuid(), 0):
        raise ControlError(f"{path}: path {request.path!r} of user {owner}, whose traces go to the state folder only")
    if not 1 <= request.steps <= MAX_STEPS:
        raise ControlError(f"{path}: steps {request.steps} is not 1 to {MAX_STEPS}")
    return request


def read_reply(path: Path, user: int) -> Reply:
    """Read the reply of a rank that runs as ``user``. Raises :class:`ControlError` for anything but a good one."""
    _, fields = _read(path, {user})
    reply = Reply(**_checked(path, fields, {"id": str, "status": str, "reason": str}))
    if reply.status not in _STATES:
        raise ControlError(f"{path}: status must be one of {', '.join(_STATES)}, got {reply.status!r}")
    return reply


def write_atomically(path: Path, parts: Iterable[str]) -> None:
    """Write a text file that is whole from the moment on which it has its name. Raises :class:`OSError`."""
    temporary = path.with_name(f".{os.urandom(8).hex()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(temporary, flags, 0o644), "w", encoding="utf-8") as file:
            file.writelines(parts)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _read(path: Path, users: set[int | None]) -> tuple[int, dict[str, Any]]:
    """Return who owns a file and the JSON object in it."""
    try:
        fd = untrusted.open_file(path)
    except OSError as error:
        raise ControlError(f"{path}: {error.strerror}") from error
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise ControlError(f"{path}: not a regular file")
        if status.st_uid not in users:
            raise ControlError(f"{path}: belongs to user {status.st_uid}, who may not ask this process for anything")
        if status.st_mode & untrusted.OTHERS_WRITE:
            raise ControlError(f"{path}: others than its owner may write it")
        data = os.read(fd, MAX_BYTES + 1)
    except OSError as error:
        raise ControlError(f"{path}: {error.strerror}") from error
    finally:
        os.close(fd)
    if len(data) > MAX_BYTES:
        raise ControlError(f"{path}: longer than {MAX_BYTES} bytes")
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ControlError(f"{path}: no JSON: {error}") from error
    if not isinstance(content, dict):
        raise ControlError(f"{path}: no JSON object")
    return status.st_uid, content  # pyright: ignore[reportUnknownVariableType] - its keys and values are checked next


def _checked(path: Path, content: dict[str, Any], kinds: dict[str, type]) -> dict[str, Any]:
    for name, value in content.items():
        if name not in kinds:
            raise ControlError(f"{path}: unknown field {name!r}")
        if type(value) is not kinds[name]:
            raise ControlError(f"{path}: {name} is {type(value).__name__}, not {kinds[name].__name__}")
    for name in list(kinds)[:2]:
        if name not in content:
            raise ControlError(f"{path}: no {name}")
    return content
