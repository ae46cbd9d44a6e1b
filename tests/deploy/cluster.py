"""A real Kubernetes API server with its etcd, on loopback. It judges and keeps manifests; no controller acts, no node.

Admission is as in a new cluster (Pod Security, service accounts, priorities, runtime classes), but that a namespace
without a label is held to the level baseline.
"""

from __future__ import annotations

import contextlib
import functools
import json
import secrets
import ssl
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from laggard_cli.demo.servers import free_ports
from tests.collector.support import TIMEOUT, processes
from tests.deploy.manifests import Manifest, tool
from tests.support.waiting import until

_MANAGER = {"fieldManager": "laggard", "force": "true", "fieldValidation": "Strict"}
_ADMISSION = {
    "apiVersion": "apiserver.config.k8s.io/v1",
    "kind": "AdmissionConfiguration",
    "plugins": [
        {
            "name": "PodSecurity",
            "configuration": {
                "apiVersion": "pod-security.admission.config.k8s.io/v1",
                "kind": "PodSecurityConfiguration",
                "defaults": {"enforce": "baseline"},
            },
        }
    ],
}


class Cluster:
    """The API as one who may do everything sees it."""

    def __init__(self, url: str, folder: Path, token: str) -> None:
        self._url = url
        self._folder = folder
        self._token = token
        self._paths: dict[tuple[str, str], str] = {}
        # The server makes it at its start.
        self._certificate = folder / "apiserver.crt"

    @functools.cached_property
    def client(self) -> httpx.Client:
        """What keeps the connection."""
        context = ssl.create_default_context(cafile=self._certificate)
        return httpx.Client(base_url=self._url, verify=context, trust_env=False, timeout=TIMEOUT)

    def request(self, method: str, path: str, body: Any = None, token: str = "", **parameters: str) -> httpx.Response:
        """Ask for something, as the owner of another token where there is one."""
        return self.client.request(
            method,
            path,
            params=parameters,
            # What the server calls YAML for server-side apply may be JSON.
            content=None if body is None else json.dumps(body),
            headers={
                "Authorization": f"Bearer {token or self._token}",
                "Content-Type": "application/apply-patch+yaml" if method == "PATCH" else "application/json",
            },
        )

    def ready(self) -> bool:
        """Return whether the server serves."""
        try:
            return self.request("GET", "/readyz").status_code == httpx.codes.OK
        except (httpx.TransportError, OSError):
            return False

    def path(self, manifest: Manifest, namespace: str = "") -> str:
        """Return where a manifest's resource is, in this namespace where it names none. Raises :class:`LookupError`."""
        version, kind = manifest["apiVersion"], manifest["kind"]
        if (version, kind) not in self._paths:
            root = f"/apis/{version}" if "/" in version else f"/api/{version}"
            known = self.request("GET", root)
            for resource in known.json()["resources"] if known.is_success else []:
                if resource["kind"] == kind and "/" not in resource["name"]:
                    prefix = "/namespaces/{namespace}" if resource["namespaced"] else ""
                    self._paths[version, kind] = f"{root}{prefix}/{resource['name']}"
                    break
            else:
                raise LookupError(f"{version} {kind}")
        chosen = manifest["metadata"].get("namespace", namespace)
        return self._paths[version, kind].format(namespace=chosen) + f"/{manifest['metadata']['name']}"

    def apply(self, manifest: Manifest, namespace: str = "") -> httpx.Response:
        """Apply a manifest on the server, which refuses fields that it does not know."""
        return self.request("PATCH", self.path(manifest, namespace), manifest, **_MANAGER)

    def define(self, file: Path) -> None:
        """Make custom resources known."""
        definition = yaml.load(file.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        accepted(self.apply(definition))
        spec = definition["spec"]
        probe = {
            "apiVersion": f"{spec['group']}/{next(each['name'] for each in spec['versions'] if each['served'])}",
            "kind": spec["names"]["kind"],
            "metadata": {"name": "probe", "namespace": "default"},
        }

        def known() -> bool:
            try:
                return self.request("GET", self.path(probe)).json().get("reason") == "NotFound"
            except LookupError:
                return False

        until(known, f"{file.name} is not served")

    def kubeconfig(self) -> Path:
        """Return a file by which programs reach the server."""
        file = self._folder / "kubeconfig"
        cluster = {"server": self._url, "certificate-authority": str(self._certificate)}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": self._token}}],
        }
        _write(file, json.dumps(content))
        return file


def accepted(response: httpx.Response) -> Manifest:
    """Return what the server keeps; fails where it refuses, or warns."""
    assert response.is_success, response.text
    assert response.headers.get_list("Warning") == []
    return response.json()


def refused(response: httpx.Response, code: int) -> str:
    """Return why the server refuses."""
    assert response.status_code == code, response.text
    return response.json()["message"]


@contextlib.contextmanager
def running(folder: Path) -> Generator[Cluster, None, None]:
    """Run etcd and the API server, with what they keep in this folder."""
    server, etcd = tool("kube-apiserver"), tool("etcd")
    port, clients, peers = free_ports(3)
    token, key = secrets.token_urlsafe(), folder / "accounts.pem"
    _write(folder / "tokens.csv", f'{token},admin,admin,"system:masters"\n')
    (folder / "admission.json").write_text(json.dumps(_ADMISSION))
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    encoding, encryption = serialization.Encoding.PEM, serialization.NoEncryption()
    _write(key, private.private_bytes(encoding, serialization.PrivateFormat.PKCS8, encryption).decode())
    store, between = f"http://127.0.0.1:{clients}", f"http://127.0.0.1:{peers}"
    cluster = Cluster(f"https://127.0.0.1:{port}", folder, token)
    with processes(folder) as started:
        started.start(
            "etcd",
            [
                etcd,
                f"--data-dir={folder / 'etcd'}",
                f"--listen-client-urls={store}",
                f"--advertise-client-urls={store}",
                f"--listen-peer-urls={between}",
                f"--initial-advertise-peer-urls={between}",
                f"--initial-cluster=default={between}",
            ],
        )
        started.start(
            "kube-apiserver",
            [
                server,
                f"--etcd-servers={store}",
                "--bind-address=127.0.0.1",
                f"--secure-port={port}",
                f"--cert-dir={folder}",
                f"--token-auth-file={folder / 'tokens.csv'}",
                "--anonymous-auth=false",
                "--authorization-mode=RBAC",
                f"--admission-control-config-file={folder / 'admission.json'}",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={key}",
                f"--service-account-signing-key-file={key}",
                "--service-cluster-ip-range=10.0.0.0/24",
                # Nobody looks for the server under an address of its cluster, and it may not be loopback's.
                "--endpoint-reconciler-type=none",
            ],
        )
        try:
            until(cluster.ready, "the API server is not ready")
        except AssertionError as error:
            raise AssertionError(
                f"{error}: {started.log('etcd')[-1500:]} {started.log('kube-apiserver')[-3000:]}"
            ) from None
        with contextlib.closing(cluster.client):
            yield cluster


def _write(file: Path, text: str) -> None:
    file.touch(mode=0o600)
    file.write_text(text)
