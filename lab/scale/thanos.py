"""Thanos as deploy/thanos and docs/deploy.md have it, on loopback: each host of the document is a set of ports."""

from __future__ import annotations

import re
import shlex
import shutil
from collections import defaultdict
from pathlib import Path

from lab.scale.programs import Programs
from lab.scale.prometheus import Server
from laggard_cli.demo.servers import free_ports
from laggard_cli.errors import CommandError

_ROOT = Path(__file__).parents[2]
THANOS = _ROOT / ".cache" / "tools" / "bin" / "thanos"
_FILES = _ROOT / "deploy" / "thanos"
_DOCUMENT = _ROOT / "docs" / "deploy.md"
#: Ports that a program listens on unless it is told otherwise, by the flag that tells it.
_LISTENING = {
    "receive": {
        "--http-address": 10902,
        "--grpc-address": 10901,
        "--remote-write.address": 19291,
        "--receive.capnproto-address": 19391,
    },
    "query": {"--http-address": 10902, "--grpc-address": 10901},
    "rule": {"--http-address": 10902, "--grpc-address": 10901},
}
_ADDRESS = re.compile(r"\b(receive-[01]|query|rule|alertmanager):(\d+)\b")
_COMMAND = re.compile(r"^(thanos \w+ @.*?) +# on ([\w-]+)$", re.MULTILINE)
_DATA = "/var/lib/thanos"
_RECEIVES = ("receive-0", "receive-1")


class Topology:
    """The hosts of the document by name, and what runs on each; the rules lie in ``rules`` of the same folder."""

    def __init__(self, folder: Path) -> None:
        self._free = iter(free_ports(16))
        self._ports: defaultdict[tuple[str, int], int] = defaultdict(lambda: next(self._free))
        #: Where the files of deploy/thanos are, with ports for hosts.
        self.files = folder / "deploy" / "thanos"
        shutil.copytree(_FILES, self.files)
        for path in self.files.iterdir():
            path.write_text(self._here(path.read_text(encoding="utf-8")), encoding="utf-8")
        self._commands = {host: shlex.split(line) for line, host in _COMMAND.findall(_DOCUMENT.read_text("utf-8"))}

    def url(self, host: str, port: int = 10902) -> str:
        """Return where a port of a host is."""
        return f"http://127.0.0.1:{self._ports[host, port]}"

    def command(self, host: str) -> list[str | Path]:
        """Return what the document starts on a host, to be run at the files."""
        _, program, *arguments = self._commands[host]
        arguments += self.listening(program, host)
        return [THANOS, program, *(self._here(each).replace(_DATA, str(self.files / host)) for each in arguments)]

    def listening(self, program: str, host: str) -> list[str]:
        """Return the flags with which a program listens on a host's ports."""
        return [f"{flag}=127.0.0.1:{self._ports[host, port]}" for flag, port in _LISTENING[program].items()]

    def _here(self, text: str) -> str:
        return _ADDRESS.sub(lambda found: f"127.0.0.1:{self._ports[found[1], int(found[2])]}", text)


def thanos(started: Programs) -> Server:
    """Start two members of receive, the ruler and query, and wait until all answer."""
    if not THANOS.exists():
        raise CommandError("no Thanos: run scripts/tools/build_thanos.sh, which needs Go")
    topology = Topology(started.folder)
    hosts = (*_RECEIVES, "rule", "query")
    for host in hosts:
        started.start(host, topology.command(host), f"{topology.url(host)}/-/ready", at=topology.files)
    started.wait(*hosts)
    return Server(
        topology.url("query"),
        write=f"{topology.url('receive-0', 19291)}/api/v1/receive",
        stores=[topology.url(host) for host in _RECEIVES],
        ruler=topology.url("rule"),
    )
