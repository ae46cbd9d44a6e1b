"""The web configuration file: encryption, client certificates, passwords, and what is wrong with it."""

from __future__ import annotations

import base64
import http.client
import os
import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path

import bcrypt
import pytest
from cryptography.hazmat.primitives import serialization

from laggard_exporter.web import configuration
from laggard_exporter.web.authentication import Users
from laggard_exporter.web.configuration import ConfigurationError
from laggard_exporter.web.limits import Rate
from laggard_exporter.web.server import Server
from laggard_exporter.web.watch import ConfigurationFile
from tests.exporter.support import TIMEOUT
from tests.exporter.web.certificates import Authority, Pair
from tests.exporter.web.support import SECRET_HASH, serving


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an authority, a server's certificate and clients' certificates."""
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    """Return the authority that all trust."""
    return Authority(folder, "authority")


@pytest.fixture(scope="module")
def server_pair(authority: Authority) -> Pair:
    """Return the server's certificate."""
    return authority.issue("localhost", file="server")


def write(tmp_path: Path, text: str) -> Path:
    """Write a configuration file as an editor does: the name never holds half of it."""
    path, new = tmp_path / "web.yml", tmp_path / "web.yml.new"
    new.write_text(text)
    new.replace(path)
    return path


def encrypted(pair: Pair, *more: str) -> str:
    """Return a configuration with TLS and further settings of its section."""
    lines = [f"cert_file: {pair.certificate}", f"key_file: {pair.key}", *more]
    return "tls_server_config:\n" + "".join(f"  {line}\n" for line in lines)


def client(authority: Authority, pair: Pair | None = None) -> ssl.SSLContext:
    """Return a client that trusts the authority, with a certificate of its own or without."""
    context = ssl.create_default_context(cafile=str(authority.certificate))
    if pair:
        context.load_cert_chain(pair.certificate, pair.key)
    return context


def status(server: Server, context: ssl.SSLContext | None = None, *, authorization: str | None = None) -> int:
    """Return the status of the metrics page."""
    headers = {} if authorization is None else {"Authorization": authorization}
    request = urllib.request.Request(f"{server.url}/metrics", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT, context=context) as response:
            return response.status
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def basic(name: str, password: str) -> str:
    """Return the header of basic authentication."""
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def refused(server: Server, context: ssl.SSLContext) -> bool:
    """Return whether the server ends the connection instead of answering."""
    try:
        status(server, context)
    except (OSError, http.client.HTTPException):
        return True
    return False


def test_tls(tmp_path: Path, authority: Authority, server_pair: Pair) -> None:
    """With a certificate the server speaks TLS 1.2 and newer alone, and plain HTTP gets nothing."""
    source = ConfigurationFile(write(tmp_path, encrypted(server_pair)))
    with serving(source=source) as server:
        assert server.url.startswith("https://127.0.0.1:")
        assert status(server, client(authority)) == 200
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            context = client(authority)
            context.minimum_version = context.maximum_version = version
            assert status(server, context) == 200
        stranger = ssl.create_default_context()
        assert refused(server, stranger)
        with pytest.raises((OSError, http.client.HTTPException)):
            urllib.request.urlopen(server.url.replace("https", "http"), timeout=TIMEOUT)
        assert status(server, client(authority)) == 200


def test_versions_and_ciphers(tmp_path: Path, authority: Authority, server_pair: Pair) -> None:
    """min_version and max_version bound the version, cipher_suites the suites of TLS 1.2."""
    old, new = client(authority), client(authority)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    new.minimum_version = ssl.TLSVersion.TLSv1_3
    with serving(source=ConfigurationFile(write(tmp_path, encrypted(server_pair, "min_version: TLS13")))) as server:
        assert refused(server, old)
        assert status(server, new) == 200
    one = "cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, TLS_AES_128_GCM_SHA256]"
    text = encrypted(server_pair, "max_version: TLS12", one)
    with serving(source=ConfigurationFile(write(tmp_path, text))) as server:
        assert refused(server, new)
        assert status(server, old) == 200
        old.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
        assert refused(server, old)


def test_client_certificates(tmp_path: Path, authority: Authority, server_pair: Pair) -> None:
    """Only clients with a certificate of the right authority, and a name that is wanted, get an answer."""
    prometheus, other = authority.issue("prometheus"), authority.issue("other")
    (tmp_path / "wrong").mkdir()
    foreign = Authority(tmp_path / "wrong", "foreign").issue("prometheus")
    lines = ["client_auth_type: RequireAndVerifyClientCert", f"client_ca_file: {authority.certificate}"]
    source = ConfigurationFile(write(tmp_path, encrypted(server_pair, *lines)))
    assert source.current().closed
    with serving(source=source) as server:
        assert status(server, client(authority, prometheus)) == 200
        assert status(server, client(authority, other)) == 200
        assert refused(server, client(authority))
        assert refused(server, client(authority, foreign))
        write(tmp_path, encrypted(server_pair, *lines, "client_allowed_sans: [prometheus]"))
        assert status(server, client(authority, prometheus)) == 200
        assert refused(server, client(authority, other))


