"""How a server is reached: the file that promtool takes as ``--http.config.file``. No secret is on a command line so.

The keys are those of Prometheus' HTTP clients, as far as laggard needs them; what is none of them is refused, since to
leave out a certificate or a password that was meant is worse than to stop.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import yaml

from laggard_cli.errors import CommandError

_KEYS: dict[str, tuple[str, ...]] = {
    "": ("basic_auth", "authorization", "tls_config", "http_headers"),
    "basic_auth": ("username", "password", "password_file"),
    "authorization": ("type", "credentials", "credentials_file"),
    "tls_config": ("ca_file", "cert_file", "key_file", "insecure_skip_verify"),
}
#: Of a header. Not those for secrets: unlike the authorization they would go along to where a server redirects.
_HEADER_KEYS = ("values",)


def client_options(path: Path) -> dict[str, Any]:
    """Return what ``httpx.Client`` takes for the file: ``auth``, ``headers`` and ``verify``, as far as they are set.

    Raises :class:`CommandError`, which names the file and never a secret.
    """
    whole = _section(path, "", _load(path))
    options: dict[str, Any] = {}
    if "basic_auth" in whole:
        basic = _section(path, "basic_auth", whole["basic_auth"])
        options["auth"] = (_text(path, basic, "username"), _secret(path, basic, "password"))
    if "authorization" in whole:
        if options:
            raise CommandError(f"{path}: basic_auth and authorization exclude each other")
        token = _section(path, "authorization", whole["authorization"])
        kind = _text(path, token, "type") or "Bearer"
        options["headers"] = {"Authorization": f"{kind} {_secret(path, token, 'credentials')}"}
    if "http_headers" in whole:
        options["headers"] = {**_headers(path, whole["http_headers"]), **options.get("headers", {})}
    if "tls_config" in whole:
        options["verify"] = _context(path, _section(path, "tls_config", whole["tls_config"]))
    return options


def _load(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{path} cannot be read: {getattr(error, 'strerror', error)}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        # The message of the parser quotes the line, and with it perhaps a password.
        raise CommandError(f"{path} must be YAML{f', line {mark.line + 1} is not' if mark else ''}") from None


def _section(path: Path, name: str, found: Any) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        raise CommandError(f"{path}: {name or 'the file'} must have keys, one of {', '.join(_KEYS[name])}")
    section = cast("dict[Any, Any]", found)
    for key in section:
        if key not in _KEYS[name]:
            raise CommandError(
                f"{path}: {f'{name}.' if name else ''}{key} is not known; there are {', '.join(_KEYS[name])}"
            )
    return section


def _headers(path: Path, found: Any) -> dict[str, str]:
    """Return headers such as the tenant's of Mimir; several values of one are joined by commas."""
    headers: dict[str, str] = {}
    if not isinstance(found, dict):
        raise CommandError(f"{path}: http_headers must have names of headers as keys")
    for name, header in cast("dict[Any, Any]", found).items():
        keys = cast("dict[Any, Any]", header) if isinstance(header, dict) else {}
        values: Any = keys.get("values") if tuple(keys) == _HEADER_KEYS else None
        texts: list[Any] = cast("list[Any]", values) if isinstance(values, list) else [None]
        if not all(isinstance(text, str) for text in texts):
            raise CommandError(f"{path}: http_headers.{name} must have values, a list of texts, and nothing else")
        headers[str(name)] = ",".join(texts)
    return headers


def _text(path: Path, section: Mapping[str, Any], key: str) -> str:
    value = section.get(key, "")
    if not isinstance(value, str):
        raise CommandError(f"{path}: {key} must be a text; put it in quotes")
    return value


def _secret(path: Path, section: Mapping[str, Any], key: str) -> str:
    """Return a secret that stands in the file, or in one that it names."""
    name = _text(path, section, f"{key}_file")
    if not name:
        return _text(path, section, key)
    file = _beside(path, name)
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{path}: {key}_file {file} cannot be read: {getattr(error, 'strerror', error)}") from error


def _context(path: Path, section: Mapping[str, Any]) -> ssl.SSLContext:
    authority, certificate, key = (_text(path, section, name) for name in ("ca_file", "cert_file", "key_file"))
    trusting = section.get("insecure_skip_verify", False)
    if not isinstance(trusting, bool):
        raise CommandError(f"{path}: insecure_skip_verify must be true or false")
    what = authority or certificate
    try:
        context = ssl.create_default_context(cafile=str(_beside(path, authority)) if authority else None)
        what = certificate or what
        if certificate:
            # A key with a password is not asked for one on the terminal.
            context.load_cert_chain(
                _beside(path, certificate), _beside(path, key) if key else None, password=lambda: b""
            )
    except (OSError, ssl.SSLError) as error:
        raise CommandError(f"{path}: {what} cannot be used: {error.strerror or error}") from error
    if trusting:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _beside(path: Path, name: str) -> Path:
    return path.parent / name
