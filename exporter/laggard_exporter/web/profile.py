"""``POST /-/profile``: asks a rank of this node for a profile, says what became of it, and hands the file out.

| body | answer |
|---|---|
| ``{"run": …, "rank": …, "steps": …}``, also ``"stacks": true`` | 202 and ``{"id": …}`` |
| ``{"id": …}`` | ``{"status": "asked", "accepted", "done" or "failed", "reason": …}`` |
| ``{"id": …, "withdraw": true}`` | the same; the rank stops |
| ``{"id": …, "trace": true}`` | the file |
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, cast

from laggard_exporter.profiling import Profiling, ProfilingError
from laggard_exporter.web.application import Request, Response, text

#: Where the page is.
PATH = "/-/profile"

_JSON = "application/json"
_ASK: Mapping[str, type] = {"run": str, "rank": int, "steps": int, "stacks": bool}
_MAY_LACK = frozenset({"stacks"})
_LOOK: Mapping[str, type] = {"id": str, "trace": bool, "withdraw": bool}


class ProfilePage:
    """The page, over what asks the ranks."""

    def __init__(self, profiling: Profiling) -> None:
        self._profiling = profiling

    def __call__(self, request: Request) -> Response:
        """Return the answer to a POST."""
        # A page of somebody else that a browser shows cannot send this type without asking first.
        if request.headers.get("Content-Type", "").partition(";")[0].strip().lower() != _JSON:
            return text(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"send {_JSON}")
        try:
            return self._answer(_fields(request.body))
        except ValueError as error:
            return text(HTTPStatus.BAD_REQUEST, str(error))
        except ProfilingError as error:
            return text(error.status, str(error))

    def _answer(self, fields: Mapping[str, Any]) -> Response:
        if "id" not in fields:
            stacks = fields.get("stacks", False)
            id_ = self._profiling.request(fields["run"], fields["rank"], fields["steps"], stacks=stacks)
            return _json(HTTPStatus.ACCEPTED, {"id": id_})
        if fields.get("trace"):
            file, size = self._profiling.trace(fields["id"])
            return Response(HTTPStatus.OK, headers={"Content-Type": _JSON}, file=file, size=size)
        look = self._profiling.withdraw if fields.get("withdraw") else self._profiling.status
        status, reason = look(fields["id"])
        return _json(HTTPStatus.OK, {"status": status, "reason": reason})


def _fields(body: bytes) -> dict[str, Any]:
    """Return the fields of a request. Raises :class:`ValueError` for anything but a good one."""
    try:
        content: Any = json.loads(body)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise ValueError("no JSON object")  # noqa: TRY004 - one kind of error for the whole body
    fields = cast("dict[str, Any]", content)
    kinds = _LOOK if "id" in fields else _ASK
    for name, value in fields.items():
        if name not in kinds:
            raise ValueError(f"no field {name[:40]!r}; there are {', '.join(kinds)}")
        if type(value) is not kinds[name]:
            raise ValueError(f"{name} must be of type {kinds[name].__name__}")
    needed = [name for name in kinds if name not in _MAY_LACK]
    if kinds is _ASK and not fields.keys() >= set(needed):
        raise ValueError(f"give {', '.join(needed)}")
    return fields


def _json(status: HTTPStatus, content: Mapping[str, str]) -> Response:
    return Response(status, json.dumps(content).encode(), {"Content-Type": _JSON})
