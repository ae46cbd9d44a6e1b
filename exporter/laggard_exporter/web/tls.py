"""The server's side of TLS."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

#: Names of the web configuration file, and what they mean here. Older versions are not safe.
VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}

#: The other policies of Go take certificates that nobody verified: that is no authentication, so they are refused.
CLIENT_CERTIFICATES = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}

#: Cipher suites of TLS 1.2 that Go calls secure, by its names, with OpenSSL's. TLS 1.3 has its own, all secure.
CIPHERS = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
}

_TLS13_CIPHERS = frozenset({"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"})


@dataclass(frozen=True)
class Settings:
    """What the file says about encryption."""

    certificate: Path
    key: Path
    client_authority: Path | None
    client_authority_text: str
    client_certificate: ssl.VerifyMode
    allowed_sans: tuple[str, ...]
    minimum: ssl.TLSVersion
    maximum: ssl.TLSVersion
    ciphers: tuple[str, ...]

    @property
    def files(self) -> tuple[Path, ...]:
        """Files whose change is a change of the settings."""
        return tuple(path for path in (self.certificate, self.key, self.client_authority) if path is not None)


def context(settings: Settings) -> ssl.SSLContext:
    """Return the context. Raises :class:`ValueError` with what is wrong and what to do."""
    authority_given = bool(settings.client_authority or settings.client_authority_text)
    if authority_given and settings.client_certificate is ssl.CERT_NONE:
        raise ValueError(
            "a client CA has no effect with client_auth_type NoClientCert; RequireAndVerifyClientCert uses it"
        )
    if not authority_given and settings.client_certificate is not ssl.CERT_NONE:
        raise ValueError("client_auth_type needs client_ca_file, the CA that signs the clients' certificates")
    if settings.allowed_sans and settings.client_certificate is not ssl.CERT_REQUIRED:
        raise ValueError("client_allowed_sans needs client_auth_type RequireAndVerifyClientCert")
    if settings.minimum > settings.maximum:
        raise ValueError("min_version is above max_version")
    result = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    result.minimum_version, result.maximum_version = settings.minimum, settings.maximum
    # One request per connection: a ticket for a later one would also outlive a changed configuration.
    result.num_tickets = 0
    result.options |= ssl.OP_NO_TICKET
    _load_certificate(result, settings)
    if authority_given:
        _load_authority(result, settings)
    result.verify_mode = settings.client_certificate
    if settings.ciphers:
        result.set_ciphers(":".join(_cipher(name) for name in settings.ciphers if name not in _TLS13_CIPHERS))
    return result


def _load_certificate(result: ssl.SSLContext, settings: Settings) -> None:
    # Opened first: the error of OpenSSL does not say which of the two files is missing.
    for name, path in (("cert_file", settings.certificate), ("key_file", settings.key)):
        _readable(name, path)
    try:
        # A key with a password would make OpenSSL ask for it on the terminal.
        result.load_cert_chain(settings.certificate, settings.key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise ValueError(
            f"cert_file {str(settings.certificate)!r} and key_file {str(settings.key)!r} do not work together: {reason}"
        ) from error


def _load_authority(result: ssl.SSLContext, settings: Settings) -> None:
    if settings.client_authority is not None:
        _readable("client_ca_file", settings.client_authority)
    try:
        result.load_verify_locations(settings.client_authority, cadata=settings.client_authority_text or None)
    except (ssl.SSLError, ValueError) as error:
        where = f"client_ca_file {str(settings.client_authority)!r}" if settings.client_authority else "client_ca"
        raise ValueError(f"{where} holds no certificate in PEM form") from error


def _readable(name: str, path: Path) -> None:
    try:
        path.read_bytes()
    except OSError as error:
        raise ValueError(
            f"{name} {str(path)!r}: {error.strerror}; the exporter's user must be able to read it"
        ) from error


def _no_password() -> str:
    raise ValueError("the key has a password; give one without")


def _cipher(name: str) -> str:
    if name not in CIPHERS:
        raise ValueError(f"cipher_suites: {name!r}: choose from {', '.join(CIPHERS)}")
    return CIPHERS[name]
