"""The way to a server: directly, or through the proxy that the environment names.

``HTTPS_PROXY``, ``HTTP_PROXY``, ``ALL_PROXY`` and ``NO_PROXY`` mean what they mean to Prometheus' own tools. An entry
of ``NO_PROXY`` is a host with all below it, an address, a network or ``*``. This machine is never behind a proxy.
"""

from __future__ import annotations

import functools
import ipaddress
import os
import ssl
import urllib.request

import httpx

from laggard.shared.addresses import without_password
from laggard_cli.errors import CommandError

#: Of a port.
_DIGITS = 5
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Ways(httpx.BaseTransport):
    """Sends each request on its way, which a redirect may change. ``context`` replaces the usual authorities."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self._context = context
        self._open: dict[tuple[str, str], httpx.HTTPTransport] = {}

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request. Raises :class:`CommandError` where the environment names a way that there is not."""
        way = request.url.scheme, proxy_of(request.url)
        if way not in self._open:
            self._open[way] = self._transport(*way)
        return self._open[way].handle_request(request)

    def close(self) -> None:
        """End the connections."""
        for transport in self._open.values():
            transport.close()

    def _transport(self, scheme: str, proxy: str) -> httpx.HTTPTransport:
        tls_to_proxy = proxy.lower().startswith("https:")
        secure = scheme == "https" or tls_to_proxy
        # Without encryption no authority is needed, and one that cannot be read does not matter.
        context = (self._context or _authorities()) if secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            through = httpx.Proxy(proxy, ssl_context=context if tls_to_proxy else None) if proxy else None
            return httpx.HTTPTransport(verify=context, proxy=through)
        except ImportError:
            raise CommandError(
                f"proxy {without_password(proxy)} of the environment needs the package socksio; "
                "try pip install 'httpx[socks]', or name the server in NO_PROXY"
            ) from None
        except (ValueError, httpx.InvalidURL) as error:
            raise CommandError(
                f"proxy of the environment must be a URL, got {without_password(proxy)!r}; "
                "try http://proxy:3128, or NO_PROXY"
            ) from error


@functools.cache
def direct() -> httpx.Client:
    """Return a client for servers on this machine, which no proxy is between."""
    return httpx.Client(transport=Ways())


def proxy_of(url: httpx.URL) -> str:
    """Return the proxy through which the environment leads to a URL; empty for the direct way."""
    named = {name.lower(): text.strip() for name, text in urllib.request.getproxies_environment().items()}
    proxy = named.get(url.scheme) or named.get("all") or ""
    if not proxy or _is_exempt(url, named.get("no", "")):
        return ""
    if "://" not in proxy:
        return f"http://{proxy}"
    # The proxy looks up the name either way.
    return proxy.replace("socks5h://", "socks5://", 1)


def _is_exempt(url: httpx.URL, exceptions: str) -> bool:
    host, port = url.host.lower().rstrip("."), url.port or {"http": 80, "https": 443}.get(url.scheme)
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    return any(_covers(entry.strip().lower(), host, address, port) for entry in exceptions.split(","))


def _covers(entry: str, host: str, address: _Address | None, port: int | None) -> bool:
    """Return whether an entry of ``NO_PROXY`` is about a host, which has an address where it is one."""
    if entry in ("", "*"):
        return entry == "*"
    bare, colon, number = entry.rpartition(":")
    # Without brackets the colons of an IPv6 address are its own.
    if colon and number.isdecimal() and len(number) <= _DIGITS and (":" not in bare or bare.endswith("]")):
        if int(number) != port:
            return False
        entry = bare
    entry = entry.strip("[]")
    if address is not None:
        try:
            return address in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    # As for Go, a leading dot leaves out the domain itself.
    domain = entry.removeprefix("*")
    return host == domain or host.endswith(f".{domain.removeprefix('.')}")


def _address(host: str) -> _Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None


def _authorities() -> ssl.SSLContext:
    try:
        return httpx.create_ssl_context()
    except OSError as error:
        named = " or ".join(
            f"{name}={os.environ[name]}" for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if name in os.environ
        )
        raise CommandError(f"certificates of authorities cannot be read: {named}: {error.strerror or error}") from error