def test_passwords(tmp_path: Path) -> None:
    """A name and its password are needed on every page; all else gets 401."""
    text = f"basic_auth_users:\n  alice: {SECRET_HASH}\n  bob: {SECRET_HASH.replace('$2b$', '$2y$')}\n"
    source = ConfigurationFile(write(tmp_path, text))
    assert not source.current().closed  # a password that anybody can listen to
    with serving(source=source) as server:
        for name in ("alice", "bob"):
            assert [status(server, authorization=basic(name, "secret")) for _ in range(2)] == [200, 200]
        assert [status(server, authorization=basic("alice", "wrong")) for _ in range(2)] == [401, 401]
        for header in (basic("carol", "secret"), basic("", ""), basic("alice", ""), basic("alice", "x" * 100)):
            assert status(server, authorization=header) == 401
        for header in ("", "Basic", "Basic !", "Basic YQ==", "Bearer secret", "Basic " + "/" * 8, "Basic é"):
            assert status(server, authorization=header) == 401
        with pytest.raises(urllib.error.HTTPError) as refusal:
            urllib.request.urlopen(f"{server.url}/-/healthy", timeout=TIMEOUT)
        assert refusal.value.headers["WWW-Authenticate"] == 'Basic realm="laggard"'
        refusal.value.close()


def test_a_password_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer for a name and password is remembered, a bounded number of them; an unknown name costs the same."""
    hashed: list[bytes] = []
    real = bcrypt.checkpw

    def check(password: bytes, stored: bytes) -> bool:
        hashed.append(stored)
        return real(password, stored)

    monkeypatch.setattr(bcrypt, "checkpw", check)
    users = Users({"alice": SECRET_HASH})
    header = basic("alice", "secret")
    assert all(users.allow(header) for _ in range(5))
    assert hashed == [SECRET_HASH.encode()]
    assert not users.allow(basic("nobody", "secret"))
    assert hashed == [SECRET_HASH.encode()] * 2
    for number in range(200):
        users.allow(basic("alice", str(number)))
    assert len(users._remembered) == 128
    assert users.allow(header)


def test_headers_and_rate(tmp_path: Path) -> None:
    """Headers of the file are on every answer; beyond the rate limit an answer is 429."""
    text = "http_server_config: {http2: true, headers: {X-Frame-Options: deny}}\nrate_limit: {interval: 1h, burst: 2}\n"
    with serving(source=ConfigurationFile(write(tmp_path, text))) as server:
        with urllib.request.urlopen(f"{server.url}/", timeout=TIMEOUT) as response:
            assert response.headers["X-Frame-Options"] == "deny"
        assert [status(server) for _ in range(3)] == [200, 429, 429]


def test_the_rate_limit() -> None:
    """A burst is answered at once, then one request for each interval."""
    now = 0.0
    rate = Rate(2.0, 3, clock=lambda: now)
    assert [rate.acquire() for _ in range(4)] == [True, True, True, False]
    now = 1.9
    assert not rate.acquire()
    now = 2.1
    assert [rate.acquire() for _ in range(2)] == [True, False]
    now = 1000.0
    assert [rate.acquire() for _ in range(4)] == [True, True, True, False]
    assert all(Rate().acquire() for _ in range(1000))


def test_a_new_certificate(tmp_path: Path, authority: Authority, folder: Path) -> None:
    """A certificate that is replaced is served to the next client; half a replacement changes nothing."""
    first, second = authority.issue("localhost", file="first"), authority.issue("localhost", file="second")
    used = Pair(folder / "used.crt", folder / "used.key")
    used.certificate.write_bytes(first.certificate.read_bytes())
    used.key.write_bytes(first.key.read_bytes())
    source = ConfigurationFile(write(tmp_path, encrypted(used)))

    def served(server: Server) -> str:
        pem = ssl.get_server_certificate(("127.0.0.1", server.address.port), timeout=TIMEOUT)
        return pem.strip()

    with serving(source=source) as server:
        assert served(server) == first.certificate.read_text().strip()
        used.certificate.write_bytes(second.certificate.read_bytes())
        assert served(server) == first.certificate.read_text().strip()
        assert source.valid is False
        used.key.write_bytes(second.key.read_bytes())
        assert served(server) == second.certificate.read_text().strip()
        assert source.valid is True


def test_a_change_that_is_broken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A broken new file is logged once and changes nothing; a good one after it holds at once."""
    now = 0.0
    path = write(tmp_path, f"basic_auth_users: {{alice: {SECRET_HASH}}}\n")
    source = ConfigurationFile(path, clock=lambda: now)
    with serving(source=source) as server:
        for broken in ("basic_auth_users: [", "basic_auth_users: {alice: secret}\n", ""):
            write(tmp_path, broken) if broken else path.unlink()
            assert status(server, authorization=basic("alice", "secret")) == 200
            assert status(server) == 401
            assert source.valid is False
        now += 100
        assert status(server) == 401
        write(tmp_path, f"basic_auth_users: {{bob: {SECRET_HASH}}}\n")
        assert status(server, authorization=basic("alice", "secret")) == 401
        assert status(server, authorization=basic("bob", "secret")) == 200
        assert source.valid is True
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 3
    assert errors[2] == (
        f"web configuration file {path}: No such file or directory; the configuration from before stays in force"
    )


