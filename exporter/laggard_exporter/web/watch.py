"""Keeps the web configuration up to date."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from laggard_exporter.logs import LogOnce
from laggard_exporter.web import configuration
from laggard_exporter.web.configuration import ConfigurationError, WebConfiguration

_logger = logging.getLogger(__name__)

#: A broken file is read again after so many seconds.
RETRY_SECONDS = 10.0

_Signature = tuple[tuple[int, int, int, int] | None, ...]


class ConfigurationSource:
    """A configuration that does not change."""

    def __init__(self, fixed: WebConfiguration) -> None:
        self._current = fixed
        self.valid: bool | None = None
        """Whether the newest file could be used; None without a file."""

    def current(self) -> WebConfiguration:
        """Return what holds for a connection that begins now."""
        return self._current


class ConfigurationFile(ConfigurationSource):
    """A file that is read again when it, or a certificate that it names, changes.

    A file that cannot be used is logged once and changes nothing: the last good one stays in force.

    Raises :class:`ConfigurationError` when the file cannot be used at the start.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        first, self._signature = _load(path)
        super().__init__(first)
        self.valid = True
        self._path = path
        self._clock = clock
        self._retry_at = 0.0
        self._lock = threading.Lock()
        self._log = LogOnce(_logger)

    def current(self) -> WebConfiguration:
        """Return what holds for a connection that begins now."""
        with self._lock:
            signature = _signature(self._current.files)
            # A broken file may name a certificate that comes later, which is none of the files that are watched.
            if signature != self._signature or (not self.valid and self._clock() >= self._retry_at):
                self._signature = signature
                self._reload()
            return self._current

    def _reload(self) -> None:
        try:
            new, signature = _load(self._path)
            self._check(new)
        except ConfigurationError as error:
            self.valid = False
            self._retry_at = self._clock() + RETRY_SECONDS
            self._log(logging.ERROR, f"{error}; the configuration from before stays in force")
            return
        self.valid = True
        self._current, self._signature = new, signature
        _logger.info("web configuration file %s was read again", self._path)

    def _check(self, new: WebConfiguration) -> None:
        if (new.tls is None) != (self._current.tls is None):
            raise ConfigurationError(
                f"web configuration file {self._path}: encryption is switched on or off by a restart only"
            )


def _load(path: Path) -> tuple[WebConfiguration, _Signature]:
    # Read twice: only a file that did not change after its signature was taken is known to be what was read.
    signature = _signature(configuration.load(path).files)
    return configuration.load(path), signature


def _signature(files: tuple[Path, ...]) -> _Signature:
    """Return what differs when one of the files was changed or replaced, also by a link to another."""
    return tuple(_status(path) for path in files)


def _status(path: Path) -> tuple[int, int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_mode
