"""The web configuration file that the exporters of the Prometheus project share.

Format: https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md. What cannot be done here
is refused, never ignored: a security setting without effect is worse than none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from laggard_exporter.web.authentication import Users
from laggard_exporter.web.limits import Rate

if TYPE_CHECKING:
    import ssl

    from laggard_exporter.web import tls

_Value = TypeVar("_Value")

#: Headers that may be added to answers.
HEADERS = (
    "Content-Security-Policy",
    "X-Frame-Options",
    "X-Content-Type-Options",
    "X-XSS-Protection",
    "Strict-Transport-Security",
)

_DURATION_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


class ConfigurationError(Exception):
    """The file cannot be used; the text names the file, the setting, the value and what to do."""


@dataclass(frozen=True)
class WebConfiguration:
    """What the file says, ready for use. Without a file: no encryption, nobody is asked who they are."""

    tls: ssl.SSLContext | None = None
    allowed_sans: frozenset[str] = frozenset()
    users: Users = field(default_factory=Users)
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    rate: Rate = field(default_factory=Rate)
    files: tuple[Path, ...] = ()
    """Every file that this was made of."""

    @property
    def closed(self) -> bool:
        """Whether the connection is encrypted and strangers get nothing."""
        return self.tls is not None and (bool(self.users) or self.tls.verify_mode.name == "CERT_REQUIRED")

    def check(self, certificate: Mapping[str, Any] | None) -> None:
        """Raise :class:`PermissionError` for a client whose certificate has no name that is wanted.

        ``certificate`` is what :meth:`ssl.SSLSocket.getpeercert` shows; the handshake verified its chain.
        """
        names = {name for _, name in (certificate or {}).get("subjectAltName", ())}
        if self.allowed_sans and not names & self.allowed_sans:
            raise PermissionError("no name of the client's certificate is in client_allowed_sans")


def load(path: Path) -> WebConfiguration:
    """Return the configuration of a file. Raises :class:`ConfigurationError`."""
    import yaml  # noqa: PLC0415 - it takes memory, and only who has such a file needs it

    from laggard_exporter.web import tls  # noqa: PLC0415 - as above

    try:
        document: object = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"web configuration file {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"web configuration file {path} is not YAML: {' '.join(str(error).split())}"
        ) from error
    top = _Section(path, "", document)
    encryption = top.section("tls_server_config")
    settings = tls_settings(encryption, path)
    http = top.section("http_server_config")
    http.pop("http2", bool, True)  # accepted and without effect: clients agree on HTTP/1.1
    rate = top.section("rate_limit")
    try:
        configuration = WebConfiguration(
            tls=tls.context(settings) if settings else None,
            allowed_sans=frozenset(settings.allowed_sans) if settings else frozenset(),
            users=Users(top.strings("basic_auth_users")),
            headers=http.strings("headers"),
            rate=Rate(rate.pop("interval", _duration, 0.0), rate.pop("burst", _whole, 0)),
            files=(path, *(settings.files if settings else ())),
        )
    except ValueError as error:
        raise ConfigurationError(f"web configuration file {path}: {error}") from error
    for name, value in configuration.headers.items():
        if name not in HEADERS or not value.isprintable():
            top.refuse(f"http_server_config.headers.{name}", value, f"the headers are {', '.join(HEADERS)}")
    for section in (top, encryption, http, rate):
        section.end()
    return configuration


def tls_settings(section: _Section, path: Path) -> tls.Settings | None:
    """Return what the section on encryption says, None for an empty one."""
    from laggard_exporter.web import tls  # noqa: PLC0415 - it takes memory, and only who has such a file needs it

    if not section.given:
        return None
    for inline in ("cert", "key"):
        if inline in section.values:
            section.refuse(inline, "...", f"only files are read; use {inline}_file")

    def file(name: str) -> Path | None:
        # Relative names are relative to the file that holds them, as in exporter-toolkit.
        text = section.pop(name, _string, "")
        return path.parent / text if text else None

    certificate, key, authority = file("cert_file"), file("key_file"), file("client_ca_file")
    if certificate is None or key is None:
        raise ConfigurationError(f"web configuration file {path}: tls_server_config needs cert_file and key_file")
    section.pop("prefer_server_cipher_suites", bool, True)
    return tls.Settings(
        certificate=certificate,
        key=key,
        client_authority=authority,
        client_authority_text=section.pop("client_ca", _string, ""),
        client_certificate=section.choose("client_auth_type", tls.CLIENT_CERTIFICATES, "NoClientCert"),
        allowed_sans=tuple(section.pop("client_allowed_sans", _string_list, [])),
        minimum=section.choose("min_version", tls.VERSIONS, "TLS12"),
        maximum=section.choose("max_version", tls.VERSIONS, "TLS13"),
        ciphers=tuple(section.pop("cipher_suites", _string_list, [])),
    )


class _Section:
    """A mapping of the file from which settings are taken; what is left at the end is unknown."""

    def __init__(self, path: Path, name: str, document: object) -> None:
        self._path = path
        self._name = name
        self.given = document is not None
        if not isinstance(document, dict | None):
            self.refuse("", document, "it must be a mapping")
        self.values = dict(cast("dict[object, object]", document or {}))

    def section(self, name: str) -> _Section:
        return _Section(self._path, name, self.values.pop(name, None))

    def pop(self, name: str, convert: Callable[[Any], _Value], default: _Value) -> _Value:
        value = self.values.pop(name, None)
        if value is None:
            return default
        if convert is bool and not isinstance(value, bool):
            self.refuse(name, value, "write true or false")
        try:
            return convert(value)
        except ValueError as error:
            self.refuse(name, value, str(error))

    def choose(self, name: str, options: Mapping[str, _Value], default: str) -> _Value:
        value = self.values.pop(name, None) or default
        if not isinstance(value, str) or value not in options:
            self.refuse(name, value, f"choose from {', '.join(options)}")
        return options[value]

    def strings(self, name: str) -> dict[str, str]:
        pairs = self.section(name).values
        return {self._text(name, key): self._text(f"{name}.{key}", value) for key, value in pairs.items()}

    def _text(self, name: str, value: object) -> str:
        if not isinstance(value, str):
            self.refuse(name, value, "it must be text")
        return value

    def end(self) -> None:
        for name, value in self.values.items():
            self.refuse(str(name), "..." if isinstance(value, str) else value, "no such setting here")

    def refuse(self, name: str, value: object, hint: str) -> NoReturn:
        full = ".".join(part for part in (self._name, name) if part) or "the document"
        name = repr(full)[1:-1][:80]  # a key may have line breaks
        raise ConfigurationError(f"web configuration file {self._path}: {name}: {str(value)[:80]!r}: {hint}")


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("it must be text")  # noqa: TRY004 - one error for all that a file may say
    return value


def _string_list(value: object) -> list[str]:
    if not isinstance(value, list):
        raise ValueError("it must be a list of texts")  # noqa: TRY004 - one error for all that a file may say
    return [_string(item) for item in cast("list[object]", value)]


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError("it must be a whole number")
    return value


def _duration(value: object) -> float:
    """Return the seconds of a duration as Go writes it, such as ``1m30s``."""
    text = str(value)
    parts = re.findall(r"([0-9]+(?:\.[0-9]+)?)(ns|us|µs|ms|s|m|h)", text)
    if text != "0" and (not parts or "".join(number + unit for number, unit in parts) != text):
        raise ValueError("write a duration such as 1s or 500ms")
    return sum(float(number) * _DURATION_UNITS[unit] for number, unit in parts)