def test_encryption_is_not_switched_on_the_fly(tmp_path: Path, authority: Authority, server_pair: Pair) -> None:
    """A file without TLS cannot make a running server talk in the clear."""
    source = ConfigurationFile(write(tmp_path, encrypted(server_pair)))
    with serving(source=source) as server:
        write(tmp_path, "{}\n")
        assert status(server, client(authority)) == 200
        assert source.valid is False


def test_a_certificate_that_comes_later(tmp_path: Path, server_pair: Pair) -> None:
    """A file that names a certificate which is not there yet holds as soon as it is there."""
    now = 0.0
    late = Pair(tmp_path / "late.crt", tmp_path / "late.key")
    path = write(tmp_path, encrypted(server_pair))
    source = ConfigurationFile(path, clock=lambda: now)
    write(tmp_path, encrypted(late))
    assert source.current().files == (path, server_pair.certificate, server_pair.key)
    late.certificate.write_bytes(server_pair.certificate.read_bytes())
    late.key.write_bytes(server_pair.key.read_bytes())
    now = 11.0
    assert source.current().files == (path, late.certificate, late.key)


def test_an_unchanged_file_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection costs a look at the files' times, no reading."""
    source = ConfigurationFile(write(tmp_path, "{}\n"))
    monkeypatch.setattr(configuration, "load", None)
    started = time.monotonic()
    assert all(source.current() is source.current() for _ in range(100))
    assert time.monotonic() - started < 1


def test_an_empty_file(tmp_path: Path) -> None:
    """An empty file asks for nothing."""
    assert configuration.load(write(tmp_path, "")).tls is None


