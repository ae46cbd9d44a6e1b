"""Two nodes of one machine: network namespaces with a link between them, which needs root."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

_numbers = itertools.count()

#: What a slow link carries: of the suite's gradients a second or two for each step.
_RATE, _BURST_BYTES, _QUEUE = "100kbit", 3000, "5s"
_DELAY = "200ms"


class UnsupportedError(Exception):
    """The kernel cannot do it. The message says what."""


class Link:
    """Two namespaces, each with half of a job's ranks, from entry to exit.

    Args:
        world: number of ranks.
    """

    def __init__(self, world: int) -> None:
        number = next(_numbers)
        self._names = [f"laggard{os.getpid()}n{number}{side}" for side in "ab"]
        # 198.18.0.0/15 is for tests of networks (RFC 2544).
        self._addresses = [f"198.18.{number}.{side}" for side in (1, 2)]
        self.prefix = [("ip", "netns", "exec", self._names[rank * 2 // world]) for rank in range(world)]
        self.environment = {"MASTER_ADDR": self._addresses[0], "GLOO_SOCKET_IFNAME": "cable"}

    @staticmethod
    def missing() -> str:
        """Return why there can be no namespaces here; empty where there can."""
        if os.geteuid() != 0:
            return "network namespaces need root"
        if shutil.which("ip") is None:
            return "ip is not installed (Debian: iproute2)"
        if shutil.which("tc") is None:
            return "tc is not installed (Debian: iproute2)"
        return ""

    def __enter__(self) -> Self:
        first, second = self._names
        try:
            for name in self._names:
                _ip("netns", "add", name)
            _ip("-n", first, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", second)
            for name, address in zip(self._names, self._addresses, strict=True):
                _ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
                _ip("-n", name, "link", "set", "cable", "up")
                _ip("-n", name, "link", "set", "lo", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._names:
            subprocess.run(["ip", "netns", "delete", name], stderr=subprocess.DEVNULL, check=False)

    def down(self) -> None:
        """Take the link down on one side."""
        _ip("-n", self._names[1], "link", "set", "cable", "down")

    def drop(self) -> None:
        """Let nothing arrive from one side at the other."""
        _ip("-n", self._names[1], "route", "add", "blackhole", f"{self._addresses[0]}/32")

    def slow_down(self) -> None:
        """Let little pass in a second, both ways."""
        self._shape("tbf", "rate", _RATE, "burst", str(_BURST_BYTES), "latency", _QUEUE)

    def delay(self) -> None:
        """Let everything arrive later, both ways."""
        self._shape("netem", "delay", _DELAY)

    def _shape(self, *discipline: str) -> None:
        try:
            for name in self._names:
                _run("tc", "-n", name, "qdisc", "add", "dev", "cable", "root", *discipline)
        except OSError as error:
            if "qdisc kind is unknown" in str(error):
                raise UnsupportedError(f"this kernel has no {discipline[0]}") from error
            raise


#: What is done to a link.
LINK: dict[str, Callable[[Link], None]] = {
    "link-down": Link.down,
    "link-lossy": Link.drop,
    "link-slow": Link.slow_down,
    "link-delayed": Link.delay,
}


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(done.returncode, f"{' '.join(command)}: {done.stderr.strip()}")
