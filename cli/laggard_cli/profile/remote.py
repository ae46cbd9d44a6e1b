"""Asks ranks of other hosts for profiles, through the node exporters there, and fetches the files."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from laggard.shared import control
from laggard_cli.errors import CommandError
from laggard_cli.progress import Progress
from laggard_cli.terminal import printable

_PATH = "/-/profile"
_FOREIGN = "does not answer as laggard's node exporter"
_POLL_SECONDS = 0.5
_TIMEOUT_SECONDS = 30.0
#: A rank looks for requests once a second; one that takes none for so long does not obey the exporter.
_ACCEPT_SECONDS = 20.0
#: An answer, and a trace, are not longer than this.
_MOST_ANSWER_BYTES = 1 << 20
_MOST_TRACE_BYTES = 1 << 32
#: Characters of what an exporter says that are shown.
_SHOWN = 200


@dataclass(frozen=True)
class RemoteRank:
    """A rank on another host, and the node exporter there."""

    run: str
    number: int
    url: str
    exporters: Exporters


class Exporters:
    """How node exporters are reached.

    Raises :class:`CommandError` where a file cannot be used, or nothing says who asks.
    """

    def __init__(self, url: str, credentials: Path | None, authority: Path | None, certificate: Path | None) -> None:
        if credentials is None and certificate is None:
            raise CommandError(
                "a rank runs on another host: --exporter-credentials or --exporter-certificate is needed to ask its "
                "node exporter; or call laggard profile there"
            )
        self._url = url
        self._user = _credentials(credentials) if credentials else None
        try:
            self._tls = ssl.create_default_context(cafile=authority)
        except OSError as error:
            raise CommandError(f"--exporter-ca {authority}: {error.strerror or error}") from error
        try:
            if certificate:
                self._tls.load_cert_chain(certificate)
        except OSError as error:
            raise CommandError(f"--exporter-certificate {certificate}: {error.strerror or error}") from error

    def rank(self, run: str, number: int, known: tuple[str, str] | None) -> RemoteRank:
        """Return a rank by the address and the host that Prometheus knows of its exporter."""
        if known is None:
            raise CommandError(
                f"rank {number} of {run} is not on this host, and no node exporter in Prometheus sees it"
            )
        instance, host = known
        url = self._url.replace("{instance}", instance).replace("{host}", host)
        if not url.startswith("https://"):
            raise CommandError(f"--exporter-url {url!r} does not begin with https://; a password would be readable")
        return RemoteRank(run, number, url, self)

    @contextlib.contextmanager
    def client(self, url: str) -> Generator[httpx.Client]:
        """Yield a client for one exporter."""
        with httpx.Client(base_url=url, auth=self._user, verify=self._tls, timeout=_TIMEOUT_SECONDS) as client:
            yield client


def _credentials(path: Path) -> tuple[str, str]:
    try:
        user, separator, password = path.read_text(encoding="utf-8").strip().partition(":")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no text"
        raise CommandError(f"--exporter-credentials {path}: {reason}") from error
    if not separator or not user:
        raise CommandError(f"--exporter-credentials {path}: holds no user:password")
    return user, password


def request_from_exporter(
    rank: RemoteRank,
    *,
    output: Path,
    steps: int,
    seconds: float,
    stacks: bool,
    progress: Progress,
    stopped: threading.Event,
) -> dict[int, Path]:
    """Have a rank profile its next steps, print what becomes of it, and return the file by the rank, or nothing.

    Once ``stopped`` is set, or where the time is over, the rank is told to drop its profile.
    """
    moment = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    target = output / f"{control.stem(rank.run, rank.number)}.{moment}.profile.json"
    try:
        with rank.exporters.client(rank.url) as client:
            fields = {"run": rank.run, "rank": rank.number, "steps": steps}
            # Node exporters of a version without it refuse a field that they do not know.
            asked = _post(client, {**fields, "stacks": True} if stacks else fields)
            id_ = str(asked.get("id"))  # one that nobody gave is refused
            progress.result(f"asked rank {rank.number} of {rank.run} for {steps} steps, at {rank.url}")
            reason = _wait(client, rank, id_, seconds=seconds, progress=progress, stopped=stopped)
            if not reason:
                _download(client, id_, target)
    except _RefusedError as error:
        reason = f"{printable(rank.url)}: {error}"
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = f"{printable(rank.url)}: {error or type(error).__name__}"
    except OSError as error:
        reason = f"{target}: {error.strerror}"
    progress.result(f"rank {rank.number}: {reason or target}")
    return {} if reason else {rank.number: target}


class _RefusedError(Exception):
    """An exporter says no; the text is its own."""


def _wait(
    client: httpx.Client, rank: RemoteRank, id_: str, *, seconds: float, progress: Progress, stopped: threading.Event
) -> str:
    """Return an empty text when the profile is there, else why there is none."""
    began = time.monotonic()
    accepted = False
    while True:
        answer = _post(client, {"id": id_})
        status = answer.get("status")
        if status == "done":
            return ""
        if status == "failed":
            return printable(str(answer.get("reason") or "failed")[:_SHOWN])
        if status == "accepted" and not accepted:
            accepted = True
            progress.result(f"rank {rank.number}: profiles its next steps")
        passed = time.monotonic() - began
        late = passed > (seconds if accepted else min(_ACCEPT_SECONDS, seconds))
        if late or stopped.is_set():
            # One of a version that cannot refuses.
            with contextlib.suppress(_RefusedError):
                _post(client, {"id": id_, "withdraw": True})
            if stopped.is_set():
                return "profile withdrawn"
            return f"no profile after {passed:.0f} s" if accepted else "does not answer"
        progress.waits(f"rank {rank.number} {'profiles' if accepted else 'is asked'}; {passed:.0f} s")
        stopped.wait(_POLL_SECONDS)


def _post(client: httpx.Client, content: dict[str, Any]) -> dict[str, Any]:
    with client.stream("POST", _PATH, json=content) as response:
        body = b"".join(_bounded(response, _MOST_ANSWER_BYTES))
    if not response.is_success:
        raise _RefusedError(_said(response, body))
    try:
        answer: Any = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise _RefusedError(_FOREIGN)
    return answer  # pyright: ignore[reportUnknownVariableType] - its values are looked at one by one


def _download(client: httpx.Client, id_: str, target: Path) -> None:
    """Write the trace under its name when it is whole."""
    temporary = target.with_name(f".{target.name}")
    try:
        with client.stream("POST", _PATH, json={"id": id_, "trace": True}) as response:
            if not response.is_success:
                raise _RefusedError(_said(response, b"".join(_bounded(response, _MOST_ANSWER_BYTES))))
            with temporary.open("wb") as file:
                file.writelines(_bounded(response, _MOST_TRACE_BYTES))
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _bounded(response: httpx.Response, most: int) -> Iterator[bytes]:
    """Yield what an exporter sends; more than it may be is refused."""
    taken = 0
    for part in response.iter_bytes():
        taken += len(part)
        if taken > most:
            raise _RefusedError(f"sends more than {most >> 20} MiB")
        yield part


def _said(response: httpx.Response, body: bytes) -> str:
    text = printable(" ".join(body.decode("utf-8", "replace").split())[:_SHOWN])
    hint = {
        401: "the user or the password is wrong",
        404: "it takes no requests for profiles: start it with --web.enable-profiling",
        405: "it takes no requests for profiles: start it with --web.enable-profiling",
    }.get(response.status_code)
    return hint or text or f"HTTP {response.status_code}"