PAIR = "cert_file: server.crt\n  key_file: server.key\n"
BROKEN = {
    "[]": "the document: '[]': it must be a mapping",
    "tls_server_config: yes": "tls_server_config: 'True': it must be a mapping",
    "a: 1": "a: '1': no such setting here",
    "tls_server_config: {cert_file: server.crt}": "tls_server_config needs cert_file and key_file",
    "tls_server_config: {cert: text}": "tls_server_config.cert: '...': only files are read; use cert_file",
    f"tls_server_config:\n  {PAIR}  min_version: TLS10": "tls_server_config.min_version: 'TLS10': "
    "choose from TLS12, TLS13",
    f"tls_server_config:\n  {PAIR}  min_version: TLS13\n  max_version: TLS12": "min_version is above max_version",
    f"tls_server_config:\n  {PAIR}  client_auth_type: RequestClientCert": "tls_server_config.client_auth_type: "
    "'RequestClientCert': choose from NoClientCert, VerifyClientCertIfGiven, RequireAndVerifyClientCert",
    f"tls_server_config:\n  {PAIR}  client_auth_type: RequireAndVerifyClientCert": "client_auth_type needs "
    "client_ca_file, the CA that signs the clients' certificates",
    f"tls_server_config:\n  {PAIR}  client_ca_file: authority.crt": "a client CA has no effect with client_auth_type "
    "NoClientCert; RequireAndVerifyClientCert uses it",
    f"tls_server_config:\n  {PAIR}  client_allowed_sans: [a]": "client_allowed_sans needs client_auth_type "
    "RequireAndVerifyClientCert",
    f"tls_server_config:\n  {PAIR}  client_allowed_sans: a": "tls_server_config.client_allowed_sans: 'a': "
    "it must be a list of texts",
    f"tls_server_config:\n  {PAIR}  client_auth_type: RequireAndVerifyClientCert\n  client_ca: text": "client_ca holds "
    "no certificate in PEM form",
    f"tls_server_config:\n  {PAIR}  prefer_server_cipher_suites: 1": "tls_server_config.prefer_server_cipher_suites: "
    "'1': write true or false",
    f"tls_server_config:\n  {PAIR}  curve_preferences: [X25519]": "tls_server_config.curve_preferences: "
    "\"['X25519']\": no such setting here",
    "basic_auth_users: {alice: secret}": "basic_auth_users: the password of 'alice' must be a bcrypt hash; "
    "try htpasswd -nBC 10 'alice'",
    "basic_auth_users: {alice: 1}": "basic_auth_users.alice: '1': it must be text",
    "basic_auth_users: {1: a}": "basic_auth_users: '1': it must be text",
    "http_server_config: {headers: {Server: a}}": "http_server_config.headers.Server: 'a': the headers are "
    "Content-Security-Policy, X-Frame-Options, X-Content-Type-Options, X-XSS-Protection, Strict-Transport-Security",
    'http_server_config: {headers: {X-Frame-Options: "a\\r\\nb: c"}}': "http_server_config.headers.X-Frame-Options: "
    "'a\\r\\nb: c': the headers are "
    "Content-Security-Policy, X-Frame-Options, X-Content-Type-Options, X-XSS-Protection, Strict-Transport-Security",
    "rate_limit: {interval: soon}": "rate_limit.interval: 'soon': write a duration such as 1s or 500ms",
    "rate_limit: {interval: 1s}": "rate_limit: burst 0 answers nobody; give 1 or more",
    "rate_limit: {interval: 1s, burst: -1}": "rate_limit.burst: '-1': it must be a whole number",
}


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_file(tmp_path: Path, text: str, server_pair: Pair, authority: Authority) -> None:
    """What cannot be done is refused with the file, the setting, the value and what to do; never ignored."""
    for name, source in (("server.crt", server_pair.certificate), ("server.key", server_pair.key)):
        (tmp_path / name).write_bytes(source.read_bytes())
    (tmp_path / "authority.crt").write_bytes(authority.certificate.read_bytes())
    path = write(tmp_path, text)
    with pytest.raises(ConfigurationError) as error:
        configuration.load(path)
    assert str(error.value) == f"web configuration file {path}: {BROKEN[text]}"


def test_unreadable_files(tmp_path: Path, server_pair: Pair, authority: Authority) -> None:
    """Each file that cannot be read or used is named, with the reason."""
    other = authority.issue("other", file="mismatch")
    garbage = tmp_path / "garbage"
    garbage.write_text("no PEM")

    def problem(text: str) -> str:
        with pytest.raises(ConfigurationError) as error:
            configuration.load(write(tmp_path, text))
        message = str(error.value)
        assert "\n" not in message
        return message.removeprefix(f"web configuration file {tmp_path / 'web.yml'}: ")

    advice = "the exporter's user must be able to read it"
    missing = tmp_path / "missing"
    assert problem(encrypted(Pair(missing, server_pair.key))) == (
        f"cert_file '{missing}': No such file or directory; {advice}"
    )
    assert problem(encrypted(Pair(server_pair.certificate, tmp_path))) == (
        f"key_file '{tmp_path}': Is a directory; {advice}"
    )
    together = "cert_file '{}' and key_file '{}' do not work together: "
    assert problem(encrypted(Pair(server_pair.certificate, other.key))).startswith(
        together.format(server_pair.certificate, other.key)
    )
    assert problem(encrypted(Pair(garbage, server_pair.key))).startswith(together.format(garbage, server_pair.key))
    lines = ["client_auth_type: RequireAndVerifyClientCert", f"client_ca_file: {garbage}"]
    assert problem(encrypted(server_pair, *lines)) == f"client_ca_file '{garbage}' holds no certificate in PEM form"
    with pytest.raises(ConfigurationError, match=r"is not YAML: .*line 1"):
        configuration.load(write(tmp_path, "a: ["))
    (tmp_path / "web.yml").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(ConfigurationError, match="is not YAML"):
        configuration.load(tmp_path / "web.yml")
    if os.geteuid() != 0:
        garbage.chmod(0)
        assert (
            problem(encrypted(Pair(garbage, server_pair.key))) == f"cert_file '{garbage}': Permission denied; {advice}"
        )


def test_a_key_with_a_password(tmp_path: Path, server_pair: Pair) -> None:
    """A key with a password is refused; nobody is asked for it on a terminal."""
    key = serialization.load_pem_private_key(server_pair.key.read_bytes(), None)
    locked = tmp_path / "locked.key"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(ConfigurationError, match="the key has a password; give one without"):
        configuration.load(write(tmp_path, encrypted(Pair(server_pair.certificate, locked))))
